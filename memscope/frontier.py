"""The frontier: what each limit would cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ._jax_private import api_boundary
from .plan import request_plan
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
    floor = request.plan(1, best_effort=True)
    top = floor.original_peak_bytes
    points = [Point(floor.peak_bytes, floor.peak_bytes, floor.slowdown)]
    ratio = (top / max(1, floor.peak_bytes)) ** (1 / (POINTS - 1))
    for step in range(1, POINTS):
        limit = top if step == POINTS - 1 else int(floor.peak_bytes * ratio**step)
        if limit <= points[-1].limit:
            continue
        made = request.plan(limit, best_effort=True)
        if made.peak_bytes >= points[-1].peak_bytes:
            points.append(Point(limit, made.peak_bytes, made.slowdown))
    return tuple(points)
