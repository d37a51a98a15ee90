"""What the layout gets to see of a graph: few enough edges, and short enough, that a layered layout ends in time."""

from __future__ import annotations

import dataclasses

from ..graph import Edge, Node
from .shown import Shown, is_long, layers, neighbours


@dataclasses.dataclass(frozen=True)
class Box:
    """A node as it is drawn.

    Attributes:
      inputs: the parameters and constants it reads, drawn on its own box as on that of every other reader.
      hidden: neighbours that are not drawn.
    """

    node: Node
    inputs: tuple[Node, ...] = ()
    hidden: int = 0


@dataclasses.dataclass(frozen=True)
class Wire:
    """An edge between two boxes, by their place in `Skeleton.boxes`."""

    tail: int
    head: int
    edge: Edge


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """Boxes in the order of the schedule, the edges that are laid out, and those that are too long for it."""

    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    long: tuple[Wire, ...]


def skeleton(shown: Shown) -> Skeleton:
    """Takes the inputs out of the graph, and apart from the peak path's the edges that span too many layers."""
    computation = shown.computation
    boxes = tuple(_boxes(shown))
    place = {box.node.name: k for k, box in enumerate(boxes)}
    drawn = [e for e in computation.edges if e.tail in place and e.head in place]
    layer = layers(drawn)
    wires = [Wire(place[e.tail], place[e.head], e) for e in drawn if e.on_peak_path or not is_long(e, layer)]
    long = [Wire(place[e.tail], place[e.head], e) for e in drawn if not e.on_peak_path and is_long(e, layer)]
    return Skeleton(boxes, tuple(wires), tuple(long))


def _boxes(shown: Shown) -> list[Box]:
    computation, near = shown.computation, neighbours(shown.computation)
    inputs: dict[str, list[Node]] = {}
    for edge in computation.edges:
        if computation.node[edge.tail].is_input:
            inputs.setdefault(edge.head, []).append(computation.node[edge.tail])
    boxes = []
    for node in computation.nodes:
        if node.name in shown.nodes:
            unseen = set(near.get(node.name, ())) - shown.nodes
            hidden = sum(not computation.node[n].is_input for n in unseen)
            mine = sorted(inputs.get(node.name, ()), key=lambda n: (not n.on_peak_path, -n.bytes))
            boxes.append(Box(node, tuple(mine), hidden))
    return boxes
