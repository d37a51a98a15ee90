"""A schedule as text and HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..sizes import format_bytes
from .html import page, profile_fragment
from .text import sparkline

if TYPE_CHECKING:
    from ..schedule.schedule import Schedule


def schedule_text(schedule: Schedule) -> str:
    """The peak before and after, how far from the best it may be, and the bytes in use over both orders."""
    blocks = [_account(schedule), _orders(schedule), _placement(schedule), _timelines(schedule)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def verdict(schedule: Schedule) -> str:
    """How good the order is, in a few words."""
    if schedule.optimal:
        return "optimal: no order needs less"
    if schedule.target.platform == "cuda":
        return "how much less an order could need is not known: barriers change what XLA fuses"
    return f"within {100 * schedule.gap:.2g}% of the lowest that any order could reach"


def _account(schedule: Schedule) -> list[str]:
    before, after = format_bytes(schedule.default_peak_bytes), format_bytes(schedule.peak_bytes)
    lines = [
        f"{schedule.program.name} on {schedule.target.name}: "
        + (f"peak {before} -> {after}" if schedule.changed else f"peak {after}, in XLA's own order"),
        f"  temporaries {format_bytes(schedule.default_temp_bytes)} -> {format_bytes(schedule.temp_bytes)}, "
        "confirmed by XLA; what is computed stays the same",
        f"  {verdict(schedule)} (searched for {schedule.seconds:.1f} s)",
    ]
    if schedule.changed and schedule.target.platform == "cuda":
        lines.append(
            f"  barriers keep the order: its instructions read and write {schedule.traffic:.2f}x the bytes, as less is "
            "fused across them"
        )
    if schedule.found.best.halves:
        lines.append(
            "  it runs as two executables: what writes over donated arguments comes last, in one of its own, as XLA "
            "takes no order for it"
        )
    if again := len(schedule.found.best.remade):
        lines.append(
            f"  {again} array{'s' * (again > 1)} made of arguments and constants alone: made again for each reader, "
            "and not kept"
        )
    given_back = schedule.found.default.compiled.alias_bytes - schedule.compiled.alias_bytes
    if given_back:
        lines.append(
            f"  {format_bytes(given_back)} of donated arguments are given back after the call, not written over: "
            "results have memory of their own, which counts"
        )
    if schedule.hidden_bytes:
        lines.append(
            f"  XLA's library fusions may take up to {format_bytes(schedule.hidden_bytes)} that it does not report, "
            "in either order"
        )
    if schedule.found.remark:
        lines.append(f"  {schedule.found.remark}")
    return lines


def _orders(schedule: Schedule) -> list[str]:
    lines = ["orders that were compiled, by their peaks"]
    for each in schedule.found.confirmed:
        predicted = each.predicted_temp_bytes
        beside = each.peak_bytes - each.temp_bytes
        expected = "" if predicted is None else f"  (predicted {format_bytes(beside + predicted)})"
        mark = "*" if each is schedule.found.best else " "
        lines.append(f"{mark} {format_bytes(each.peak_bytes):>9}  {each.by}{expected}")
    return lines


def _placement(schedule: Schedule) -> list[str]:
    if 100 * schedule.profile.fragmentation_bytes < schedule.temp_bytes:
        return []
    placement = schedule.placement
    best = "" if placement.best_bytes > placement.bound_bytes else ", which is optimal"
    return [
        f"offsets: XLA leaves gaps of {format_bytes(placement.xla_gaps)} between temporaries; the best that were found "
        f"leave {format_bytes(placement.best_gaps)}{best}",
        "  (XLA takes an order, but no offsets: this says what they cost, and changes nothing)",
    ]


def _timelines(schedule: Schedule) -> list[str]:
    before, after = schedule.original_profile, schedule.profile
    top = max(*before.timeline, *after.timeline, 1)
    return [
        "bytes in use, over the schedule",
        f"  before  {sparkline(before, top)}",
        f"  after   {sparkline(after, top)}",
    ]


def schedule_page(schedule: Schedule) -> str:
    """A whole document, to be saved or opened in a browser."""
    return page(f"{schedule.program.name}: schedule", schedule_fragment(schedule))


def schedule_fragment(schedule: Schedule) -> str:
    """The same as a piece of a page, as a notebook shows it."""
    return (
        f'<div class="memscope-plan"><pre style="line-height:1.35;overflow-x:auto">{escape(str(schedule))}</pre>'
        f"{profile_fragment(schedule.profile)}</div>"
    )
