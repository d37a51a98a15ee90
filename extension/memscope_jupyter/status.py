"""The line above the buttons: what is bound, the latest news, and what goes on."""

from __future__ import annotations

from typing import Any

from memscope import Target
from memscope.sizes import format_bytes

from .state import Bound, Message, State


def status_data(state: State) -> dict[str, Any]:
    """What is bound and the news stay while other things go on in the background."""
    return {
        "bound": "" if state.bound is None else _bound(state.bound, state.target),
        "news": None if state.message is None else _news(state.message),
        "progress": f"{state.line} ..." if state.busy and state.line else "",
    }


def how_to_call(name: str, state: State) -> str:
    """What to do with the function that has just been bound to a name."""
    if state.target.is_here:
        return f"Call {name} as you call {state.name}."
    return f"Trace it, save it or export it for {state.target.name}."


def _bound(bound: Bound, target: Target) -> str:
    most = "at most " if bound.bounded else ""
    here = "" if target.is_here else f" It is for {target.name}: a call of it here raises TargetError."
    return (
        f"{bound.name} is bound: {format_bytes(bound.limit_bytes)} at most, the limit it was made for; "
        f"its peak is {most}{format_bytes(bound.peak_bytes)}.{here}"
    )


def _news(message: Message) -> dict[str, str]:
    return {"text": message.text, "next": message.next_step, "tone": message.tone.value}
