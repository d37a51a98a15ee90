"""The line above the buttons: the latest news, and what goes on."""

from __future__ import annotations

from html import escape

from .state import Message, State


def status_html(state: State) -> str:
    """Read out by a screen reader when it changes. News stay while other things go on in the background."""
    news = "" if state.message is None else _news(state.message)
    progress = (
        f'<div><span class="ms-spinner"></span>{escape(state.line)} ...</div>' if state.busy and state.line else ""
    )
    return f'<div class="memscope-panel ms-status" role="status">{news}{progress}</div>'


def _news(message: Message) -> str:
    next_step = f" {escape(message.next_step)}" if message.next_step else ""
    return f'<div><span class="ms-{message.tone.value}">{escape(message.text)}</span>{next_step}</div>'
