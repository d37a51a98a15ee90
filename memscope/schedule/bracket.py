"""The least peak of a problem, closed in on from both sides: better orders from above, proofs from below."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable

from . import solver
from .bound import Cuts, lower_bound
from .exhaust import Search, first_to_tell
from .flow import UNCUT
from .heuristics import bisect, depth_first, greedy
from .problem import Order, OrderProblem
from .reduce import reduce
from .tighten import tighten

DEPTH_FIRST, BISECTED = 20, 4
"""How many random depth-first orders are tried, and how many of the best orders are bisected."""

CLOSE = 0.002
"""A gap, as a fraction of the peak, that is not worth more time."""

COARSE = 0.01
"""A gap below which limits that did not tell at first are left for a greater effort."""

RESTARTS = 0.15
"""The part of the time left that more random orders get, before the greater effort."""

EFFORTS = ((0.4, CLOSE), (1.5, COARSE))
"""Seconds for each step with one limit, and the gap that is worth them: first for all limits, then for what is open."""

CRITICAL = 0.5
"""How much of a limit a node needs in any case to be asked what the limit implies."""

_LIST_SCHEDULES: tuple[Callable[[OrderProblem], Order], ...] = (
    lambda problem: greedy(problem, lambda during, change: (change, during)),
    lambda problem: greedy(problem, lambda during, change: (during, change)),
)


class Bracket:
    """The best orders so far and the lower bound.

    Attributes:
      lower: no order needs fewer bytes; proved.
    """

    def __init__(self, problem: OrderProblem, lower: int, deadline: float, found: Callable[[int, int], None]) -> None:
        self.problem = problem
        self.lower = lower
        self._deadline = deadline
        self._found = found
        self._cuts = Cuts(problem)
        self._pool: dict[Order, int] = {}
        self._ceiling = [UNCUT] * problem.size  # for each node, the least that an order holds while it runs
        self._tried: dict[int, float] = {}  # limits that did not tell, with the effort
        # What is held is a multiple of the unit and the extra bytes of one node.
        self._unit = math.gcd(*(s.bytes for s in problem.storages)) or 1
        self._rests = {0, *problem.extra}
        self._generator = random.Random(0)

    @property
    def peak(self) -> int:
        return min(self._pool.values())

    @property
    def order(self) -> Order:
        return min(self._pool, key=self._pool.__getitem__)

    def best(self, count: int) -> list[Order]:
        """The best orders, best first."""
        return sorted(self._pool, key=self._pool.__getitem__)[:count]

    def offer(self, order: Order) -> None:
        """Takes an order into account."""
        before = min(self._pool.values(), default=None)
        held = self.problem.held(order)
        self._pool[order] = max(held, default=0)
        for node, bytes_ in zip(order, held, strict=True):
            self._ceiling[node] = min(self._ceiling[node], bytes_)
        if before is not None and self._pool[order] < before:
            self._found(self.peak, self.lower)

    def _raise(self, limit: int) -> None:
        """Notes that no order stays within the limit."""
        self.lower = max(self.lower, min(self._rounded(limit, rest) + self._unit for rest in self._rests))
        self._found(self.peak, self.lower)

    def _rounded(self, limit: int, rest: int) -> int:
        return (limit - rest) // self._unit * self._unit + rest

    def is_open(self, gap: float = CLOSE) -> bool:
        return self.peak - self.lower > gap * self.peak and time.monotonic() < self._deadline

    def start(self, hints: Iterable[Order]) -> None:
        """Heuristic orders, and the bound by minimum cuts."""
        for hint in hints:
            self.offer(hint)
        for heuristic in (depth_first, *_LIST_SCHEDULES, *[self._random] * DEPTH_FIRST):
            if time.monotonic() < self._deadline:
                self.offer(heuristic(self.problem))
        self.lower = max(self.lower, lower_bound(self._cuts, self._ceiling, self._deadline))
        for order in self.best(BISECTED):
            for late in (False, True):
                if self.is_open():
                    self.offer(bisect(self._cuts, order, self.lower, self._deadline, late=late))

    def _random(self, problem: OrderProblem) -> Order:
        return depth_first(problem, self._generator)

    def restart(self, share: float) -> None:
        """Bisects more random orders for a share of the time left."""
        until = time.monotonic() + share * (self._deadline - time.monotonic())
        while self.is_open(COARSE) and time.monotonic() < until:
            late = self._generator.random() < 0.5
            self.offer(bisect(self._cuts, self._random(self.problem), self.lower, until, late=late))

    def narrow(self) -> None:
        """Tries limits between the bound and the peak, with more effort where less didn't tell."""
        for effort, gap in EFFORTS:
            if not self.is_open(gap):
                break
            if self._tried:
                self.restart(RESTARTS)
            self._within(self.lower, effort)
            doubtful = self._from_above(effort)
            while self.is_open() and doubtful - self.lower > COARSE * doubtful:
                limit = (self.lower + doubtful) // 2
                if self._within(limit, effort):
                    doubtful = self._from_above(effort)
                elif self.lower <= limit:
                    doubtful = limit

    def persist(self, share: float) -> None:
        """Spends a share of the time left on a limit just below the peak, where the gap is worth it."""
        if self.is_open(COARSE):
            self._within(int(self.peak * (1 - CLOSE)), share * (self._deadline - time.monotonic()) / 2)

    def _from_above(self, effort: float) -> int:
        """Tries limits just below the peak while that brings better orders; gives the one that did not tell."""
        while self.is_open():
            limit = int(self.peak * (1 - CLOSE))
            within = self._within(limit, effort)
            if within is None:
                return limit
            if within and self.is_open():
                self._within((self.lower + self.peak) // 2, effort)
        return self.peak

    def _within(self, limit: int, effort: float) -> bool | None:
        """Whether an order stays within the limit; None where the effort, in seconds for each step, didn't tell."""
        limit = max(self._rounded(limit, rest) for rest in self._rests)
        if limit < self.lower:
            return False
        if self._tried.get(limit, 0) >= effort:
            return None
        tight = self._tight(limit, self._until(effort))
        if tight is None:
            self._raise(limit)
            return False
        # Time may run backwards: what is hard from one side is often easy from the other.
        turns = (_same, _backwards)
        rests = [reduce(problem) for problem in (tight.problem, tight.problem.reversed())]
        guides = [rest.restrict(turn(self.order)) for rest, turn in zip(rests, turns, strict=True)]
        searches = [Search(rest.problem, limit, guide) for rest, guide in zip(rests, guides, strict=True)]
        which, attempt = first_to_tell(searches, self._until(2 * effort))
        if attempt.order is not None:
            order = turns[which](rests[which].expand(attempt.order))
            self.offer(order)
            self.offer(bisect(self._cuts, order, self.lower, self._until(effort)))
            return True
        if attempt.complete:
            self._raise(limit)
            return False
        self._tried[limit] = effort
        return None

    def _tight(self, limit: int, deadline: float) -> Cuts | None:
        """The problem with what the limit implies, as far as the nodes tell that need most of it in any case."""
        needs = {
            node: self._cuts.least(node).bytes
            for node, bytes_ in enumerate(self._ceiling)
            if bytes_ >= CRITICAL * limit and time.monotonic() < deadline
        }
        critical = sorted((n for n in needs if needs[n] >= CRITICAL * limit), key=lambda n: -needs[n])
        return tighten(self._cuts, limit, critical, deadline)

    def _until(self, seconds: float) -> float:
        return min(self._deadline, time.monotonic() + seconds)

    def hand_over(self) -> None:
        """Lets the solver have the time that is left, where the gap is worth it."""
        if not self.is_open(COARSE):
            return
        tight = self._tight(self.peak - 1, self._deadline)
        if tight is None:
            self._raise(self.peak - 1)
            return
        answer = solver.improve(
            tight.problem, self.order, self.lower, self._deadline, lambda peak: self._found(peak, self.lower)
        )
        self.lower = max(self.lower, min(answer.lower_bound, self.peak))
        if answer.order is not None:
            self.offer(answer.order)


def _same(order: Order) -> Order:
    return order


def _backwards(order: Order) -> Order:
    return order[::-1]
