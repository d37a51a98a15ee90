"""The tab Run in words: what was checked, and what was measured beside what was predicted."""

from __future__ import annotations

from html import escape

from memscope import Check, Plan
from memscope.lines import format_seconds
from memscope.sizes import format_bytes

from .rewrite import accounted, figures_table
from .state import State


def run_html(state: State, abstract: bool) -> str:
    """What the tab says at any time; the last result stays, with the limit it is for.

    Args:
      state: its plan is the one on show, None while the next one is made; its latest check may be one of another plan.
      abstract: there are no values to run on.
    """
    checked = state.checked
    if not state.target.is_here:
        place = escape(state.target.name)
        return (
            f"<p>{escape(state.name)} can't run here, as no {place} is attached: export it and run it on that GPU, or "
            "open it with <code>%memsafe --target cpu</code> to check values on this machine.</p>"
        )
    if abstract:
        return (
            "<p>This call was given shapes without values, so there is nothing to run.</p>"
            "<p>Call %memsafe with arrays to check the rewritten function against the original.</p>"
        )
    if checked is None:
        return (
            "<p>Nothing has run yet. <em>Run and check</em> runs the rewritten function, and the original where it "
            "fits, in a fresh process: do the values agree, what is the measured peak, how long does each take?</p>"
        )
    check = checked.check
    tone = "ms-done" if check.ok else "ms-error"
    return (
        f'{_whose(checked.plan, state.plan)}<p class="{tone}">{_verdict(check)}</p><p>{escape(_how(check))}</p>'
        f"{_figures(checked.plan, check)}"
    )


def _whose(checked: Plan, shown: Plan | None) -> str:
    limit = format_bytes(checked.limit_bytes)
    if checked is shown:
        return f"<h4>The version for {limit}</h4>"
    return f"<h4>The version for {limit}, not the one above: <em>Run and check</em> runs that</h4>"


def _verdict(check: Check) -> str:
    if not check.ok:
        return "NOT RIGHT: see below."
    return "It ran within its limit." if check.max_abs_err is None else "The values agree."


def _how(check: Check) -> str:
    return check.how[:1].upper() + check.how[1:]


def _figures(plan: Plan, check: Check) -> str:
    peak = "not measured" if check.measured_peak_bytes is None else format_bytes(check.measured_peak_bytes)
    rows = [("peak", accounted(plan, plan.peak_bytes), peak), ("limit", format_bytes(plan.limit_bytes), "")]
    if check.seconds is not None:
        rows.append(("time of the rewritten function", "", format_seconds(check.seconds)))
    if check.original_seconds is not None:
        rows.append(("time of the original", "", format_seconds(check.original_seconds)))
    if check.seconds is not None and check.original_seconds:
        rows.append(
            ("time, as a ratio", f"about {plan.slowdown:.2g}x", f"{check.seconds / check.original_seconds:.2g}x")
        )
    if check.max_abs_err is not None:
        rows.append(("largest error", "", f"{check.max_abs_err:.2g}"))
    if check.max_rel_err is not None:
        rows.append(("the same, of the largest value", "", f"{check.max_rel_err:.2g}"))
    return figures_table(("", "by XLA or predicted", "measured"), rows)
