"""What the chart shows of a profile: the bytes of its largest buffers at each step of the schedule."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from memscope import Buffer, Profile
from memscope.report.html import profile_chart
from memscope.report.text import array, at_peak, buckets, lifetime, made_by
from memscope.sizes import format_bytes

STEPS = 240
"""Bars in a chart; of a longer schedule each stretch shows its highest step."""

LARGE = 0.05
"""Fraction of the peak from which a buffer is a band of its own; smaller ones of one op on one line share a band."""

TELLING = 0.01
"""Fraction of the peak under which a band is not told apart from the others."""

# Okabe and Ito's, without the vermilion that marks the peak; greys for what the caller holds.
HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442", "#7d5ba6", "#8c6d31")
GREYS = ("#7f7f7f", "#9a9a9a", "#6b6b6b", "#ababab")
OTHERS = "#c9c9c9"

HELD = ("argument", "constant")


@dataclasses.dataclass(frozen=True)
class Band:
    """One band of the chart: the bytes of some buffers at each of its steps. Without buffers: all the others."""

    buffers: tuple[Buffer, ...]
    colour: str
    values: tuple[int, ...]


def bands(profile: Profile, steps: Sequence[int]) -> tuple[Band, ...]:
    """Bands that add up to the bytes in use at each of these steps, what the caller holds first."""
    groups = [(group, _alive_bytes(group, steps)) for group in _groups(profile)]
    telling = [item for item in groups if max(item[1], default=0) >= max(1, TELLING * profile.peak_bytes)]
    telling.sort(key=lambda item: -max(item[1]))
    held = [item for item in telling if item[0][0].kind in HELD]
    made = [item for item in telling if item[0][0].kind not in HELD]
    left = [profile.timeline[step] for step in steps]
    found = []
    for (group, wanted), colour in [*zip(held, GREYS, strict=False), *zip(made, HUES, strict=False)]:
        values = tuple(map(min, wanted, left))  # buffers may share memory; the timeline counts that once
        left = [room - value for room, value in zip(left, values, strict=True)]
        found.append(Band(group, colour, values))
    return (*found, Band((), OTHERS, tuple(left)))


def colours(profile: Profile) -> dict[str, str]:
    """The colour of each buffer that has one in the chart, by its name."""
    shown = bands(profile, buckets(profile, STEPS))
    return {buffer.name: band.colour for band in shown for buffer in band.buffers}


def _groups(profile: Profile) -> list[tuple[Buffer, ...]]:
    """Each large buffer alone; the others by what makes them and where, largest first."""
    groups: dict[Any, list[Buffer]] = {}
    for buffer in profile.buffers:
        alone = buffer.bytes >= LARGE * profile.peak_bytes
        key = buffer.name if alone else (buffer.kind in HELD, buffer.op, buffer.source)
        if buffer.bytes:
            groups.setdefault(key, []).append(buffer)
    return [tuple(group) for group in groups.values()]


def _alive_bytes(buffers: Iterable[Buffer], steps: Sequence[int]) -> list[int]:
    """Bytes alive at each step; what the caller holds counts throughout, as in `Profile.timeline`."""
    changes = [0] * (len(steps) + 1)
    for buffer in buffers:
        throughout = buffer.kind != "temporary"
        first = 0 if throughout else bisect.bisect_left(steps, buffer.defined_at)
        last = len(steps) if throughout else bisect.bisect_right(steps, buffer.freed_at)
        changes[first] += buffer.bytes
        changes[last] -= buffer.bytes
    return list(itertools.accumulate(changes[:-1]))


def chart_side(profile: Profile, side: str, title: str) -> dict[str, Any]:
    """One half of the chart, as its script takes it."""
    steps = buckets(profile, STEPS)
    totals = [profile.timeline[step] for step in steps]
    return {
        "side": side,
        "title": title,
        "of": len(profile.steps),
        "steps": [step + 1 for step in steps],
        "instructions": [profile.steps[step] for step in steps],
        "totals": totals,
        "top": max(totals, default=0),
        "peak": max(range(len(totals)), key=totals.__getitem__, default=0),
        "peakWords": _peak_words(profile, max(totals, default=0)),
        "bands": [_band(band, profile) for band in bands(profile, steps) if any(band.values)],
    }


def _peak_words(profile: Profile, top: int) -> str:
    """The peak, by the name of what it is where XLA gives an upper bound beside it."""
    bound = profile.plain_bound_bytes
    if profile.build != "plain" or bound is None or format_bytes(bound) == format_bytes(top):
        return f"peak {format_bytes(top)}"
    return f"{format_bytes(top)} by XLA,<br>at most {format_bytes(bound)}"


def chart_fallback(profile: Profile) -> str:
    """What stands in the chart's place until its script is there."""
    return profile_chart(profile)


def _band(band: Band, profile: Profile) -> dict[str, Any]:
    largest, *others = band.buffers or (None,)
    if largest is None:
        names = {"label": "all other buffers", "short": "others", "detail": ""}
    elif others:
        count = len(band.buffers)
        names = {
            "label": f"{count} buffers of {largest.op}, {format_bytes(largest.bytes)} or less each",
            "short": f"{count} \u00d7 {made_by(largest) if largest.kind not in HELD else largest.kind}",
            "detail": largest.source or "",
        }
    else:
        names = {
            "label": f"{array(largest)} {largest.op}",
            "short": made_by(largest),
            "detail": f"{largest.source or largest.name}, alive {_when(lifetime(largest, profile))}",
        }
    ids = [buffer.name for buffer in band.buffers]
    return {**names, "ids": ids, "most": max(band.values), "colour": band.colour, "values": list(band.values)}


def _when(lifetime_text: str) -> str:
    return lifetime_text if lifetime_text[0] in "fw" else f"from step {lifetime_text}"


_AT_PEAK = {"": "", "yes": "in use at the peak", "reserved": "set aside at the peak, written later"}


def describe(buffer: Buffer, profile: Profile) -> str:
    """A buffer in one line."""
    parts = [format_bytes(buffer.bytes), array(buffer), made_by(buffer), f"steps {lifetime(buffer, profile)}"]
    return "  ·  ".join(itertools.chain(parts, filter(None, [_AT_PEAK[at_peak(buffer, profile)]])))
