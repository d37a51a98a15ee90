"""Precedences that every order within a limit obeys, by minimum cuts.

If a node cannot run within the limit unless another has run before it, whatever else has, then that is a precedence.
Each makes others follow; and where a node can't run within the limit at all, no order does.
"""

from __future__ import annotations

import dataclasses
import time

from .bound import Cut, Cuts
from .problem import OrderProblem
from .reach import members


def tighten(problem: OrderProblem, limit: int, deadline: float, above: float = 0.8) -> OrderProblem | None:
    """The problem with the precedences that a peak of at most `limit` bytes implies; None if it rules out any order.

    Args:
      deadline: by `time.monotonic`; what was found by then is given.
      above: looks at nodes that need this fraction of the limit in any case.
    """
    while True:
        cuts = Cuts(problem)
        least = [cuts.least(node) for node in range(problem.size)]
        if any(cut.bytes > limit for cut in least):
            return None
        critical = sorted((n for n, cut in enumerate(least) if cut.bytes >= above * limit), key=lambda n: -least[n].bytes)
        found: set[tuple[int, int]] = set()
        for node in critical:
            found |= _around(cuts, node, least[node], limit, deadline)
            if found and len(found) > problem.size:
                break
        if not found:
            return problem
        before = [set(nodes) for nodes in problem.predecessors]
        for earlier, later in found:
            before[later].add(earlier)
        problem = dataclasses.replace(problem, predecessors=tuple(tuple(sorted(b)) for b in before))
        if _cyclic(problem):
            return None


def _cyclic(problem: OrderProblem) -> bool:
    try:
        Cuts(problem)
    except ValueError:
        return True
    return False


def _around(cuts: Cuts, node: int, least: Cut, limit: int, deadline: float) -> set[tuple[int, int]]:
    reach = cuts.reach
    everything = (1 << cuts.problem.size) - 1
    free = everything & ~(1 << node | reach.ancestors[node] | reach.descendants[node])
    found: set[tuple[int, int]] = set()
    may_before = least.before & free  # known to be possible before the node
    may_after = free & ~least.before
    for other in members(free):
        if time.monotonic() > deadline:
            break
        here = 1 << other
        if not may_after & here:
            cut = cuts.least(node, 0, everything & ~(here | reach.descendants[other]), late=True)
            if cut.bytes > limit:
                found.add((other, node))
                continue
            may_before |= cut.before & free
            may_after |= free & ~cut.before
        if not may_before & here:
            cut = cuts.least(node, here | reach.ancestors[other])
            if cut.bytes > limit:
                found.add((node, other))
                continue
            may_before |= cut.before & free
            may_after |= free & ~cut.before
    return found
