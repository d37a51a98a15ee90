"""One function on several targets, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._jax_private import api_boundary
from .errors import ArgumentError
from .plan import Plan, Request, request_plan
from .profile import Buffer
from .reasons import blockers
from .search import Search
from .target import Target, resolve
from .trace import check_keywords


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """What one target makes of the function. All sizes in bytes.

    Attributes:
      target, capacity_bytes: the place, and what a program may use there.
      peak_bytes: of the function as written, by XLA's compiler for that target.
      fits: as written.
      compiles: as written; where it does not, `peak_bytes` is an estimate.
      plan: what makes it fit, or comes nearest, where it does not fit as written; else None.
      blockers: where nothing fits, the buffers that hold the lowest peak, largest first, each with why it can't shrink.
    """

    target: Target
    peak_bytes: int
    fits: bool
    compiles: bool
    plan: Plan | None = dataclasses.field(repr=False)
    blockers: tuple[tuple[Buffer, str], ...] = dataclasses.field(default=(), repr=False)

    @property
    def capacity_bytes(self) -> int:
        return self.target.capacity_bytes

    @property
    def fits_rewritten(self) -> bool:
        """Whether the function fits, if need be as rewritten."""
        return self.fits if self.plan is None else self.plan.fits

    @property
    def lowest_limit_bytes(self) -> int:
        """A limit that can be met there: the peak of what fits, or the least that was reached."""
        return self.peak_bytes if self.plan is None else self.plan.peak_bytes

    @property
    def slowdown(self) -> float:
        """Predicted time of what fits over that of the function as written there: an estimate."""
        return 1.0 if self.plan is None else self.plan.slowdown

    def to_dict(self) -> dict[str, Any]:
        """Strings, numbers and flags, for JSON."""
        return {
            "target": self.target.name,
            "capacity_bytes": self.capacity_bytes,
            "peak_bytes": self.peak_bytes,
            "fits": self.fits,
            "compiles": self.compiles,
            "fits_rewritten": self.fits_rewritten,
            "lowest_limit_bytes": self.lowest_limit_bytes,
            "slowdown": self.slowdown,
        }


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """The rows, in the order of the targets asked for; iterates over them."""

    name: str
    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def to_html(self) -> str:
        """A page of its own: no scripts and nothing to load."""
        from .report.compare import comparison_page

        return comparison_page(self)

    def _repr_html_(self) -> str:
        from .report.compare import comparison_fragment

        return comparison_fragment(self)

    def __str__(self) -> str:
        from .report.compare import comparison_text

        return comparison_text(self)

    __repr__ = __str__


@api_boundary
def compare(
    fn: Callable[..., Any],
    *args: Any,
    targets: Sequence[str | Target],
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    progress: Callable[[str], None] | None = None,
    **kwargs: Any,
) -> Comparison:
    """Compiles `fn(*args, **kwargs)` for each target; where it does not fit, looks for a version that does.

    Args:
      targets: names of `memscope.targets()`, or Targets.
      fn, args, kwargs, static_argnums, static_argnames, donate_argnums, progress: as in `memscope.plan`.

    Raises:
      TargetError: there is no such target, or it can't be compiled for.
      TypeError: no targets, or what `memscope.plan` raises.

    Example:
      >>> print(memscope.compare(nearest, q, x, targets=["t4", "a100-40gb", "h100"]))
    """
    check_keywords(fn)
    if isinstance(targets, (str, Target)) or not targets:
        raise ArgumentError("targets is a list of names, as in targets=['t4', 'a100-40gb'].")
    places = [resolve(target) for target in targets]
    options = {"static_argnums": static_argnums, "static_argnames": static_argnames, "donate_argnums": donate_argnums}
    traced: dict[str, Request] = {}
    rows = []
    for place in places:
        if place.platform not in traced:
            traced[place.platform] = request_plan(fn, args, kwargs, target=place, progress=progress, **options)
        rows.append(row_of(on_target(traced[place.platform], place, progress)))
    return Comparison(next(iter(traced.values())).search.program.name, tuple(rows))


def on_target(request: Request, place: Target, progress: Callable[[str], None] | None) -> Request:
    """The same call on another target of the same platform: it need not be traced again."""
    if request.search.target == place:
        return request
    search = Search(request.search.program, place, progress or (lambda line: None))
    return dataclasses.replace(request, search=search)


def row_of(request: Request) -> Row:
    """What the target of a request makes of its function: compiles it, and looks for what fits where it does not.

    Raises:
      TargetError: it can't be compiled for that target.
    """
    place = request.search.target
    peak, compiles = request.search.original.peak_bytes, request.search.original.refused is None
    fits = request.search.as_written(place.capacity_bytes) is not None
    plan = None if fits else request.plan(place.capacity_bytes, best_effort=True)
    held = () if plan is None or plan.fits else blockers(plan.program, plan.profile, request.search.hindrances())
    return Row(place, peak, fits, compiles, plan, held)
