"""Good orders, fast: depth-first, greedy, and bisected by minimum cuts where most is held."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from .bound import Cuts
from .problem import Order, OrderProblem
from .reach import bits
from .state import State


def depth_first(problem: OrderProblem, generator: random.Random | None = None) -> Order:
    """Each node's predecessors right before it, the ones that bring most first; shuffled with a generator.

    The order of XLA's depth-first scheduler where no generator is given.
    """
    weight = [0] * problem.size
    for storage in problem.storages:
        for node in storage.starts:
            weight[node] += storage.bytes
    total = [0] * problem.size
    for node in _topological(problem):
        total[node] = weight[node] + max((total[p] for p in problem.predecessors[node]), default=0)
    done = [False] * problem.size
    order: list[int] = []
    roots = [node for node in range(problem.size) if not problem.successors[node]]
    if generator is not None:
        generator.shuffle(roots)
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, visited = stack.pop()
            if done[node]:
                continue
            if visited:
                done[node] = True
                order.append(node)
                continue
            stack.append((node, True))
            before = [p for p in problem.predecessors[node] if not done[p]]
            if generator is None:
                before.sort(key=lambda p: total[p])
            else:
                generator.shuffle(before)
            stack.extend((p, False) for p in before)
    return tuple(order)


def _topological(problem: OrderProblem) -> Order:
    state = State(problem)
    while state.ready:
        state.run(min(state.ready))
    return tuple(state.order)


def greedy(problem: OrderProblem, score: Callable[[int, int], tuple[int, ...]]) -> Order:
    """List scheduling: of the ready nodes the one of least score, by the bytes during it and their change."""
    state = State(problem)
    while state.ready:
        state.run(min(state.ready, key=lambda node: (*score(*state.step(node)), node)))
    return tuple(state.order)


def bisect(cuts: Cuts, order: Order, target: int, deadline: float, *, late: bool = False) -> Order:
    """Where most is held, moves what had better run on the other side of that node; then again in both halves.

    Args:
      target: a peak with which to stop: a lower bound, say.
      deadline: by `time.monotonic`.
      late: among the best places for a node, whether to take the last.
    """
    problem = cuts.problem
    line, best, best_peak = list(order), order, problem.peak(order)
    pins = [0, len(line)]  # positions across which nothing moves any more
    pinned: set[int] = set()
    while line and time.monotonic() < deadline:
        held = problem.held(line)
        peak = max(held)
        if peak < best_peak:
            best, best_peak = tuple(line), peak
        at = held.index(peak)
        if peak <= target or line[at] in pinned:
            break
        first = max(p for p in pins if p <= at)
        last = min(p for p in pins if p > at)
        low = bits(line[:first])
        cut = cuts.least_within(line[at], low, low | bits(line[first:last]), late=late)
        if cut.bytes >= best_peak:
            break
        node = line[at]
        part = line[first:last]
        before = [n for n in part if cut.before >> n & 1]
        line[first:last] = [*before, node, *(n for n in part if not cut.before >> n & 1 and n != node)]
        pins += [first + len(before), first + len(before) + 1]
        pinned.add(node)
    return best


def vary(problem: OrderProblem, order: Order, generator: random.Random, deadline: float, moves: int = 60) -> Order:
    """Another order of the same peak or a lower one: moves random nodes to other places."""
    line, limit = list(order), problem.peak(order)
    for _ in range(moves):
        if time.monotonic() > deadline:
            break
        node = generator.choice(line)
        moved = [n for n in line if n != node]
        time_ = {n: t for t, n in enumerate(moved)}
        first = max((time_[p] + 1 for p in problem.predecessors[node]), default=0)
        last = min((time_[s] for s in problem.successors[node]), default=len(moved))
        moved.insert(generator.randint(first, last), node)
        peak = problem.peak(moved)
        if peak <= limit:
            line, limit = moved, peak
    return tuple(line)
