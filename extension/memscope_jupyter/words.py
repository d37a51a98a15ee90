"""Words and buttons in the panel's own style."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets


def framed(html: str) -> str:
    return f'<div class="memscope-panel ms-words">{html}</div>'


def words(html: str = "") -> ipywidgets.HTML:
    return ipywidgets.HTML(framed(html))


def button(label: str, pressed: Callable[[Any], None], style: str = "", disabled: bool = False) -> ipywidgets.Button:
    layout = {"width": "auto", "align_self": "flex-start"}
    made = ipywidgets.Button(description=label, button_style=style, disabled=disabled, layout=layout)
    made.on_click(pressed)
    return made
