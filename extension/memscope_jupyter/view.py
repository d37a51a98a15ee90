"""What the panel's own widgets have in common: one script each, and data that goes one way."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

_FRONT = pathlib.Path(__file__).parent / "front"

Handler = Callable[[dict[str, Any]], None]


def script(name: str) -> str:
    """A view's ES module with what all views share; nothing is loaded from elsewhere."""
    return "\n".join((_FRONT / part).read_text(encoding="utf-8") for part in ("common.js", name))


STYLE = (_FRONT / "panel.css").read_text(encoding="utf-8")


class View(anywidget.AnyWidget):
    """Shows `data`, and calls `handler` with each message from the page.

    A page may lose changes that come while it still loads a view's module, so the view says "hello" once it is
    there, and is sent the whole state.
    """

    _css = STYLE
    data = traitlets.Dict().tag(sync=True)

    def __init__(self, handler: Handler, **traits: Any) -> None:
        super().__init__(**traits)
        self._handler = handler
        self.on_msg(self._hear)

    def _hear(self, _: Any, content: dict[str, Any], buffers: Any) -> None:
        if content.get("type") == "hello":
            self.send_state([name for name in ("data", "selected") if self.has_trait(name)])
        self._handler(content)


class LimitBar(View):
    """The header and the limit slider.

    Messages: {"type": "hello"}, {"type": "limit", "limit": bytes} once the slider rests, and
    {"type": "typed", "text": "512MiB"}.
    `preview` is the limit under the hand; it stays in the browser.
    """

    _esm = script("limit.js")
    preview = traitlets.Float(0).tag(sync=True)


class Table(View):
    """A table. Messages: {"type": "select", "id": row}, {"type": "side", "side": name}."""

    _esm = script("table.js")
    selected = traitlets.Unicode("").tag(sync=True)


class StatusView(View):
    """What is bound, the latest news, and what goes on.

    Each click in the panel comes with {"type": "ping", "id": number}, which is answered at once: a page that gets no
    answer says that Python is busy.
    """

    _esm = script("status.js")

    def _hear(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        if content.get("type") == "ping":
            self.send({"type": "pong", "id": content["id"]})
        super()._hear(widget, content, buffers)


class SourceView(View):
    """A few lines of source, one of them marked."""

    _esm = script("source.js")


class TimelineView(View):
    """The chart. Messages: {"type": "select", "side": name, "id": buffer}.

    `limit` follows the slider in the browser.
    """

    _esm = script("timeline.js")
    limit = traitlets.Float(0).tag(sync=True)

    def _hear(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        if content.get("type") == "plotly?":
            from plotly.offline import get_plotlyjs

            self.send({"type": "plotly"}, [get_plotlyjs().encode()])
        else:
            super()._hear(widget, content, buffers)
