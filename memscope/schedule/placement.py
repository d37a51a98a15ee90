"""Where buffers lie: offsets that need the least memory for given live ranges.

The location half of OLLA (arXiv 2210.12924, sections 2.3 and 3): buffers are rectangles of time by address, two of them
alive at once must not overlap in address, and the highest address in use is the least.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

from . import cpsat


@dataclasses.dataclass(frozen=True)
class LiveRange:
    """A buffer of `bytes`, alive from the step `start` to the step `end`, both inclusive."""

    start: int
    end: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Placement:
    """An offset for each buffer.

    Attributes:
      offsets: in bytes, in the order of the live ranges.
      total_bytes: the highest address in use.
      load_bytes: the most bytes alive at once; no placement needs less.
      lower_bound_bytes: proved; at least `load_bytes`.
      remark: what a reader should know, as that OR-Tools is missing; "" where nothing is.
    """

    offsets: tuple[int, ...]
    total_bytes: int
    load_bytes: int
    lower_bound_bytes: int
    remark: str = ""

    @property
    def fragmentation_bytes(self) -> int:
        """Bytes that lie unused between buffers when the most are alive."""
        return self.total_bytes - self.load_bytes

    @property
    def optimal(self) -> bool:
        return self.total_bytes == self.lower_bound_bytes


def place(ranges: Sequence[LiveRange], seconds: float = 5.0, alignment: int = 1) -> Placement:
    """Offsets that need the least memory found in the time.

    Args:
      ranges: the buffers.
      seconds: for the solver; the best-fit placements before it take well under a second for a thousand buffers.
      alignment: offsets are multiples of so many bytes, and sizes are rounded up to them.

    Raises:
      ValueError: a live range that ends before it starts, or a negative size.
    """
    for r in ranges:
        if r.end < r.start or r.bytes < 0:
            raise ValueError(
                f"{r}: a buffer has a size of at least 0 bytes and lives to the step it starts at or later."
            )
    padded = [dataclasses.replace(r, bytes=-(-r.bytes // alignment) * alignment) for r in ranges]
    load = most_alive(padded)
    offsets = min((_best_fit(padded, key) for key in _KEYS), key=lambda o: _total(padded, o))
    bound, remark = load, ""
    if _total(padded, offsets) > load:
        if cpsat.available():
            offsets, bound = _solve(padded, offsets, load, seconds)
        else:
            remark = cpsat.MISSING
    return Placement(tuple(offsets), _total(padded, offsets), load, bound, remark)


def most_alive(ranges: Sequence[LiveRange]) -> int:
    """The most bytes alive at one step."""
    changes = sorted(change for r in ranges for change in ((r.start, 1, r.bytes), (r.end, 2, -r.bytes)))
    return max(itertools.accumulate((bytes_ for _, _, bytes_ in changes), initial=0))


def _total(ranges: Sequence[LiveRange], offsets: Sequence[int]) -> int:
    return max((offset + r.bytes for r, offset in zip(ranges, offsets, strict=True)), default=0)


_KEYS: tuple[Callable[[LiveRange], tuple[int, ...]], ...] = (
    lambda r: (-r.bytes, r.start - r.end),  # XLA's own
    lambda r: (r.start - r.end, -r.bytes),
    lambda r: (-r.bytes * (r.end - r.start + 1),),
    lambda r: (r.start, -r.bytes),
)


def _best_fit(ranges: Sequence[LiveRange], key: Callable[[LiveRange], tuple[int, ...]]) -> list[int]:
    """Places the buffers one by one, each into the smallest hole that holds it, or else on top."""
    offsets = [0] * len(ranges)
    placed: list[int] = []
    for i in sorted(range(len(ranges)), key=lambda i: key(ranges[i])):
        taken = sorted((offsets[j], offsets[j] + ranges[j].bytes) for j in placed if _meet(ranges[i], ranges[j]))
        offsets[i] = _hole(taken, ranges[i].bytes)
        placed.append(i)
    return offsets


def _meet(a: LiveRange, b: LiveRange) -> bool:
    return a.start <= b.end and b.start <= a.end


def _hole(taken: list[tuple[int, int]], size: int) -> int:
    top, best, width = 0, -1, math.inf
    for start, end in taken:
        if size <= start - top < width:
            best, width = top, start - top
        top = max(top, end)
    return top if best < 0 else best


def _solve(ranges: Sequence[LiveRange], offsets: Sequence[int], load: int, seconds: float) -> tuple[list[int], int]:
    """Better offsets than the given ones, where found, and a lower bound on the total."""
    cp_model = cpsat.load()
    unit = math.gcd(*(r.bytes for r in ranges)) or 1
    limit = _total(ranges, offsets) // unit
    model = cp_model.CpModel()
    total = model.new_int_var(load // unit, limit, "total")
    places = [model.new_int_var(0, limit - r.bytes // unit, "") for r in ranges]
    solid = [(r, place) for r, place in zip(ranges, places, strict=True) if r.bytes]
    model.add_no_overlap_2d(
        [model.new_fixed_size_interval_var(r.start, r.end + 1 - r.start, "") for r, _ in solid],
        [model.new_fixed_size_interval_var(place, r.bytes // unit, "") for r, place in solid],
    )
    for r, offset, place in zip(ranges, offsets, places, strict=True):
        model.add(place + r.bytes // unit <= total)
        model.add_hint(place, offset // unit)
    model.add_hint(total, limit)
    model.minimize(total)
    status, solver = cpsat.run(cp_model, model, seconds)
    bound = max(load, math.ceil(solver.best_objective_bound - 1e-6) * unit)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return [solver.value(place) * unit for place in places], bound
    return list(offsets), load
