"""The tab Rewrite in words: what is streamed, why, what it costs, and what else would work."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from memscope import Alternative, Loop, Plan
from memscope.compile import Compiled
from memscope.loop import KeptRows, SinkInfo
from memscope.report.plan import KINDS, array_text
from memscope.sizes import format_bytes

RECOMPUTED_SHOWN = REARRANGED_SHOWN = 4
"""How many of the arrays that are computed twice are named; a deep network has hundreds."""


def rewrite_html(plan: Plan | None) -> str:
    """All but the alternatives."""
    if plan is None:
        return "<p>No version is confirmed for this limit yet.</p>"
    if not plan.changed and not plan.fits:
        return f"<p>No version of {escape(plan.program.name)} takes less than it does as it is written.</p>"
    if not plan.changed:
        return (
            f"<p>{escape(plan.program.name)} fits this limit as it is written: nothing is rewritten.</p>"
            "<p>Drag the limit to the left, and this tab says what it would take to get there.</p>"
        )
    loops = (sentence for loop in plan.loops for sentence in _loop(loop))
    sentences = [
        *_in_order(plan),
        *_simplified(plan),
        *_rearranged(plan),
        *_recomputed(plan),
        *_moved(plan),
        *loops,
        _cost(plan),
    ]
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>{_figures(plan)}"


def change_word(plan: Plan) -> str:
    """What a plan's function is beside the one as written."""
    return "reordered" if plan.reordered else "rewritten"


def source_html(name: str, source: str | None, plan: Plan | None) -> str:
    """The generated source, folded."""
    if not source:
        return ""
    ordered = plan is not None and plan.scheduled_by is not None
    without = ", without the order of its instructions, which source can't hold" if ordered else ""
    return (
        f"<details><summary>The source of {escape(name)}_safe, which needs JAX alone{without}</summary>"
        f"<pre>{escape(source)}</pre></details>"
    )


