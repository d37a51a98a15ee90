"""What is shown next, when the page asks for more of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memscope.graph import HloGraph
from memscope.layout.shown import Shown, computation_view, node_view, peak_view, whole_view


def follow(graph: HloGraph, shown: Shown, request: Mapping[str, Any]) -> Shown:
    """The part of the graph that a request of the page leads to.

    Raises:
      LookupError: it names a node or a computation that is not there, or asks for something else.
    """
    match request.get("kind"):
        case "peak":
            return peak_view(graph)
        case "whole":
            return whole_view(shown.computation)
        case "expand":
            return shown.expanded(shown.computation.node[request["name"]].name)
        case "open":
            computation = graph.by_name[request["name"]]
            return computation_view(computation, computation.caller)
        case "show":
            return node_view(graph, request["name"])
    raise LookupError(f"no such request: {request.get('kind')!r}")
