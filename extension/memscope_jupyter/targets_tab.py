"""The tab Targets: several GPUs side by side, compiled for when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from .state import Stage, State
from .targets import ALL, USUAL, compiler_missing, left, table_data, targets_html
from .view import Table
from .words import button, words


class TargetsTab:
    """A table of targets, and the buttons that have it filled.

    Args:
      name: of the function.
      compare: called with the names of targets that are to be compiled for.
    """

    def __init__(self, name: str, compare: Callable[[Sequence[str]], None]) -> None:
        missing = compiler_missing()
        self.table = Table(self._on_table)
        self.usual = button(f"Compare {len(USUAL)} GPUs", lambda _: compare(USUAL), "primary")
        self.all = button(f"All {len(ALL)} GPUs", lambda _: compare(ALL))
        buttons = ipywidgets.HBox([self.usual, self.all])
        buttons.layout.display = "none" if missing else ""
        self.root = ipywidgets.VBox([words(targets_html(name, missing)), self.table, buttons])

    def show(self, state: State, old: State) -> None:
        """Draws what has changed."""
        if (state.places, state.compared, state.stage) != (old.places, old.compared, old.stage):
            self.table.data = table_data(state)
        free = not state.busy or state.stage is Stage.EXPLORING
        self.usual.disabled = not (free and left(state, USUAL))
        self.all.disabled = not (free and left(state, ALL))

    def _on_table(self, message: dict[str, Any]) -> None:
        if message["type"] == "select":
            self.table.selected = message["id"]
