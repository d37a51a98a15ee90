"""A plan, and the error of a limit that can't be met, as text and HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..sizes import format_apart, format_bytes
from ..target import roomier
from .html import page, profile_fragment
from .text import uncounted

if TYPE_CHECKING:
    from ..algebra import Simplification
    from ..inside import Moved
    from ..loop import KeptRows, Loop, SinkInfo, Stream
    from ..plan import Plan
    from ..profile import Buffer
    from ..recompute import Recomputed
    from ..search import Rearranged
    from ..target import Target

REARRANGED_SHOWN = 4


def plan_text(plan: Plan) -> str:
    """What is streamed, why, and what it costs."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> list[str]:
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    bounded = "at most " if plan.bounded else ""
    head = [
        f"{plan.program.name} on {plan.target.name}: {verdict} in {format_bytes(plan.limit_bytes)}",
        f"  peak        {format_bytes(plan.original_peak_bytes):>9}  ->  {bounded}{format_bytes(plan.peak_bytes)}"
        "   (arguments + outputs + temporaries, by XLA)",
        f"  temporaries {format_bytes(plan.original_temp_bytes):>9}  ->  {bounded}{format_bytes(plan.temp_bytes)}",
    ]
    if plan.refused is not None:
        head.append(f"  as written it does not compile, and the first two figures are estimates: {plan.refused}")
    notes = [f"  {note}" for note in uncounted(plan.profile.uncounted)] if plan.target.platform == "cuda" else []
    if not plan.changed:
        return [*head, *notes, *_as_written(plan)]
    return [
        *head,
        *notes,
        f"  time        {plan.slowdown:.2f}x of before (estimated), arithmetic {plan.extra_work:.2f}x (counted)",
        *(line for gone in plan.simplified for line in _simplified_lines(gone)),
        *_rearranged_lines(plan.rearranged),
        *_recomputed_lines(plan.recomputed),
        *_order_lines(plan),
        *(line for moved in plan.moved for line in _moved_lines(moved)),
        *(line for loop in plan.loops for line in _loop_lines(loop)),
    ]


def _as_written(plan: Plan) -> list[str]:
    if plan.bounded:
        return [
            "  nothing to rewrite: the function runs as plain jax.jit builds it. XLA's own figure for that is "
            f"{format_bytes(plan.compiled.peak_bytes)};",
            "  the rest is the most that its library fusions may take beside it.",
        ]
    if plan.build.options:
        return [
            "  nothing to rewrite: the function runs as it is, compiled without XLA's library fusions, whose",
            "  memory XLA does not report (a plain jax.jit uses them; the profile gives its figures).",
        ]
    return ["  nothing to rewrite: the function runs as it is."]


def _simplified_lines(gone: Simplification) -> list[str]:
    array = f"{array_text(gone.dtype, gone.shape)}  {format_bytes(gone.bytes)}"
    return ["", f"  {gone.op}{_at(gone.source)}: {gone.why}", f"    never made   {array}"]


def _rearranged_lines(rearranged: Sequence[Rearranged]) -> list[str]:
    by_reason: dict[str, list[Rearranged]] = {}
    for each in rearranged:
        by_reason.setdefault(each.why, []).append(each)
    lines = []
    for why, arrays in by_reason.items():
        shown = [f"    {array_text(a.dtype, a.shape)}  {a.op}{_at(a.source)}" for a in arrays[:REARRANGED_SHOWN]]
        more = len(arrays) - len(shown)
        lines += ["", f"  {why}:", *shown, *([f"    and {more} more"] if more else [])]
    return lines


def _recomputed_lines(recomputed: Sequence[Recomputed]) -> list[str]:
    if not recomputed:
        return []
    total = format_bytes(sum(each.bytes for each in recomputed))
    lines = ["", f"  not kept till late, but dropped and computed again just before that, {total} in all:"]
    for each in recomputed[:4]:
        array = f"{array_text(each.dtype, each.shape)}  {format_bytes(each.bytes)}"
        lines.append(f"    made twice   {array}  {each.op}{_at(each.source)}")
    return [*lines, *([f"    and {len(recomputed) - 4} more"] if len(recomputed) > 4 else [])]


def _order_lines(plan: Plan) -> list[str]:
    if plan.scheduled_by is not None:
        return [
            "",
            f"  its instructions run in another order ({plan.scheduled_by}), so that less is alive at once:",
            "  the same work and the same bits.",
        ]
    if plan.stretches == 1:
        return []
    return [
        "",
        f"  in {plan.stretches} stretches, each done before the next one starts (optimization_barrier): what branches",
        "  hold is held by one at a time. Nothing is computed twice.",
    ]


def _moved_lines(moved: Moved) -> list[str]:
    again = "" if moved.loop == "cond" else ", again in each of its steps"
    array = f"{array_text(moved.dtype, moved.shape)}  {format_bytes(moved.bytes)}"
    return [
        "",
        f"  made inside the {moved.loop}{_at(moved.within)}{again}: what it needs of",
        f"    never whole  {array}  {moved.op}{_at(moved.source)}",
    ]


