"""Which figure is which: what XLA reports, what it leaves out, and why two that stand side by side differ."""

from __future__ import annotations

from memscope import Plan, Point, Profile
from memscope.report.text import build_notes, uncounted
from memscope.sizes import format_bytes

from .state import State

FAR = 1.25
"""By how much a prediction and the confirmed peak may differ without a word."""


def account_notes(state: State) -> list[str]:
    """Sentences on the peak in the header: none where it is XLA's own figure and everything else agrees with it."""
    profile, plan = state.profile, state.plan
    if profile is None or plan is None:
        return []
    said = [*_of_plan(plan, profile), *_uncounted(plan.profile if plan.changed else profile)]
    if state.predicted is not None:
        said += _other_build(plan, state.predicted)
    return said


def _of_plan(plan: Plan, profile: Profile) -> list[str]:
    if plan.bounded:
        return [_bound(plan, profile)]
    as_written = [] if plan.changed else build_notes(profile)
    return [". ".join(note[:1].upper() + note[1:] for note in as_written) + "."] if as_written else []


def _uncounted(profile: Profile) -> list[str]:
    return [f"{note[:1].upper()}{note[1:]}." for note in uncounted(profile.uncounted)]


def _bound(plan: Plan, profile: Profile) -> str:
    most, reported = format_bytes(plan.peak_bytes), format_bytes(plan.compiled.peak_bytes)
    left_out = "and leaves out scratch of its library fusions, at most the rest"
    if plan.changed:
        return f"{most} is an upper bound: XLA reports {reported}, which the timeline draws, {left_out}."
    exact = format_bytes(profile.peak_bytes)
    return (
        f"{most} is an upper bound for the build that plain jax.jit makes: XLA reports {reported} {left_out}. "
        f"{exact}, in the timeline, is exact for the build without those fusions."
    )


def _other_build(plan: Plan, predicted: Point) -> list[str]:
    larger, smaller = max(plan.peak_bytes, predicted.peak_bytes), max(1, min(plan.peak_bytes, predicted.peak_bytes))
    if plan.bounded == predicted.bounded or larger < FAR * smaller:
        return []
    before = format_bytes(predicted.peak_bytes)
    if plan.bounded:
        return [
            f"Predicted were {before}, of a plan without XLA's library fusions. For this limit the build with them is "
            "taken, as it should run faster; it needs more."
        ]
    return [
        f"Predicted were at most {before}, of a plan with XLA's library fusions. For this limit the build without them "
        "is taken, whose account is exact."
    ]
