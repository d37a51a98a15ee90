"""The files that Export writes: where, and what they hold."""

from __future__ import annotations

import itertools
import pathlib

from memscope import Plan
from memscope.sizes import format_bytes


def written_instead(plan: Plan, path: pathlib.Path) -> str:
    """What a file holds in place of an order of instructions."""
    if plan.portable is plan:
        return ""
    peak = format_bytes(plan.portable.peak_bytes)
    return f"No {path.suffix} file can hold an order of instructions: what is in this one peaks at {peak}."


def free_path(path: pathlib.Path) -> pathlib.Path:
    """This path, or the first of `name_2.py`, `name_3.py`, ... where there is such a file already."""
    numbered = (path.with_stem(f"{path.stem}_{k}") for k in itertools.count(2))
    return next(p for p in itertools.chain([path], numbered) if not p.exists())
