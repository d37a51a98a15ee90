"""The line above the buttons: what is bound, the latest news, and what goes on."""

from __future__ import annotations

from typing import Any

from memscope.sizes import format_bytes

from .state import Bound, Message, State


def status_data(state: State) -> dict[str, Any]:
    """What is bound and the news stay while other things go on in the background."""
    return {
        "bound": "" if state.bound is None else _bound(state.bound),
        "news": None if state.message is None else _news(state.message),
        "progress": f"{state.line} ..." if state.busy and state.line else "",
    }


def _bound(bound: Bound) -> str:
    most = "at most " if bound.bounded else ""
    return (
        f"{bound.name} is bound: {format_bytes(bound.limit_bytes)} at most, the limit it was made for; "
        f"its peak is {most}{format_bytes(bound.peak_bytes)}."
    )


def _news(message: Message) -> dict[str, str]:
    return {"text": message.text, "next": message.next_step, "tone": message.tone.value}
