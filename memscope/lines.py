"""One line each: what `--quiet` prints of a profile, a plan, a schedule and a check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .call import Call
from .options import Options
from .report.schedule import verdict
from .sizes import format_bytes
from .target import resolve

if TYPE_CHECKING:
    from .check import Check
    from .plan import Plan
    from .profile import Profile
    from .schedule.schedule import Schedule


def profile_line(profile: Profile, call: Call, options: Options) -> str:
    """One line on the function as written."""
    target = resolve(options.target)
    return f"{call.name} on {target.name}: peak {format_bytes(profile.peak_bytes)}"


def plan_line(plan: Plan, call: Call, options: Options) -> str:
    """One line on the function as rewritten."""
    target = resolve(options.target)
    before = f"{'about ' if plan.refused else ''}{format_bytes(plan.original_peak_bytes)}"
    after = f"{'at most ' if plan.bounded else ''}{format_bytes(plan.peak_bytes)}"
    change = f"peak {before} -> {after}" if plan.changed else f"peak {after}, unchanged"
    limit = options.limit or f"the {format_bytes(target.capacity_bytes)} it holds"
    return f"{call.name} on {target.name}: {change}, {'fits' if plan.fits else 'does not fit'} {limit}"


def schedule_line(schedule: Schedule, call: Call) -> str:
    """One line on the function in another order."""
    before, after = format_bytes(schedule.default_peak_bytes), format_bytes(schedule.peak_bytes)
    change = f"peak {before} -> {after}" if schedule.changed else f"peak {after} in XLA's own order"
    return f"{call.name} on {schedule.target.name}: {change}, {verdict(schedule)}"


def check_line(check: Check) -> str:
    """One line on a run of both that went well."""
    facts = ["values agree" if check.max_abs_err is not None else "ran"]
    if check.measured_peak_bytes is not None:
        facts.append(f"measured peak {format_bytes(check.measured_peak_bytes)}")
    if check.seconds is not None:
        original = "" if check.original_seconds is None else f" (original {format_seconds(check.original_seconds)})"
        facts.append(f"{format_seconds(check.seconds)}{original}")
    return f"{', '.join(facts)}: {check.how}"


def format_seconds(seconds: float) -> str:
    """Three digits and a unit, as in "0.132 s"."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds:.3g} s"
