"""A profile as plain text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..sizes import format_bytes

if TYPE_CHECKING:
    from ..profile import Buffer, Profile

ROWS = 12
PATH_STEPS = 12
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def profile_text(profile: Profile) -> str:
    """The account, the line that holds most, the timeline, the largest buffers and the way to the peak."""
    blocks = [account(profile), _timeline(profile), _table(profile), _path(profile)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def account(profile: Profile) -> list[str]:
    """What the peak is made of, and what a plain `jax.jit` is said to need where that differs."""
    lines = [
        f"{profile.name} on {profile.target}: peak {format_bytes(profile.peak_bytes)}",
        "  = " + " ".join(parts(profile)),
    ]
    lines += [f"  {note}" for note in notes(profile)]
    largest = profile.largest_at_peak
    if largest is not None:
        lines.append(f"  largest at the peak: {format_bytes(largest.bytes)}  {array(largest)}  {made_by(largest)}")
    return lines


def parts(profile: Profile) -> list[str]:
    """The terms of the peak, each with its sign and name."""
    terms = [
        f"arguments {format_bytes(profile.argument_bytes)}",
        f"+ results {format_bytes(profile.output_bytes)}",
        f"+ temporaries {format_bytes(profile.temp_bytes)}",
    ]
    if profile.constant_bytes:
        terms.append(f"+ constants {format_bytes(profile.constant_bytes)}")
    if profile.alias_bytes:
        terms.append(f"- donated {format_bytes(profile.alias_bytes)}")
    return terms


def notes(profile: Profile) -> list[str]:
    """Sentences on the builds and on gaps, where there is something to say."""
    said = build_notes(profile)
    if profile.capacity_bytes is not None and profile.capacity_note:
        fits = "fits" if profile.peak_bytes <= profile.capacity_bytes else "DOES NOT FIT"
        said.append(f"{fits} in the {format_bytes(profile.capacity_bytes)} that a program may use there")
        said.append(f"({profile.capacity_note})")
    said += uncounted(profile.uncounted)
    if profile.fragmentation_bytes * 100 > profile.peak_bytes:
        said.append(f"of which {format_bytes(profile.fragmentation_bytes)} are gaps between temporaries")
    return said


def build_notes(profile: Profile) -> list[str]:
    """What XLA reports for a plain `jax.jit`, and why that is not the peak, where it is not."""
    said = []
    plain, bound = profile.plain_peak_bytes, profile.plain_bound_bytes
    if profile.build == "reference":
        shown = {format_bytes(b) for b in (profile.peak_bytes, plain, bound) if b is not None}
        if plain is not None and bound is not None and len(shown) > 1:
            said.append(f"XLA reports {format_bytes(plain)} for a plain jax.jit{_hidden(plain, bound)}")
            said.append("the peak above is exact: it is built without the fusions whose scratch XLA leaves out")
    elif plain is not None and bound is not None and bound != plain:
        said.append(f"that is what XLA reports for this build{_hidden(plain, bound)}")
    return said


def uncounted(calls: Sequence[tuple[str, int]]) -> list[str]:
    """A sentence on libraries whose workspace is in no account before the run."""
    if not calls:
        return []
    names = ", ".join(f"{library} ({'1 call' if count == 1 else f'{count} calls'})" for library, count in calls)
    return [f"not counted: workspace that is chosen when it runs, by {names}"]


def _hidden(plain: int, bound: int) -> str:
    if format_bytes(bound) == format_bytes(plain):
        return ""
    return f"; with scratch it does not report, that may need up to {format_bytes(bound)}"


def array(buffer: Buffer) -> str:
    """The buffer's array, as in "float32[256,1000]"."""
    return f"{buffer.dtype}[{','.join(map(str, buffer.shape))}]"


def made_by(buffer: Buffer) -> str:
    """The op and the user's line, or the argument."""
    if buffer.kind == "argument":
        return f"argument {buffer.name}"
    return f"{buffer.op} at {buffer.source}" if buffer.source else buffer.op


