"""Where XLA puts temporaries: its best-fit heap, simulated for modules that come without a buffer assignment.

XLA places buffers one after another, each into the smallest gap that is free while it is alive; it does so in two
orders, the largest first and the longest-lived first, and keeps the better one. What stays free in between is
fragmentation: bytes set aside though nothing lives there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .assignment import Position
from .place import Group

ALIGNMENT = 256  # of buffers on a GPU


@dataclasses.dataclass(frozen=True)
class Heap:
    """The piece of memory that holds the temporaries, and where in it each begins, by its first value. In bytes."""

    bytes: int
    offsets: Mapping[Position, int]


def simulate_heap(groups: Sequence[Group]) -> Heap:
    """The heap that XLA would make for the temporaries of these groups; those hosted in results are not in it."""
    own = [g for g in groups if g.kind == "temporary" and not g.hosted and g.bytes]
    orders: tuple[Callable[[Group], tuple[int, int]], ...] = (
        lambda g: (-g.bytes, -_length(g)),
        lambda g: (-_length(g), -g.bytes),
    )
    return min((_place_all(sorted(own, key=order)) for order in orders), key=lambda heap: heap.bytes)


def _place_all(groups: Sequence[Group]) -> Heap:
    # One row for each span of a buffer that is placed: first and last time, first byte and the one past the last.
    rows = np.zeros((sum(len(g.spans) for g in groups), 4), np.int64)
    used = 0
    offsets: dict[Position, int] = {}
    for group in groups:
        size = -(-group.bytes // ALIGNMENT) * ALIGNMENT
        there = rows[:used]
        alive = np.zeros(used, bool)
        for first, last in group.spans:
            alive |= (there[:, 0] <= last) & (first <= there[:, 1])
        start = _best_gap(there[alive, 2:], size)
        offsets[group.values[0]] = start
        for first, last in group.spans:
            rows[used] = first, last, start, start + size
            used += 1
    return Heap(int(rows[:, 3].max(initial=0)), offsets)


def _best_gap(around: np.ndarray, size: int) -> int:
    """Where the smallest gap between these (begin, end) that is large enough starts; the end of all without one."""
    if not len(around):
        return 0
    around = around[np.argsort(around[:, 0], kind="stable")]
    ends = np.maximum.accumulate(around[:, 1])
    free = np.concatenate([[0], ends[:-1]])
    gaps = around[:, 0] - free
    fitting = np.flatnonzero(gaps >= size)
    return int(free[fitting[np.argmin(gaps[fitting])]] if len(fitting) else ends[-1])


def _length(group: Group) -> int:
    return max(end for _, end in group.spans) - min(start for start, _ in group.spans)