def _loop(loop: Loop) -> list[str]:
    if not loop.streams:
        return [f"A loop takes {loop.chunk:,} of {loop.size:,} steps at a time, {loop.trips:,} times."]
    largest, *rest = loop.streams
    chunk = format_bytes(largest.bytes * loop.chunk // max(1, loop.size))
    cut = f"{loop.chunk:,} of {loop.size:,} slices along axis {largest.axis} at a time"
    more = f" {len(rest)} more that go with it are treated alike." if rest else ""
    kept = " and ".join(_kept(sink) for sink in loop.sinks[:3])
    return [
        f"{array_text(largest.dtype, largest.shape)}, made by {largest.op}{_at(largest.source)}, never exists whole: "
        f"it is computed {cut}, in {loop.trips:,} chunks of {chunk} in place of {format_bytes(largest.bytes)}.{more}",
        f"That works because all that is kept of it is {kept}.",
        *(_kept_rows(rows) for rows in loop.kept),
    ]


def _kept_rows(kept: KeptRows) -> str:
    rows = f"The last {kept.rows:,} rows of {array_text(kept.dtype, kept.shape)}, {format_bytes(kept.bytes)},"
    if kept.made:
        return f"{rows} are kept for a later loop, as the limit has room for them."
    return f"{rows} are taken from there, and not computed again."


def _kept(sink: SinkInfo) -> str:
    return f"{array_text(sink.dtype, sink.shape)} of {sink.op}{_at(sink.source)}, {KINDS.get(sink.kind, sink.kind)}"


def _at(source: str | None) -> str:
    return f" at {source}" if source else ""


def _simplified(plan: Plan) -> list[str]:
    return [
        f"{array_text(gone.dtype, gone.shape)}{_at(gone.source)}, {format_bytes(gone.bytes)}, is not made at all: "
        f"{gone.why}."
        for gone in plan.simplified
    ]


def _rearranged(plan: Plan) -> list[str]:
    sentences = [
        f"{array_text(each.dtype, each.shape)} of {each.op}{_at(each.source)}: {each.why}."
        for each in plan.rearranged[:REARRANGED_SHOWN]
    ]
    more = len(plan.rearranged) - REARRANGED_SHOWN
    return [*sentences, *([f"So are {more:,} more arrays."] if more > 0 else [])]


def _recomputed(plan: Plan) -> list[str]:
    sentences = [
        f"{array_text(again.dtype, again.shape)}, {format_bytes(again.bytes)}, made by {again.op}{_at(again.source)}, "
        "is dropped after its early readers and computed again just before its late ones."
        for again in plan.recomputed[:RECOMPUTED_SHOWN]
    ]
    more = len(plan.recomputed) - RECOMPUTED_SHOWN
    return [*sentences, *([f"So are {more:,} more arrays."] if more > 0 else [])]


def _in_order(plan: Plan) -> list[str]:
    if plan.scheduled_by is not None:
        return [
            f"Its instructions run in another order ({plan.scheduled_by}), so that less is alive at once: the same "
            "work and the same bits."
        ]
    if plan.stretches == 1:
        return []
    return [f"Its instructions run in {plan.stretches} stretches, each done before the next one starts."]


def _moved(plan: Plan) -> list[str]:
    return [
        f"{array_text(m.dtype, m.shape)}, {format_bytes(m.bytes)}, is made piece by piece inside the {m.loop} "
        "that reads it."
        for m in plan.moved
    ]


def _cost(plan: Plan) -> str:
    if not plan.loops and f"{plan.slowdown:.2g}" == "1" and f"{plan.extra_work:.2f}" == "1.00":
        return "It takes the time of before (an estimate), and the same arithmetic (counted)."
    return (
        f"It takes about {plan.slowdown:.2g}x the time of before (an estimate), for {plan.extra_work:.2f}x the "
        "arithmetic (counted)."
    )


def _figures(plan: Plan) -> str:
    before, after = plan.request.profile, plan.profile
    reported = [("of which XLA reports", "all of it", format_bytes(plan.compiled.peak_bytes))] if plan.bounded else []
    rows = [
        ("peak", format_bytes(plan.original_peak_bytes), accounted(plan, plan.peak_bytes)),
        *reported,
        ("arguments", format_bytes(before.argument_bytes), format_bytes(after.argument_bytes)),
        ("results", format_bytes(before.output_bytes), format_bytes(after.output_bytes)),
        ("temporaries", format_bytes(plan.original_temp_bytes), accounted(plan, plan.temp_bytes)),
        ("time, estimated", "1x", f"about {plan.slowdown:.2g}x"),
        ("arithmetic, counted", "1x", f"{plan.extra_work:.2f}x"),
    ]
    return figures_table(("", "as written", change_word(plan)), rows)


def accounted(plan: Plan, size: int) -> str:
    """A size of a plan's build, of which XLA may give an upper bound only."""
    return f"{'at most ' if plan.bounded else ''}{format_bytes(size)}"


def figures_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A small table whose first column names what the others give figures of."""
    titles = "".join(f'<th class="ms-n">{escape(cell)}</th>' for cell in head[1:])
    body = "".join(f"<tr>{_figures_row(row)}</tr>" for row in rows)
    return f"<table><thead><tr><th>{escape(head[0])}</th>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _figures_row(row: Sequence[str]) -> str:
    figures = "".join(f'<td class="ms-n">{escape(cell)}</td>' for cell in row[1:])
    return f'<th scope="row">{escape(row[0])}</th>{figures}'


ALTERNATIVES = (
    ("axis", True, False),
    ("steps at a time", True, False),
    ("peak", True, False),
    ("fits", False, False),
    ("time, estimated", True, False),
    ("what is cut", False, True),
)


def alternative_columns() -> list[dict[str, Any]]:
    return [{"label": label, "numeric": numeric, "code": code} for label, numeric, code in ALTERNATIVES]


def alternative_rows(plan: Plan, alternatives: Sequence[Alternative]) -> list[dict[str, Any]]:
    """One row each; the row's id is its index."""
    return [_row(str(k), alternative, plan) for k, alternative in enumerate(alternatives)]


def _row(key: str, alternative: Alternative, plan: Plan) -> dict[str, Any]:
    loop = max(alternative.loops, key=lambda loop: loop.streams[0].bytes if loop.streams else 0)
    what = _what(loop)
    axis = loop.streams[0].axis if loop.streams else 0
    current = alternative.loops == plan.loops
    peak, shown_peak = _peak(alternative, plan.compiled if current else alternative.compiled)
    slowdown = alternative.predicted_slowdown
    fits = "yes" if peak <= plan.limit_bytes else "no"
    steps = f"{loop.chunk:,} of {loop.size:,}"
    return {
        "id": key,
        "title": "this plan" if current else "",
        "colour": None,
        "marked": current,
        "cells": [str(axis), steps, shown_peak, fits, f"about {slowdown:.2g}x", what],
        "keys": [axis, loop.chunk / loop.size, peak, fits, slowdown, what],
    }


def _peak(alternative: Alternative, compiled: Compiled | None) -> tuple[int, str]:
    """The peak to sort by and to show: XLA's where it has compiled this, else the prediction."""
    if compiled is None:
        return alternative.predicted_peak_bytes, f"about {format_bytes(alternative.predicted_peak_bytes)}"
    most = "at most " if compiled.hidden_bytes else ""
    return compiled.bound_bytes, f"\u2713 {most}{format_bytes(compiled.bound_bytes)}"


def _what(loop: Loop) -> str:
    if not loop.streams:
        return f"a loop of {loop.size:,} steps"
    largest = loop.streams[0]
    return f"{array_text(largest.dtype, largest.shape)} {largest.op}{_at(largest.source)}"
