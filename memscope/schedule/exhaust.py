"""Exhaustive search for an order within a limit, over the sets of nodes that have run.

What is held after a set of nodes has run does not depend on their order, so a set that led nowhere once need not be
tried again. And where something can run within the limit after which no more is held than before, it may as well run
at once: what is held is submodular in the set, so everything that follows holds no more for it. In most gradients this
leaves little to choose.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from .problem import Order, OrderProblem
from .state import State

_TURN = 64
"""How many sets of nodes a search tries before another has its turn."""

_MOST_SETS = 1 << 19
"""How many sets of nodes a search keeps in memory."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """An order within the limit, or None; `complete` where there is surely none."""

    order: Order | None
    complete: bool


class Search:
    """Looks for an order whose peak is at most `limit` bytes.

    Args:
      guide: an order to follow where nothing else decides.
    """

    def __init__(self, problem: OrderProblem, limit: int, guide: Order) -> None:
        self._problem, self._limit = problem, limit
        self._rank = {node: i for i, node in enumerate(guide)}
        self._state = State(problem)
        self._entered: set[int] = set()
        self._expanded: set[int] = set()
        self._branches: list[tuple[int, list[int]]] = []  # how many nodes had run, and what else may run then

    def run(self, steps: int) -> Attempt | None:
        """Goes on for so many sets of nodes; None where that did not tell."""
        state = self._state
        for _ in range(steps):
            _advance(state, self._limit)
            if len(state.order) == self._problem.size:
                return Attempt(tuple(state.order), True)
            choices = [] if state.done in self._expanded else _choices(state, self._limit, self._rank)
            self._expanded.add(state.done)
            self._branches.append((len(state.order), choices))
            node = self._next()
            if node is None:
                return Attempt(None, True)
            state.run(node)
            self._entered.add(state.done)
        return None if len(self._expanded) < _MOST_SETS else Attempt(None, False)

    def _next(self) -> int | None:
        """The node to run next, after going back as far as needed; None where everything was tried."""
        state = self._state
        while self._branches:
            depth, choices = self._branches[-1]
            while len(state.order) > depth:
                state.back()
            while choices:
                node = choices.pop()
                then = state.done | 1 << node
                if then not in self._entered and then not in self._expanded:
                    return node
            self._branches.pop()
        return None


def first_to_tell(searches: Sequence[Search], deadline: float) -> tuple[int, Attempt]:
    """Runs the searches by turns until one of them finds an order or a proof: which one, and what it found.

    Args:
      deadline: by `time.monotonic`; then the attempt is not complete.
    """
    attempts: dict[int, Attempt] = {}
    while len(attempts) < len(searches) and time.monotonic() < deadline:
        for which, search in enumerate(searches):
            attempt = None if which in attempts else search.run(_TURN)
            if attempt is not None:
                attempts[which] = attempt
                if attempt.complete:
                    return which, attempt
    return 0, Attempt(None, False)


def _advance(state: State, limit: int) -> None:
    """Runs whatever may as well run at once."""
    moved = True
    while moved:
        moved = False
        for node in state.releasing():
            if state.step(node)[0] <= limit and not state.spoils_loan(node):
                state.run(node)
                moved = True


def _choices(state: State, limit: int, rank: dict[int, int]) -> list[int]:
    """The ready nodes that the limit allows, the most promising last."""
    steps = {node: state.step(node) for node in state.ready}
    allowed = [node for node, (during, _) in steps.items() if during <= limit]
    return sorted(allowed, key=lambda node: (steps[node][1], rank[node]), reverse=True)
