"""Precedences that every order within a limit obeys, by minimum cuts.

If a node cannot run within the limit unless another has run before it, whatever else has, then that is a precedence.
Each makes others follow; and where a node can't run within the limit at all, no order does.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable

from .bound import Cut, Cuts
from .problem import OrderProblem
from .reach import members

Pairs = set[tuple[int, int]]


def tighten(cuts: Cuts, limit: int, nodes: Iterable[int], deadline: float) -> Cuts | None:
    """The problem with the precedences that a peak of at most `limit` bytes implies; None if no order has one.

    Args:
      cuts: of the problem.
      nodes: the nodes to look at, those that need most first.
      deadline: by `time.monotonic`; what was found by then is given.
    """
    critical = [*nodes]
    quiet = 0  # how many nodes in turn have brought nothing new
    while quiet < len(critical):
        for node in critical:
            least = cuts.least(node)
            if least.bytes > limit:
                return None
            if time.monotonic() > deadline:
                return cuts
            pairs = _around(cuts, node, least, limit, deadline)
            quiet = 0 if pairs else quiet + 1
            if pairs:
                try:
                    cuts = Cuts(_with_precedences(cuts.problem, pairs))
                except ValueError:  # a cycle: both must run before the other
                    return None
            if quiet >= len(critical):
                break
    return cuts


def _with_precedences(problem: OrderProblem, pairs: Pairs) -> OrderProblem:
    before = [set(nodes) for nodes in problem.predecessors]
    for earlier, later in pairs:
        before[later].add(earlier)
    return dataclasses.replace(problem, predecessors=tuple(tuple(sorted(nodes)) for nodes in before))


def _around(cuts: Cuts, node: int, least: Cut, limit: int, deadline: float) -> Pairs:
    """Pairs of the node and another of which one must run before the other."""
    reach = cuts.reach
    free = cuts.everything & ~(1 << node | reach.ancestors[node] | reach.descendants[node])
    may = {True: least.before & free, False: free & ~least.before}  # known to be possible before the node, and after
    pairs: Pairs = set()
    for other in members(free):
        for before in (False, True):
            if may[before] >> other & 1:
                continue
            if time.monotonic() > deadline:
                return pairs
            cut = cuts.least_with(node, other, before=before, limit=limit)
            if cut is None:
                pairs.add((node, other) if before else (other, node))
            else:
                may[True] |= cut.before & free
                may[False] |= free & ~cut.before
    return pairs
