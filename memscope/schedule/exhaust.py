"""Exhaustive search for an order within a limit, over the sets of nodes that have run.

What is held after a set of nodes has run does not depend on their order, so a set that led nowhere once need not be
tried again. And where something can run within the limit after which no more is held than before, it may as well run
at once: what is held is submodular in the set, so everything that follows holds no more for it. In most gradients this
leaves little to choose.
"""

from __future__ import annotations

import dataclasses
import itertools
import time

from .problem import Order, OrderProblem
from .state import State

_CHECKED_EVERY = 64


@dataclasses.dataclass(frozen=True)
class Attempt:
    """An order within the limit, or None; `complete` where there is surely none."""

    order: Order | None
    complete: bool


def order_within(problem: OrderProblem, limit: int, guide: Order, deadline: float, states: int = 1 << 19) -> Attempt:
    """Looks for an order whose peak is at most `limit` bytes.

    Args:
      guide: an order to follow where nothing else decides.
      deadline: by `time.monotonic`.
      states: how many sets of nodes to try at most.
    """
    rank = {node: i for i, node in enumerate(guide)}
    state = State(problem)
    entered: set[int] = set()
    expanded: set[int] = set()
    branches: list[tuple[int, list[int]]] = []  # how many nodes had run, and what else may run then
    for count in itertools.count():
        _advance(state, limit)
        if len(state.order) == problem.size:
            return Attempt(tuple(state.order), True)
        choices = [] if state.done in expanded else _choices(state, limit, rank)
        expanded.add(state.done)
        branches.append((len(state.order), choices))
        node = _next(state, branches, entered, expanded)
        if node is None:
            return Attempt(None, True)
        state.run(node)
        entered.add(state.done)
        if len(expanded) > states or (count % _CHECKED_EVERY == 0 and time.monotonic() > deadline):
            return Attempt(None, False)
    raise AssertionError("the count has no end")


def _next(state: State, branches: list[tuple[int, list[int]]], entered: set[int], expanded: set[int]) -> int | None:
    """The node to run next, after going back as far as needed; None where everything was tried."""
    while branches:
        depth, choices = branches[-1]
        while len(state.order) > depth:
            state.back()
        while choices:
            node = choices.pop()
            then = state.done | 1 << node
            if then not in entered and then not in expanded:
                return node
        branches.pop()
    return None


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
