"""Which nodes of a graph must run before which, as sets of bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


class Reach:
    """All ancestors and descendants of each node.

    Attributes:
      topological: the nodes, each after its predecessors.
      ancestors, descendants: for each node, bit `i` set for node `i`; a node is neither to itself.

    Raises:
      ValueError: the precedences have a cycle.
    """

    def __init__(self, predecessors: Sequence[Iterable[int]]) -> None:
        before = [set(nodes) for nodes in predecessors]
        after: list[list[int]] = [[] for _ in before]
        for node, earlier in enumerate(before):
            for e in earlier:
                after[e].append(node)
        self.topological = _topological(before, after)
        self.ancestors = [0] * len(before)
        self.descendants = [0] * len(before)
        for node in self.topological:
            for e in before[node]:
                self.ancestors[node] |= self.ancestors[e] | 1 << e
        for node in reversed(self.topological):
            for later in after[node]:
                self.descendants[node] |= self.descendants[later] | 1 << later

    def first(self, nodes: Iterable[int]) -> set[int]:
        """Those of the nodes that none of the others must run before."""
        nodes = set(nodes)
        mask = bits(nodes)
        return {node for node in nodes if not self.ancestors[node] & mask}

    def last(self, nodes: Iterable[int]) -> set[int]:
        """Those of the nodes that none of the others must run after."""
        nodes = set(nodes)
        mask = bits(nodes)
        return {node for node in nodes if not self.descendants[node] & mask}


def bits(nodes: Iterable[int]) -> int:
    """The set of nodes as an integer."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


def members(mask: int) -> Iterator[int]:
    """The nodes in a set of bits, in rising order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _topological(before: list[set[int]], after: list[list[int]]) -> tuple[int, ...]:
    waiting = [len(nodes) for nodes in before]
    order = [node for node, count in enumerate(waiting) if not count]
    for node in order:
        for later in after[node]:
            waiting[later] -= 1
            if not waiting[later]:
                order.append(later)
    if len(order) < len(before):
        raise ValueError("The precedences have a cycle: no order runs every node after its predecessors.")
    return tuple(order)
