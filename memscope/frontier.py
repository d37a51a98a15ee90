"""The frontier: what each limit would cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._jax_private import api_boundary
from .plan import Plan, Request, request_plan
from .target import Target
from .trace import check_keywords

POINTS = 6


@dataclasses.dataclass(frozen=True)
class Point:
    """A limit in bytes, the peak of the plan for it as XLA accounts for it, and its predicted time ratio."""

    limit: int
    peak_bytes: int
    slowdown: float


@api_boundary
def frontier(
    fn: Callable[..., Any],
    *args: Any,
    target: str | Target | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    progress: Callable[[str], None] | None = None,
    **kwargs: Any,
) -> tuple[Point, ...]:
    """Plans for limits from the lowest peak that can be reached to today's.

    Args: as in `memscope.plan`.

    Returns:
      Points by rising limit; their peaks rise too.
    """
    check_keywords(fn, target)
    request = request_plan(
        fn, args, kwargs, target=target, progress=progress,
        static_argnums=static_argnums, static_argnames=static_argnames, donate_argnums=donate_argnums,
    )  # fmt: skip
    return tuple(Point(p.limit_bytes, p.peak_bytes, p.slowdown) for p in frontier_plans(request))


def frontier_plans(request: Request) -> Iterator[Plan]:
    """The plans of the frontier, one by one as they are made; by rising limit, and so by rising peak."""
    lowest = request.plan(1, best_effort=True)
    floor, top = lowest.peak_bytes, lowest.original_peak_bytes
    latest = dataclasses.replace(lowest, limit_bytes=floor, fits=True)
    yield latest
    ratio = (top / max(1, floor)) ** (1 / (POINTS - 1))
    for step in range(1, POINTS):
        limit = top if step == POINTS - 1 else int(floor * ratio**step)
        if limit <= latest.limit_bytes:
            continue
        made = request.plan(limit, best_effort=True)
        if made.peak_bytes >= latest.peak_bytes:
            latest = made
            yield made
