"""What the page is told, as JSON: a picture with what can be done in it, and the index that it searches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from memscope.graph import Computation, HloGraph, Node
from memscope.layout.shown import peak_view
from memscope.picture import Picture
from memscope.report.graph import caption, graph_svg, legend


def picture_payload(graph: HloGraph, picture: Picture, focus: str = "") -> dict[str, Any]:
    """A picture; `focus` is the node that it is to be centred on."""
    computation = picture.shown.computation
    boxes = picture.skeleton.boxes
    return {
        "svg": graph_svg(picture, "HLO graph"),
        "legend": legend(picture),
        "caption": caption(picture, "they are drawn when one of their ends is selected"),
        "trail": _trail(graph, computation),
        "centres": picture.layout.centres,
        "long": [[wire.tail, wire.head] for wire in picture.skeleton.long],
        "nodes": {n.name: _node(graph, n) for box in boxes for n in (box.node, *box.inputs)},
        "hidden": picture.shown.hidden,
        "focus": focus,
        "is_peak": picture.shown == peak_view(graph),
    }


def index(graph: HloGraph, line_text: Callable[[str], str]) -> list[list[Any]]:
    """(instruction, what it is found by, its buffers) of every instruction outside of fusions."""
    text = functools.cache(line_text)
    return [
        [node.name, _found_by(node, text), list(node.buffers)]
        for computation in graph.computations
        if computation.role != "fusion"
        for node in computation.nodes
    ]


def _found_by(node: Node, line_text: Callable[[str], str]) -> str:
    array = f"{node.dtype}[{','.join(map(str, node.shape))}]"
    line = [] if node.source is None else [node.source, line_text(node.source)]
    return " ".join((node.name, node.op, node.opcode, array, *line, *node.buffers))


def _node(graph: HloGraph, node: Node) -> dict[str, Any]:
    opens = [[name, graph.by_name[name].role] for name in node.opens if name in graph.by_name]
    return {"buffers": list(node.buffers), "opens": opens}


def _trail(graph: HloGraph, computation: Computation) -> list[list[str]]:
    """(computation, what to call it, who runs it) from the program itself to the one that is shown."""
    trail = []
    here: Computation | None = computation
    while here is not None:
        text = "program" if here.caller is None else f"{here.role} of {here.caller}"
        trail.append([here.name, text, here.caller or ""])
        here = graph.by_name[here.parent] if here.parent else None
    return trail[::-1]
