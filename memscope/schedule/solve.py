"""From an ordering problem to the best order that was found, with a proved lower bound."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Mapping, Sequence

from ..sizes import format_bytes
from . import cpsat
from .bracket import CLOSE, COARSE, Bracket
from .heuristics import depth_first, vary
from .problem import Order, OrderProblem
from .reach import Reach
from .reduce import reduce

Progress = Callable[[str], None]

NEGLIGIBLE = (1e-3, 3e-5, 0.0)
"""Storages below these fractions of the peak are left out of the search, first more of them, then fewer, at last none.

They count in the answer's peak; a bound without them is a bound.
"""

REFINING_SHARE = 0.25
"""How much of the time small storages get at the most, where the gap without them is narrow."""

CANDIDATES, NEAR = 8, 0.02
"""How many orders are handed on, and how far above the best their peaks may be."""

VARIANTS, VARIANT_SECONDS = 4, 0.3
"""How many orders of the least peak there should be, and how long to look for them."""

LONG_SHARE = 0.75
"""The part of the time left in which a last limit is tried, before the solver gets the rest."""


@dataclasses.dataclass(frozen=True)
class Solution:
    """An order, and how far from the best it can be at most.

    Attributes:
      peak_bytes: what the order needs at once.
      lower_bound_bytes: no order needs less; proved.
      candidates: distinct orders, best first, whose peaks are equal or nearly so; the first is `order`. A heap may
        lay some of them out more tightly than others.
      remark: what a reader should know about the search, as that OR-Tools is missing; "" where nothing is.
    """

    order: Order
    peak_bytes: int
    lower_bound_bytes: int
    candidates: tuple[Order, ...]
    remark: str = ""

    @property
    def gap(self) -> float:
        """How much lower than `peak_bytes` the optimum may be, as a fraction of it."""
        return 1 - self.lower_bound_bytes / self.peak_bytes if self.peak_bytes else 0.0

    @property
    def optimal(self) -> bool:
        return self.lower_bound_bytes >= self.peak_bytes


def solve(
    problem: OrderProblem, seconds: float, hints: Sequence[Order] = (), progress: Progress = lambda message: None
) -> Solution:
    """The order of least peak found in the time, never worse than the best hint.

    Args:
      problem: nodes, precedences and storages.
      seconds: of search; a few more may go by for the bound of a large problem.
      hints: valid orders to start from, as XLA's own.
      progress: called with a line of text now and then; what it raises ends the search.

    Raises:
      ValueError: the precedences have a cycle, or a hint is no valid order.
    """
    for_variants = min(VARIANT_SECONDS, seconds / 10)
    deadline = time.monotonic() + seconds - for_variants
    for hint in hints:
        if not problem.is_order(hint):
            raise ValueError("A hint must run every node once, after its predecessors.")
    first = (*map(tuple, hints), Reach(problem.predecessors).topological, depth_first(problem))
    peaks = {order: problem.peak(order) for order in first}
    lower = 0
    for fraction in NEGLIGIBLE:
        reduction = reduce(problem, int(fraction * min(peaks.values())))
        bracket = Bracket(reduction.problem, lower, deadline, _reporter(progress))
        bracket.start([reduction.restrict(order) for order in _best(peaks, CANDIDATES)])
        bracket.narrow()
        bracket.persist(LONG_SHARE if cpsat.available() else 1.0)
        if cpsat.available():
            bracket.hand_over()
        lower = bracket.lower
        for order in map(reduction.expand, bracket.best(CANDIDATES)):
            peaks[order] = problem.peak(order)
        gap = min(peaks.values()) - lower
        if time.monotonic() > deadline or gap <= (CLOSE if fraction < NEGLIGIBLE[0] else 0) * lower:
            break
        if gap <= COARSE * lower:
            deadline = min(deadline, time.monotonic() + REFINING_SHARE * seconds)
    _add_variants(problem, peaks, time.monotonic() + for_variants)
    best = _best(peaks, CANDIDATES)
    peak = peaks[best[0]]
    return Solution(
        order=best[0],
        peak_bytes=peak,
        lower_bound_bytes=min(lower, peak),
        candidates=tuple(order for order in best if peaks[order] <= (1 + NEAR) * peak),
        remark="" if cpsat.available() else cpsat.MISSING,
    )


def _add_variants(problem: OrderProblem, peaks: dict[Order, int], deadline: float) -> None:
    """More orders of the least peak, where there are few, by moving nodes to and fro."""
    if not problem.size:
        return
    generator = random.Random(0)
    order = min(peaks, key=lambda order: (peaks[order], order))
    while sum(peak <= peaks[order] for peak in peaks.values()) < VARIANTS and time.monotonic() < deadline:
        variant = vary(problem, order, generator, deadline)
        if variant in peaks:
            break
        peaks[variant] = problem.peak(variant)


def _best(peaks: Mapping[Order, int], count: int) -> list[Order]:
    return sorted(peaks, key=lambda order: (peaks[order], order))[:count]


def _reporter(progress: Progress) -> Callable[[int, int], None]:
    def report(peak: int, lower: int) -> None:
        gap = f", at most {peak / lower - 1:.1%} above the best there is" if 0 < lower < peak else ""
        progress(f"an order that needs about {format_bytes(peak)}{gap}")

    return report
