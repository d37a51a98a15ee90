"""Which part of an HLO graph is shown: the peak's neighbourhood first, more of it on demand."""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Iterable

from ..graph import Computation, Edge, HloGraph

BUDGET = 300  # more boxes than that are no picture any more
FEW = 40  # boxes that all stand in the picture, also where nothing connects them with the peak
LONGEST = 8  # layers that an edge may span to be laid out
_FAR = 100  # short edges to one longer: what hangs on long edges alone would stand in the picture unconnected


@dataclasses.dataclass(frozen=True)
class Shown:
    """The nodes of one computation that are drawn.

    Inputs (parameters and constants) are drawn with each of their readers, and so are among `nodes` only where
    nothing reads them.
    """

    computation: Computation
    nodes: frozenset[str]

    @property
    def hidden(self) -> int:
        """How many nodes there are beside these."""
        return sum(not n.is_input for n in self.computation.nodes if n.name not in self.nodes)

    def expanded(self, name: str) -> Shown:
        """With all the neighbours of a node."""
        near = neighbours(self.computation).get(name, ())
        return dataclasses.replace(self, nodes=self.nodes | {n for n in near if not self.computation.node[n].is_input})


def peak_view(graph: HloGraph, budget: int = BUDGET) -> Shown:
    """What lies nearest to the peak path, in the computation that makes the largest buffer at the peak."""
    home = graph.home.get(graph.peak or "", graph.entry)
    return computation_view(home, graph.peak, budget)


def computation_view(computation: Computation, around: str | None = None, budget: int = BUDGET) -> Shown:
    """What lies nearest to the peak path in one computation; where that passes by, to one of its nodes."""
    whole = whole_view(computation)
    if _boxes(whole) <= min(FEW, budget):
        return whole
    seeds = [n.name for n in computation.nodes if n.on_peak_path and not n.is_input]
    if not seeds and around in computation.node:
        seeds = [around]
    return _grown(computation, seeds or _most_telling(computation), budget)


def node_view(graph: HloGraph, name: str, budget: int = BUDGET) -> Shown:
    """What lies nearest to a node; the readers of an input take its place."""
    home = graph.home[name]
    seeds = [name]
    if home.node[name].is_input:
        seeds = list(neighbours(home).get(name, ())) or [name]
    return _grown(home, seeds, budget)


def whole_view(computation: Computation) -> Shown:
    """All of a computation."""
    near = neighbours(computation)
    return Shown(computation, frozenset(n.name for n in computation.nodes if not n.is_input or n.name not in near))


def _boxes(shown: Shown) -> int:
    """How many boxes a picture has: one for each node, and one for each input that it reads."""
    node = shown.computation.node
    return len(shown.nodes) + sum(node[e.tail].is_input for e in shown.computation.edges)


def neighbours(computation: Computation) -> dict[str, list[str]]:
    """The nodes before and after each one that has any."""
    near: dict[str, list[str]] = {}
    for edge in computation.edges:
        near.setdefault(edge.tail, []).append(edge.head)
        near.setdefault(edge.head, []).append(edge.tail)
    return near


def layers(edges: Iterable[Edge]) -> dict[str, int]:
    """The length of the longest way to each node. Edges of one head stand together, heads in the schedule's order."""
    layer: dict[str, int] = {}
    for edge in edges:
        layer[edge.head] = max(layer.get(edge.head, 0), layer.setdefault(edge.tail, 0) + 1)
    return layer


def is_long(edge: Edge, layer: dict[str, int]) -> bool:
    """It spans more layers than a layout can bear."""
    return layer[edge.head] - layer[edge.tail] > LONGEST


def _most_telling(computation: Computation) -> list[str]:
    """Where to start without a peak path: the largest node, or the last of those that hold nothing."""
    best = max(reversed(computation.nodes), key=lambda n: (n.bytes, not n.is_input), default=None)
    return [best.name] if best else []


def _grown(computation: Computation, seeds: Iterable[str], budget: int) -> Shown:
    """Outward from the seeds, the largest first among the equally far, until the boxes would be too many."""
    steps, node = _steps(computation), computation.node
    order = {n.name: k for k, n in enumerate(computation.nodes)}
    inputs = collections.Counter(e.head for e in computation.edges if node[e.tail].is_input)
    queue = [(0, -node[s].bytes, order[s], s) for s in seeds]
    heapq.heapify(queue)
    chosen: dict[str, None] = {}
    room = budget
    while queue:
        distance, _, _, name = heapq.heappop(queue)
        if name in chosen:
            continue
        room -= 1 + inputs[name]
        if room < 0 and chosen:
            break
        chosen[name] = None
        for other, length in steps.get(name, ()):
            if other not in chosen:
                heapq.heappush(queue, (distance + length, -node[other].bytes, order[other], other))
    return Shown(computation, frozenset(chosen))


def _steps(computation: Computation) -> dict[str, list[tuple[str, int]]]:
    """The neighbours of each node that are no inputs, and how far away they are."""
    between = [e for e in computation.edges if not computation.node[e.tail].is_input]
    layer = layers(between)
    steps: dict[str, list[tuple[str, int]]] = {}
    for edge in between:
        length = _FAR if is_long(edge, layer) else 1
        steps.setdefault(edge.tail, []).append((edge.head, length))
        steps.setdefault(edge.head, []).append((edge.tail, length))
    return steps
