"""The rows of the table of buffers."""

from __future__ import annotations

from typing import Any

from memscope import Buffer, Profile
from memscope.report.text import RESERVED, array, at_peak
from memscope.sizes import format_bytes

from .timeline import colours

COLUMNS = (
    ("bytes", True, False),
    ("array", False, True),
    ("made by", False, True),
    ("line", False, True),
    ("first step", True, False),
    ("last step", True, False),
    ("at the peak", False, False),
)


def columns() -> list[dict[str, Any]]:
    return [{"label": label, "numeric": numeric, "code": code} for label, numeric, code in COLUMNS]


def rows(profile: Profile) -> list[dict[str, Any]]:
    """Every buffer, largest first: cells to show, and keys to sort by."""
    coloured = colours(profile)
    return [
        _row(buffer, coloured.get(buffer.name), at_peak(buffer, profile)) for buffer in profile.buffers if buffer.bytes
    ]


def note(shown: list[dict[str, Any]]) -> str:
    """What a word in these rows means, where it stands in one."""
    return RESERVED if any("reserved" in row["cells"] for row in shown) else ""


def _row(buffer: Buffer, colour: str | None, peak: str) -> dict[str, Any]:
    made = f"argument {buffer.name}" if buffer.kind == "argument" else buffer.op
    born, dies = buffer.defined_at + 1, buffer.freed_at + 1
    line = buffer.source or ""
    return {
        "id": buffer.name,
        "title": buffer.hlo,
        "colour": colour,
        "marked": buffer.live_at_peak,
        "cells": [format_bytes(buffer.bytes), array(buffer), made, line, str(born), str(dies), peak],
        "keys": [buffer.bytes, array(buffer), made, _line_key(line), born, dies, peak],
    }


def _line_key(source: str) -> str:
    """So that line 9 comes before line 10."""
    file, _, number = source.rpartition(":")
    return f"{file}:{number:>8}"
