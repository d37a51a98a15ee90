"""The panel: header and slider, tabs, buttons. Composes the views, and hands each what it shows of the session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ipywidgets

from memscope import Buffer, Plan, Profile
from memscope.errors import ArgumentError, SizeError
from memscope.sizes import format_bytes

from .bar import bar_data
from .buffers import columns, note, rows
from .display import frame_class
from .graph_tab import GraphTab
from .rewrite_tab import RewriteTab
from .run import run_html
from .session import Session
from .source import excerpt, files_of, line_text
from .state import Message, Stage, State, Tone, error_message
from .status import how_to_call, status_data
from .targets_tab import TargetsTab
from .timeline import chart_fallback, chart_side, describe
from .view import LimitBar, SourceView, StatusView, Table, TimelineView
from .words import button, framed, words

TABS = ("Timeline", "Buffers", "Graph", "Rewrite", "Run", "Targets")
GRAPH = TABS.index("Graph")
AS_WRITTEN = "as written"

Bind = Callable[[str, Callable[..., Any]], None]
Post = Callable[[Callable[[], None]], None]


class Panel:
    """All widgets of one session.

    Args:
      session: what is shown; its work goes on in the background.
      name: what Apply binds the rewritten function to.
      bind: gives a value a name in the user's namespace.
      here: gives what has something done later on the thread that it is called on. Widgets are touched on the thread
        alone that hears the page, which need not be the one that runs cells.
      settled: called after the user has taken a plan, and when the panel closes: what is stored of it has changed.
    """

    def __init__(
        self, session: Session, name: str, bind: Bind, here: Callable[[], Post], settled: Callable[[State, bool], None]
    ) -> None:
        self._session: Session | None = session
        self._name, self._bind, self._settled = name, bind, settled
        self._here, self._post = here, here()
        self._showing = threading.RLock()
        self._hears = threading.current_thread()
        self._shown = State(name=session.state.name, target=session.state.target)
        self._latest = session.state
        self._posted = self._seen = False
        self._side, self._selected = "before", ""
        self._files = files_of(session.program)
        self._make_views(session)
        self.root = self._composed()
        self._show(session.state)
        session.listen(self._hear)

    @property
    def model_id(self) -> str:
        return str(self.root.model_id)

    @property
    def state(self) -> State:
        """The latest, whether the page shows it yet or not."""
        return self._latest

    def close(self) -> None:
        """Ends the session, and takes the panel off the page."""
        with self._showing:
            if self._session is None:
                return
            session, last = self._session, self._latest
            self._session = None
            session.close()
            self._settled(last, True)
            for widget in (self._link, *_all_widgets(self.root)):
                widget.close()
            self._shown = self._latest = session.state
            self.graph.forget()
            self.rewrite.forget()
            self._files = {}

    # Widgets.

    def _make_views(self, session: Session) -> None:
        self.bar = LimitBar(self._on_bar)
        self.chart = TimelineView(self._on_chart)
        self.table = Table(self._on_table)
        self.source = SourceView(lambda message: None)
        self.rewrite = RewriteTab(session.instead)
        self.graph = GraphTab(self._on_graph, lambda source: line_text(source, self._files))
        self._run = words()
        self.targets = TargetsTab(session.state.name, session.compare)
        self.status = StatusView(self._on_status)
        self.apply = button(f"Apply as {self._name}", self._on_apply, "primary")
        self.check = button("Run and check", self._on_check)
        self.file = ipywidgets.Text(f"{self._name}.py", layout={"width": "170px"})
        self.file.tooltip = "File to export to: .py is source that needs JAX alone, .jaxexport a compiled artifact"
        self.export = button("Export", self._on_export)
        self.cancel = button("Cancel", lambda _: session.cancel())
        self.closing = button("Close", lambda _: self.close())
        self.closing.add_class("ms-close")
        self._link = ipywidgets.jslink((self.bar, "preview"), (self.chart, "limit"))

    def _composed(self) -> ipywidgets.VBox:
        pages = [self.chart, self.table, self.graph.root, self.rewrite.root, self._run, self.targets.root]
        self.tabs = ipywidgets.Tab(pages, titles=TABS)
        self.tabs.observe(self._on_tab, "selected_index")
        buttons = ipywidgets.HBox([self.apply, self.check, self.file, self.export, self.cancel, self.closing])
        buttons.add_class("memscope-buttons")
        self.cancel.add_class("ms-right")
        root = ipywidgets.VBox([self.bar, self.tabs, self.source, self.status, buttons])
        root.add_class("memscope-frame")
        return root.add_class(frame_class(str(root.model_id)))

    # From the session to the page.

    def _hear(self, state: State) -> None:
        """On whichever thread: notes the latest state, and has it shown."""
        self._latest = state
        if not self._posted:
            self._posted = True
            self._post(self._catch_up)

    def _catch_up(self) -> None:
        with self._showing:
            self._posted = False
            if self._session is not None:
                self._show(self._latest)

    def _show(self, state: State) -> None:
        old, self._shown = self._shown, state
        if state.profile is None:
            return
        if self._side == "after" and state.rewritten is None:
            self._side, self._selected = "before", ""
        self.bar.data = bar_data(state)
        if (state.profile, state.rewritten) != (old.profile, old.rewritten):
            self._show_profiles(state)
        self.rewrite.show(state, old)
        self.targets.show(state, old)
        if state.checked is not old.checked or state.plan is not old.plan:
            self._run.value = framed(run_html(state, self._abstract))
        self.status.data = status_data(state)
        self._enable(state)

    def _show_profiles(self, state: State) -> None:
        assert state.profile is not None
        if self._buffer() is None:
            largest = self._profile(self._side).largest_at_peak
            self._selected = largest.name if largest else ""
        self._show_chart(state)
        self._show_table(state)
        self._show_selection()
        self._show_graph()

    def _show_chart(self, state: State) -> None:
        assert state.profile is not None
        after, limit = state.rewritten, state.rewritten_limit
        title = f"{state.change} for {format_bytes(limit)}" if limit else "lowest possible"
        self.chart.data = {
            "before": chart_side(state.profile, "before", AS_WRITTEN),
            "after": chart_side(after, "after", title) if after else None,
            "change": state.change,
            "selected": [self._side, self._selected],
            "fallback": chart_fallback(state.profile),
        }

    def _show_table(self, state: State) -> None:
        shown = rows(self._profile(self._side))
        self.table.data = {
            "columns": columns(),
            "rows": shown,
            "sides": [("before", AS_WRITTEN), ("after", state.change)] if state.rewritten is not None else [],
            "side": self._side,
            "empty": "no buffers",
            "note": note(shown),
        }

    def _show_selection(self) -> None:
        """The buffer under the eye, in every view at once."""
        self.table.selected = self._selected
        self.source.data = self._source_data()
        self.graph.select(self._profile(self._side), self._selected)

    def _show_graph(self) -> None:
        if self.tabs.selected_index == GRAPH and self._shown.profile is not None:
            self.graph.show(self._profile(self._side), self._selected)

    def _source_data(self) -> dict[str, Any]:
        buffer = self._buffer()
        if buffer is None:
            return {"facts": "No buffer is selected.", "file": "", "lines": [], "marked": 0}
        found = excerpt(buffer.source, self._files)
        return {
            "facts": describe(buffer, self._profile(self._side)),
            "file": buffer.source or "no line of yours: the caller's, or XLA's own",
            "lines": [] if found is None else [list(pair) for pair in found.lines],
            "marked": 0 if found is None else found.marked,
        }

    def _enable(self, state: State) -> None:
        confirmed = state.plan is not None and state.plan.fits
        free = not state.busy or state.stage is Stage.EXPLORING
        self.apply.disabled = not (confirmed and free)
        self.export.disabled = not (confirmed and free)
        self.check.disabled = not (confirmed and free and state.target.is_here) or self._abstract
        self.cancel.disabled = not state.busy

    @property
    def _abstract(self) -> bool:
        return self._session is None or self._session.abstract

    def _profile(self, side: str) -> Profile:
        found = self._shown.rewritten if side == "after" else self._shown.profile
        assert found is not None
        return found

    def _buffer(self) -> Buffer | None:
        return next((b for b in self._profile(self._side).buffers if b.name == self._selected), None)

    # From the page to the session.

    def _on_status(self, message: dict[str, Any]) -> None:
        """Something was pressed, or a page has opened: from now on this is the thread that hears it."""
        with self._showing:
            if self._session is None:
                return
            self._post = self._here()
            if threading.current_thread() is not self._hears:
                self._hears = threading.current_thread()
                self._call_here()
            self._catch_up()

    def _call_here(self) -> None:
        """Has the kernel hand on what each widget's page says to this thread: it goes to the one that wrote last."""
        for widget in _all_widgets(self.root):
            if isinstance(widget, ipywidgets.DOMWidget):
                widget.send({"type": "here"})

    def _on_bar(self, message: dict[str, Any]) -> None:
        session = self._session
        if session is None:
            return
        if message["type"] == "hello":
            self._welcome(session)
        elif message["type"] == "limit":
            session.plan(int(message["limit"]))
        elif message["type"] == "typed":
            self._on_typed(session, message["text"])

    def _welcome(self, session: Session) -> None:
        """Somebody looks: only now the frontier is worth its time, and a notebook that runs without a page saves it."""
        if not self._seen:
            self._seen = True
            session.explore()

    def _on_typed(self, session: Session, text: str) -> None:
        try:
            limit = session.limit_of(text)
        except (SizeError, ArgumentError) as error:
            session.say(error_message(error))
        else:
            session.plan(limit)

    def _on_chart(self, message: dict[str, Any]) -> None:
        if message["type"] == "select":
            self.select(message["side"], message["id"])

    def _on_table(self, message: dict[str, Any]) -> None:
        if message["type"] == "side":
            largest = self._profile(message["side"]).largest_at_peak
            self.select(message["side"], largest.name if largest else "")
        elif message["type"] == "select":
            self.select(self._side, message["id"])

    def select(self, side: str, name: str) -> None:
        """Shows one buffer in every view."""
        if (side, name) == (self._side, self._selected):
            return
        turned = side != self._side
        self._side, self._selected = side, name
        if turned:
            self._show_table(self._shown)
            self._show_graph()
        self.chart.data = {**self.chart.data, "selected": [side, name]}
        self._show_selection()

    def _on_apply(self, _: Any) -> None:
        session, plan = self._session, self._confirmed_plan()
        if session is not None and plan is not None:
            self._bind(self._name, plan.fn)
            session.bound(self._name, plan)
            session.say(Message(how_to_call(self._name, self._latest), tone=Tone.DONE))
            self._settled(self._latest, False)

    def _on_check(self, _: Any) -> None:
        if self._session is not None and self._confirmed_plan() is not None:
            self.tabs.selected_index = TABS.index("Run")
            self._session.check()

    def _on_export(self, _: Any) -> None:
        if self._session is not None and self._confirmed_plan() is not None:
            self._session.export(self.file.value)

    def _confirmed_plan(self) -> Plan | None:
        """The plan for the limit on the slider; a click may come before the page knows that it is not there yet."""
        plan = self._latest.plan
        if plan is not None and plan.fits:
            return plan
        if self._session is not None and plan is None:
            self._session.say(Message("This limit is still being planned.", "Press again once XLA has confirmed it."))
        return None

    def _on_tab(self, change: dict[str, Any]) -> None:
        if change["new"] == GRAPH:
            self._show_graph()

    def _on_graph(self, name: str) -> None:
        self.select(self._side, name)


def _all_widgets(root: ipywidgets.Widget) -> list[ipywidgets.Widget]:
    """A widget and all that it is made of, the innermost first."""
    parts = [*getattr(root, "children", ()), *(getattr(root, part, None) for part in ("layout", "style"))]
    below = [w for part in parts if isinstance(part, ipywidgets.Widget) for w in _all_widgets(part)]
    return [*below, root]