def _loop_lines(loop: Loop) -> list[str]:
    kept = loop.kept[0].steps if loop.kept else 0
    rests = [f"{rest:,}" for steps in (loop.size - kept, kept) if (rest := steps % loop.chunk)]
    tail = f", {'one' if kept else 'the last'} of {' and one of '.join(rests)}" if rests else ""
    lines = ["", f"  loop of {loop.trips:,} chunks: {loop.size:,} steps, {loop.chunk:,} at a time{tail}"]
    for stream in loop.streams[:4]:
        lines.append(f"    never whole  {_stream(stream, loop)}")
    if len(loop.streams) > 4:
        lines.append(f"    and {len(loop.streams) - 4} more that go with them")
    lines += [f"    {'keeps' if rows.made else 'takes':<11}  {_kept_rows(rows)}" for rows in loop.kept]
    lines += [f"    leaves       {_sink(sink)}" for sink in loop.sinks]
    return lines


def _kept_rows(kept: KeptRows) -> str:
    use = "for a loop below" if kept.made else "which the loop above keeps"
    return (
        f"{array_text(kept.dtype, kept.shape)}  its last {kept.rows:,} rows along axis {kept.axis}, "
        f"{format_bytes(kept.bytes)}, {use}"
    )


def _stream(stream: Stream, loop: Loop) -> str:
    chunk = stream.bytes * loop.chunk // max(1, loop.size)
    return (
        f"{array_text(stream.dtype, stream.shape)}  {format_bytes(stream.bytes)} -> {format_bytes(chunk)}, "
        f"cut along axis {stream.axis}  {stream.op}{_at(stream.source)}"
    )


KINDS = {"stack": "written chunk by chunk", "add": "summed up", "dot": "summed up", "mul": "multiplied up",
          "max": "the running maximum", "min": "the running minimum", "scatter": "accumulated in place",
          "top_k": "the best so far", "state": "handed on from chunk to chunk", "same": "the same in every chunk",
          "argmax": "the running argmax", "argmin": "the running argmin",
          "online": "summed up below the running maximum",
          "centred": "summed up about the running mean"}  # fmt: skip


def _sink(sink: SinkInfo) -> str:
    return f"{array_text(sink.dtype, sink.shape)}  {KINDS.get(sink.kind, sink.kind)}  {sink.op}{_at(sink.source)}"


def array_text(dtype: str, shape: Sequence[int]) -> str:
    """As in "float32[256,1000]"."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def _at(source: str | None) -> str:
    return f" at {source}" if source else ""


def limit_error_text(lowest: Plan, held: Sequence[tuple[Buffer, str]]) -> str:
    """Why the limit can't be met, what holds the peak up, and what to do next."""
    limit, floor = format_apart(lowest.limit_bytes, lowest.peak_bytes)
    exact = f"{lowest.peak_bytes:,} bytes"
    lines = [
        f"{lowest.program.name} can't run in {limit}: the lowest peak that memscope can reach is {floor} "
        f"({exact if floor != exact else format_bytes(lowest.peak_bytes)}). Alive at that peak:"
    ]
    telling = [item for item in held if 100 * item[0].bytes >= lowest.peak_bytes]
    for buffer, reason in telling[:5]:
        lines.append(
            f"  {format_bytes(buffer.bytes):>9}  {array_text(buffer.dtype, buffer.shape)} {_what(buffer)}"
            f"{_at(buffer.source)}: {reason}."
        )
    if len(held) > len(telling[:5]):
        lines.append(f"  and {len(held) - len(telling[:5])} smaller buffers")
    lines.append(f"Next: {_way_out(lowest)}")
    return "\n".join(lines)


def _way_out(lowest: Plan) -> str:
    target, floor = lowest.target, lowest.peak_bytes
    if floor <= target.capacity_bytes:
        return f"raise the limit to {floor:,} bytes, or take the lowest plan with best_effort=True."
    tells = "; memscope.compare tells what it takes there" if roomier(target, floor) else ""
    return f"{no_limit_helps(target)}: {room_elsewhere(target, floor)}{tells}. Or make one of these smaller."


def no_limit_helps(target: Target) -> str:
    """Where the target can't hold the lowest peak, as the start of a sentence."""
    capacity = format_bytes(target.capacity_bytes)
    holds = f"{target.name} holds" if target.memory_bytes is None else f"on {target.name} a program may use"
    return f"no limit helps, as {holds} {capacity}"


def room_elsewhere(target: Target, floor_bytes: int) -> str:
    """Where there is room for that peak by the account of this target's compiler, as the end of a sentence."""
    larger = roomier(target, floor_bytes)
    if target.platform != "cuda":
        return "run it where there is more memory"
    if not larger:
        return f"no GPU that memscope knows has room for {format_bytes(floor_bytes)}"
    return f"there is room for {format_bytes(floor_bytes)} on {', '.join(larger[:3])}{' or larger' * (len(larger) > 3)}"


def _what(buffer: Buffer) -> str:
    return f"{buffer.op} {buffer.name}" if buffer.kind == "argument" else buffer.op


def plan_page(plan: Plan) -> str:
    """A whole document, to be saved or opened in a browser."""
    return page(f"{plan.program.name}: plan", plan_fragment(plan))


def plan_fragment(plan: Plan) -> str:
    """The same as a piece of a page, as a notebook shows it."""
    text = html.escape(plan_text(plan))
    return (
        f'<div class="memscope-plan"><pre style="line-height:1.35;overflow-x:auto">{text}</pre>'
        f"{profile_fragment(plan.profile)}</div>"
    )
