"""What the chart shows of a profile: the bytes of its largest buffers at each step of the schedule."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from memscope import Buffer, Profile
from memscope.report.html import profile_chart
from memscope.report.text import array, buckets, lifetime, made_by
from memscope.sizes import format_bytes

STEPS = 240
"""Bars in a chart; of a longer schedule each stretch shows its highest step."""

LARGE, HELD = 8, 4
"""How many buffers that the function makes, and how many that it is given, have a colour of their own."""

TELLING = 0.01
"""Fraction of the peak under which a buffer is one of the others."""

# Okabe and Ito's, without the vermilion that marks the peak; greys for what the caller holds.
HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442", "#7d5ba6", "#8c6d31")
GREYS = ("#7f7f7f", "#9a9a9a", "#6b6b6b", "#ababab")
OTHERS = "#c9c9c9"


@dataclasses.dataclass(frozen=True)
class Layer:
    """One band of the chart: a buffer's bytes at each of its steps. Without a buffer: all the others together."""

    buffer: Buffer | None
    colour: str
    values: tuple[int, ...]


def layers(profile: Profile, steps: Sequence[int]) -> tuple[Layer, ...]:
    """Bands that add up to the bytes in use at each of these steps."""
    left = [profile.timeline[step] for step in steps]
    found = []
    for buffer, colour in coloured(profile):
        values = tuple(
            min(buffer.bytes, room) if alive(buffer, step) else 0 for step, room in zip(steps, left, strict=True)
        )
        left = [room - value for room, value in zip(left, values, strict=True)]
        found.append(Layer(buffer, colour, values))
    return (*found, Layer(None, OTHERS, tuple(left)))


def coloured(profile: Profile) -> list[tuple[Buffer, str]]:
    """The buffers with a colour of their own: what the caller holds, then what the function makes, largest first."""
    telling = [b for b in profile.buffers if b.bytes >= max(1, TELLING * profile.peak_bytes)]
    held = [b for b in telling if b.kind in ("argument", "constant")][:HELD]
    made = [b for b in telling if b.kind in ("temporary", "output")][:LARGE]
    return [*zip(held, GREYS, strict=False), *zip(made, HUES, strict=False)]


def alive(buffer: Buffer, step: int) -> bool:
    """Whether it counts at a step; what the caller holds counts throughout, as in `Profile.timeline`."""
    return buffer.kind != "temporary" or buffer.defined_at <= step <= buffer.freed_at


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
        "layers": [_layer(layer, profile) for layer in layers(profile, steps) if any(layer.values)],
    }


def chart_fallback(profile: Profile) -> str:
    """What stands in the chart's place until its script is there."""
    return profile_chart(profile)


def _layer(layer: Layer, profile: Profile) -> dict[str, Any]:
    buffer = layer.buffer
    if buffer is None:
        names = {"id": "", "label": "all other buffers", "short": "others", "detail": "", "bytes": max(layer.values)}
    else:
        names = {
            "id": buffer.name,
            "label": f"{array(buffer)} {buffer.op}",
            "short": made_by(buffer),
            "detail": _detail(buffer, profile),
            "bytes": buffer.bytes,
        }
    return {**names, "colour": layer.colour, "values": list(layer.values)}


def _detail(buffer: Buffer, profile: Profile) -> str:
    return ", ".join(filter(None, [buffer.source or buffer.name, f"alive {_when(lifetime(buffer, profile))}"]))


def _when(lifetime_text: str) -> str:
    return lifetime_text if lifetime_text[0] in "fw" else f"from step {lifetime_text}"


def describe(buffer: Buffer, profile: Profile) -> str:
    """A buffer in one line."""
    parts = [format_bytes(buffer.bytes), array(buffer), made_by(buffer), f"steps {lifetime(buffer, profile)}"]
    at_peak = "in use at the peak" if buffer.live_at_peak else ""
    return "  ·  ".join(itertools.chain(parts, filter(None, [at_peak])))
