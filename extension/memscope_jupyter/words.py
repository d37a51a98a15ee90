"""Words among the widgets, in the panel's own style."""

from __future__ import annotations

import ipywidgets


def framed(html: str) -> str:
    return f'<div class="memscope-panel ms-words">{html}</div>'


def words(html: str = "") -> ipywidgets.HTML:
    return ipywidgets.HTML(framed(html))
