"""The tab Graph: made when it is opened, and made anew when it is to show another profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets

from memscope import Profile

from .words import words

if TYPE_CHECKING:
    from .graph import GraphWidget


class GraphTab:
    """The graph of one profile at a time.

    Args:
      chosen: called with the name of the buffer that was selected in the graph.
      line_text: the source line behind its short name, for the search; "" where it can't be read.
    """

    def __init__(self, chosen: Callable[[str], None], line_text: Callable[[str], str]) -> None:
        self.root = ipywidgets.VBox([words("<p>Open this tab to draw the graph.</p>")])
        self.widget: GraphWidget | None = None
        self._chosen, self._line_text = chosen, line_text
        self._profile: Profile | None = None

    def show(self, profile: Profile, selected: str) -> None:
        """Draws the graph where it is not drawn yet."""
        if profile is self._profile:
            return
        from .graph import graph_widget

        old, self._profile = self.widget, profile
        self.widget = graph_widget(profile, self._line_text)
        self.widget.selected = selected
        self.widget.observe(self._on_selected, "selected")
        self.root.children = [self.widget]
        if old is not None:
            old.close()

    def select(self, profile: Profile, name: str) -> None:
        """Marks a buffer of the profile that is drawn."""
        if self.widget is not None and profile is self._profile:
            self.widget.selected = name

    def forget(self) -> None:
        self.widget = self._profile = None

    def _on_selected(self, change: dict[str, Any]) -> None:
        if change["owner"] is self.widget and change["new"]:
            self._chosen(change["new"])