def lifetime(buffer: Buffer, profile: Profile) -> str:
    """First and last step, counted from 1; what the caller holds is there throughout."""
    if buffer.kind in ("argument", "constant"):
        return "whole call"
    if buffer.kind == "output":
        return f"from {buffer.defined_at + 1}"
    return f"{buffer.defined_at + 1} to {buffer.freed_at + 1}"


RESERVED = "reserved: a result's memory is set aside for the whole call, also before it is written"


def at_peak(buffer: Buffer, profile: Profile) -> str:
    """Whether the buffer takes memory at the peak, and whether there is anything in it yet."""
    if not buffer.live_at_peak:
        return ""
    return "reserved" if buffer.kind == "output" and buffer.defined_at > profile.peak_step else "yes"


def peak_step(profile: Profile) -> str:
    """Where the peak is, as in "step 7 of 12: dot.3, knn.py:4"."""
    at = profile.peak_step
    source = profile.step_sources[at]
    return f"step {at + 1} of {len(profile.steps)}: {profile.steps[at]}" + (f", {source}" if source else "")


def buckets(profile: Profile, count: int) -> list[int]:
    """The step with the most bytes of each of `count` stretches of the timeline; all steps where they fit."""
    steps = len(profile.timeline)
    edges = [steps * k // count for k in range(count + 1)] if steps > count else list(range(steps + 1))
    stretches = itertools.pairwise(edges)
    return [max(range(start, end), key=profile.timeline.__getitem__) for start, end in stretches]


def sparkline(profile: Profile, top: int) -> str:
    """The timeline as a row of bars, `top` bytes being the highest."""
    levels = [profile.timeline[s] * (len(_BARS) - 1) // top for s in buckets(profile, _WIDTH)]
    return "".join(_BARS[level] for level in levels)


def _timeline(profile: Profile) -> list[str]:
    top = max(profile.timeline, default=0)
    if not top:
        return []
    return [
        f"bytes in use, over the schedule; the peak is at {peak_step(profile)}",
        "  " + sparkline(profile, top),
    ]


def _table(profile: Profile) -> list[str]:
    shown = [b for b in profile.buffers if b.bytes][:ROWS]
    if not shown:
        return []
    header = ("bytes", "array", "made by", "line", "steps", "at peak")
    rows = [
        (
            format_bytes(b.bytes),
            array(b),
            b.op if b.kind != "argument" else f"argument {b.name}",
            b.source or "-",
            lifetime(b, profile),
            at_peak(b, profile),
        )
        for b in shown
    ]
    rest = [b for b in profile.buffers if b.bytes][ROWS:]
    lines = ["largest buffers", *columns(header, rows)]
    if rest:
        lines.append(f"  and {len(rest)} more, {format_bytes(max(b.bytes for b in rest))} or less each")
    if any(at_peak(b, profile) == "reserved" for b in shown):
        lines.append(f"  ({RESERVED})")
    return lines


def columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table; its first column is for sizes, to the right."""
    table = [header, *rows]
    widths = [max(len(row[k]) for row in table) for k in range(len(header))]
    lines = []
    for row in table:
        cells = [row[0].rjust(widths[0]), *(c.ljust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def _path(profile: Profile) -> list[str]:
    if len(profile.peak_path) < 2:
        return []
    rows = [path_step(name, buffer) for name, buffer in profile.peak_path]
    if len(rows) > PATH_STEPS:
        half = PATH_STEPS // 2
        rows = [*rows[:half], ("", f"... {len(rows) - 2 * half} more", "", ""), *rows[-half:]]
    title = "how the largest buffer at the peak comes about, and what lets it go"
    return [title, *columns(rows[0], rows[1:])]


def path_step(name: str, buffer: Buffer | None) -> tuple[str, str, str, str]:
    """Size, instruction, array with op, and line of one step of the peak path."""
    if buffer is None:
        return "", name, "", ""
    what = f"{array(buffer)} {buffer.op}" + (f" {buffer.name}" if buffer.kind == "argument" else "")
    return format_bytes(buffer.bytes), name, what, buffer.source or ""
