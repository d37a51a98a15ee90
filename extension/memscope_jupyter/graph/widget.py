"""The graph as a widget: what is drawn comes from memscope, moving about in it is the page's own business."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from memscope.layout.shown import peak_view
from memscope.picture import picture
from memscope.report.graph import GRAPH_STYLE
from memscope.report.html import graph_document
from memscope.sizes import format_bytes

from .navigation import follow
from .payload import index, picture_payload

if TYPE_CHECKING:
    from memscope.profile import Profile

_HERE = Path(__file__).parent
_SCRIPTS = ("camera.js", "scene.js", "view.js")  # one module: a widget's can't import from its neighbours


class GraphWidget(anywidget.AnyWidget):
    """The HLO graph of a profile, its peak's neighbourhood first.

    The page gets the first picture and the index once, with the widget itself. It asks for another picture by a
    message and is answered by one, as it is on its start with what has changed meanwhile: anywidget may drop updates
    of traits before a page is up.

    Attributes:
      selected: the `name` of the selected Buffer, or "". A node without a buffer is selected in the page alone.
    """

    _esm = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    _css = GRAPH_STYLE + (_HERE / "graph.css").read_text(encoding="utf-8")

    selected = traitlets.Unicode("").tag(sync=True)
    _first = traitlets.Dict().tag(sync=True)
    _index: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(self, profile: Profile, line_text: Callable[[str], str], **kwargs: Any) -> None:
        self._profile, self._graph = profile, profile.graph
        self._shown = peak_view(self._graph)
        self._latest: dict[str, Any] | None = None  # the first picture, which the page has already
        super().__init__(_first=self._picture(), _index=index(self._graph, line_text), **kwargs)
        self.on_msg(self._answer)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widget, with text and a still picture for where there are none."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is not None:
            bundle[0]["text/plain"] = (
                f"HLO graph of {self._profile.name}: peak {format_bytes(self._profile.peak_bytes)}"
            )
            bundle[0]["text/html"] = graph_document(self._profile)
        return bundle

    def _picture(self, focus: str = "") -> dict[str, Any]:
        return picture_payload(self._graph, picture(self._graph, self._shown), focus)

    def _answer(self, _: Any, request: dict[str, Any], __: Any) -> None:
        if request.get("kind") == "ready":
            self.send({"kind": "state", "selected": self.selected, "picture": self._latest})
            return
        try:
            self._shown = follow(self._graph, self._shown, request)
        except LookupError as error:
            self.send({"kind": "failed", "reason": str(error)})
            return
        focus = request.get("name", "") if request["kind"] in ("expand", "show") else ""
        self._latest = self._picture(focus)
        self.send({"kind": "picture", "picture": self._latest})


def graph_widget(profile: Profile, line_text: Callable[[str], str] = lambda source: "") -> GraphWidget:
    """A widget of `profile.graph` whose trait `selected` is the name of a Buffer, both ways.

    Args:
      line_text: the text of a line given as "knn.py:12", which the search looks through as well.
    """
    return GraphWidget(profile, line_text)
