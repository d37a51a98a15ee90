"""The tab Rewrite: what is done in words, what else could be, and the generated source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets

from memscope import Alternative

from .rewrite import alternative_columns, alternative_rows, rewrite_html, source_html
from .state import Stage, State
from .view import Table
from .words import button, framed, words

TITLES = {True: "Other axes and chunks", False: "Chunks instead"}
"""By whether the plan itself computes anything in chunks."""

EXPLAINED = """\
<p>Peaks marked \u2713 are XLA's account; the others are predicted until you choose one and XLA compiles it.</p>"""


class RewriteTab:
    """What a plan does, and the table of what else would work.

    Args:
      use: called with the alternative that is to be compiled.
    """

    def __init__(self, use: Callable[[Alternative], None]) -> None:
        self._use = use
        self._offered: tuple[Alternative, ...] = ()
        self._what, self._title, self._code = words(), words(), words()
        self.table = Table(self._on_table)
        self.button = button("Compile this way", self._on_button, disabled=True)
        self._others = ipywidgets.VBox([self._title, self.table, self.button])
        self.root = ipywidgets.VBox([self._what, self._others, self._code])
        self._free = True

    def show(self, state: State, old: State) -> None:
        """Draws what has changed."""
        self._free = not state.busy or state.stage is Stage.EXPLORING
        if (state.plan, state.alternatives, state.source) != (old.plan, old.alternatives, old.source):
            self._draw(state)
        self.button.disabled = not (self._free and self._is_another(self.table.selected))

    def forget(self) -> None:
        self._offered = ()

    def _draw(self, state: State) -> None:
        plan = state.plan
        self._offered = state.alternatives or ()
        self._what.value = framed(rewrite_html(plan))
        self._title.value = framed(f"<h4>{TITLES[plan is not None and bool(plan.loops)]}</h4>{EXPLAINED}")
        self._code.value = framed(source_html(state.name, state.source, plan))
        rows = alternative_rows(plan, self._offered) if plan is not None else []
        columns = alternative_columns() if rows else []
        self.table.data = {"columns": columns, "rows": rows, "sides": [], "side": "", "empty": "", "note": ""}
        self.table.selected = next((row["id"] for row in rows if row["marked"]), "")
        self._others.layout.display = "" if rows else "none"

    def _is_another(self, key: str) -> bool:
        return any(row["id"] == key and not row["marked"] for row in self.table.data.get("rows", ()))

    def _on_table(self, message: dict[str, Any]) -> None:
        if message["type"] == "select":
            self.table.selected = message["id"]
            self.button.disabled = not (self._free and self._is_another(message["id"]))

    def _on_button(self, _: Any) -> None:
        if self._is_another(self.table.selected):
            self._use(self._offered[int(self.table.selected)])
