"""The tab Targets in words: what each GPU makes of the function."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from memscope import Target, TargetError
from memscope.compare import Row
from memscope.gpu.devices import DEVICES
from memscope.gpu.remote import check_installed
from memscope.sizes import format_bytes
from memscope.target import FRACTION_VARIABLE, memory_fraction

from .state import Refused, Stage, State, held_by

USUAL = ("t4", "l4", "rtx4090", "a100-40gb", "a100-80gb", "h100")
"""What is compared at first: the common ones, smallest first."""

ALL = tuple(DEVICES)

# Label, whether it is a figure, whether it may take several lines.
COLUMNS = (
    ("target", False, False),
    ("may use", True, False),
    ("peak", True, False),
    ("as written", False, False),
    ("limit for it to fit", True, False),
    ("peak then", True, False),
    ("what it takes", False, True),
)


def compiler_missing() -> str:
    """Why nothing can be compiled for a GPU that is not here, and how to change that; "" where it can."""
    try:
        check_installed("a GPU")
    except TargetError as error:
        said = str(error)
        return said[:1].upper() + said[1:]
    return ""


def targets_html(name: str, missing: str) -> str:
    """What the table is, or why there is none."""
    if missing:
        return f"<p>{escape(missing)}</p>"
    return (
        f"<p>What {escape(name)} takes on GPUs that need not be here, by XLA's own compiler. Where it does not "
        "fit as written, memscope looks for a version that does.</p>"
    )


def table_data(state: State) -> dict[str, Any]:
    """A row for each target asked for, whether it is known yet or not."""
    rows = [_row(place, state) for place in state.places]
    return {
        "columns": [{"label": label, "numeric": numeric, "wide": wide} for label, numeric, wide in COLUMNS],
        "rows": rows,
        "sides": [],
        "side": "",
        "empty": "",
        "note": _note(state),
    }


def left(state: State, names: Sequence[str]) -> bool:
    """Whether there is one of these that nothing is known of yet."""
    return any(name not in state.compared for name in names)


def _row(place: Target, state: State) -> dict[str, Any]:
    known = state.compared.get(place.name)
    cells, keys = _unknown(state) if known is None else _refused(known) if isinstance(known, Refused) else _known(known)
    return {
        "id": place.name,
        "title": place.capacity_note,
        "colour": None,
        "marked": place == state.target,
        "cells": [place.name, format_bytes(place.capacity_bytes), *cells],
        "keys": [place.name, place.capacity_bytes, *keys],
    }


def _unknown(state: State) -> tuple[list[str], list[Any]]:
    said = "waiting" if state.stage is Stage.COMPARING else "not compiled"
    return ["", said, "", "", ""], [0, said, 0, 0, ""]


def _refused(row: Refused) -> tuple[list[str], list[Any]]:
    return ["", "can't be told", "", "", row.why], [0, "can't be told", 0, 0, row.why]


def _known(row: Row) -> tuple[list[str], list[Any]]:
    peak, plan = f"{'' if row.compiles else 'about '}{format_bytes(row.peak_bytes)}", row.plan
    if plan is None:
        return [peak, "fits", "", "", ""], [row.peak_bytes, "fits", 0, 0, ""]
    lowest = format_bytes(plan.peak_bytes)
    limit = format_bytes(plan.limit_bytes) if plan.fits else "none"
    takes = f"about {plan.slowdown:.2g}x the time, by estimate" if plan.fits else _too_low(row)
    said = "does not fit" if row.compiles else "does not compile"
    cells = [peak, said, limit, lowest if plan.fits else "", takes]
    return cells, [row.peak_bytes, said, plan.limit_bytes, plan.peak_bytes, takes]


def _too_low(row: Row) -> str:
    return f"{format_bytes(row.lowest_limit_bytes)} is the lowest peak that memscope can reach{held_by(row.blockers)}"


def _note(state: State) -> str:
    if not any(place.capacity_note for place in state.places):
        return ""
    return (
        f"A program may use {memory_fraction():.2g} of a GPU's memory, which is what XLA takes ({FRACTION_VARIABLE})."
    )
