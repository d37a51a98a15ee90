"""Good orders, fast: depth-first, greedy, and bisected by minimum cuts where most is held."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from .bound import Cuts
from .problem import Order, OrderProblem
from .reach import Reach, bits
from .state import State


def depth_first(problem: OrderProblem, generator: random.Random | None = None) -> Order:
    """Each node's predecessors right before it: those that bring most first, as XLA does, or at random."""
    if generator is None:
        brought = _brought(problem)
    done = [False] * problem.size
    order: list[int] = []

    def arranged(nodes: list[int]) -> list[int]:
        return generator.sample(nodes, len(nodes)) if generator else sorted(nodes, key=brought.__getitem__)

    stack = [(node, False) for node in arranged([n for n, after in enumerate(problem.successors) if not after])]
    while stack:
        node, ready = stack.pop()
        if done[node]:
            continue
        if ready:
            done[node] = True
            order.append(node)
        else:
            stack.append((node, True))
            stack.extend((n, False) for n in arranged([n for n in problem.predecessors[node] if not done[n]]))
    return tuple(order)


def _brought(problem: OrderProblem) -> list[int]:
    """Bytes that the nodes on the heaviest path to each node start, its own included."""
    brought = [0] * problem.size
    for storage in problem.storages:
        for node in storage.starts:
            brought[node] += storage.bytes
    for node in Reach(problem.predecessors).topological:
        brought[node] += max((brought[n] for n in problem.predecessors[node]), default=0)
    return brought


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
