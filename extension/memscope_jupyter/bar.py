"""What the header and the limit slider are given."""

from __future__ import annotations

from typing import Any

from memscope import Plan, Target
from memscope.sizes import format_bytes

from .account import account_notes
from .state import Stage, State


def bar_data(state: State) -> dict[str, Any]:
    """The function as written, the frontier so far, the limit, and what is confirmed for it; sizes in bytes."""
    profile, plan = state.profile, state.plan
    assert profile is not None
    return {
        "name": state.name,
        "target": state.target.name,
        "place": _place(state.target),
        "placeNote": state.target.capacity_note,
        "capacity": state.target.capacity_bytes,
        "today": profile.peak_bytes,
        "held": profile.argument_bytes + profile.output_bytes - profile.alias_bytes,
        "floor": state.floor_bytes,
        "points": [
            {"limit": p.limit, "peak": p.peak_bytes, "slowdown": p.slowdown, "bounded": p.bounded} for p in state.points
        ],
        "note": _scale_note(state),
        "limit": state.limit,
        "confirmed": None if plan is None else _confirmed(plan, account_notes(state)),
    }


def _place(target: Target) -> str:
    """Where it will run, and what a program may use there."""
    if target.memory_bytes is None:
        return f"{target.name} ({format_bytes(target.capacity_bytes)})"
    capacity, memory = format_bytes(target.capacity_bytes), format_bytes(target.memory_bytes)
    return f"{target.name} (a program may use {capacity} of its {memory})"


def _scale_note(state: State) -> str:
    """What the marks on the slider are."""
    if state.stage is Stage.EXPLORING:
        return "planning"
    assert state.profile is not None
    floor, peak = state.floor_bytes, state.profile.peak_bytes
    if floor is not None and floor >= peak:
        return "no version takes less"
    inside = (floor or 0) <= state.target.capacity_bytes < peak
    marks = [f"\u2016 {_holds(state.target)}"] if inside else []
    return ", ".join([*(["\u25cb plans"] if len(state.points) > 1 else []), *marks])


def _holds(target: Target) -> str:
    capacity = format_bytes(target.capacity_bytes)
    return f"{target.name} {'holds' if target.memory_bytes is None else 'lets a program use'} {capacity}"


def _confirmed(plan: Plan, notes: list[str]) -> dict[str, Any]:
    facts = {"limit": plan.limit_bytes, "peak": plan.peak_bytes, "slowdown": plan.slowdown, "fits": plan.fits}
    return {**facts, "bounded": plan.bounded, "changed": plan.changed, "notes": notes}
