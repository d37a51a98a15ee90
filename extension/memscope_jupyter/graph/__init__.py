"""The HLO graph in a notebook: one widget, drawn from the same SVG as the static page."""

from __future__ import annotations

from .widget import GraphWidget as GraphWidget
from .widget import graph_widget as graph_widget
