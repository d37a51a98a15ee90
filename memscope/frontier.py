"""The frontier: what each limit would cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ._jax_private import api_boundary
from .plan import Plan, Request, request_plan
from .target import Target
from .trace import check_keywords

POINTS = 6


@dataclasses.dataclass(frozen=True)
class Point:
    """A limit and what the plan for it takes.

    Attributes:
      limit: in bytes.
      peak_bytes: as XLA accounts for it.
      slowdown: predicted time over that of the function as written.
      bounded: the plan runs in XLA's default build, and `peak_bytes` is an upper bound.
    """

    limit: int
    peak_bytes: int
    slowdown: float
    bounded: bool = False


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
    lowest = floor_plan(request)
    plans = [lowest]
    for limit in frontier_limits(lowest):
        made = request.plan(limit, best_effort=True)
        if made.peak_bytes >= plans[-1].peak_bytes:
            plans.append(made)
    return tuple(point_of(made) for made in plans)


def floor_plan(request: Request) -> Plan:
    """The plan with the lowest peak that can be reached, for a limit of just that."""
    lowest = request.plan(1, best_effort=True)
    return dataclasses.replace(lowest, limit_bytes=lowest.peak_bytes, fits=True)


def frontier_limits(floor: Plan) -> tuple[int, ...]:
    """Limits above the floor up to today's peak, in equal ratios."""
    lowest, top = floor.peak_bytes, floor.original_peak_bytes
    ratio = (top / max(1, lowest)) ** (1 / (POINTS - 1))
    limits = (*(int(lowest * ratio**step) for step in range(1, POINTS - 1)), top)
    return tuple(limit for limit in dict.fromkeys(limits) if limit > lowest)


def point_of(plan: Plan) -> Point:
    return Point(plan.limit_bytes, plan.peak_bytes, plan.slowdown, plan.bounded)
