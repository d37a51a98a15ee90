"""The line above the buttons: what goes on, or the latest news."""

from __future__ import annotations

from html import escape

from .state import Message, State


def status_html(state: State) -> str:
    """One line, read out by a screen reader when it changes."""
    if state.busy and state.line:
        inside = f'<span class="ms-spinner"></span>{escape(state.line)} ...'
    else:
        inside = "" if state.message is None else _news(state.message)
    return f'<div class="memscope-panel ms-status" role="status">{inside}</div>'


def _news(message: Message) -> str:
    next_step = f" {escape(message.next_step)}" if message.next_step else ""
    return f'<span class="ms-{message.tone.value}">{escape(message.text)}</span>{next_step}'
