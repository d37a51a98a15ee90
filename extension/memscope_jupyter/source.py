"""From a buffer to the user's own lines, in files and in notebook cells."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Iterator, Mapping
from typing import Any

from jax.extend import core as jex_core

from memscope._jax_private import user_frame, user_line
from memscope.program import Program

AROUND = 40
"""Lines shown before and after the marked one."""


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """Some lines of a file, with their numbers; `marked` is the number of one of them."""

    label: str
    lines: tuple[tuple[int, str], ...]
    marked: int


def files_of(program: Program) -> dict[str, str]:
    """The file of each line that the program comes from, by the line's short name ("knn.py:12", "In[3]:4")."""
    files: dict[str, str] = {}
    for eqn in _eqns(program.jaxpr):
        frame, label = user_frame(eqn.source_info), user_line(eqn.source_info)
        if frame is not None and label is not None:
            files.setdefault(label, frame[0])
            files.setdefault(label.rpartition(":")[0], frame[0])
    return files


def excerpt(source: str | None, files: Mapping[str, str]) -> Excerpt | None:
    """The lines around a line given by its short name; None where they can't be read."""
    if source is None:
        return None
    label, _, number = source.rpartition(":")
    lines = linecache.getlines(files.get(source) or files.get(label) or "")
    marked = int(number)
    if not 0 < marked <= len(lines):
        return None
    first = max(1, marked - AROUND)
    shown = lines[first - 1 : marked + AROUND]
    return Excerpt(label, tuple((first + k, line.rstrip("\n")) for k, line in enumerate(shown)), marked)


def line_text(source: str, files: Mapping[str, str]) -> str:
    """The line behind its short name, as it was written; "" where it can't be read."""
    found = excerpt(source, files)
    return "" if found is None else dict(found.lines)[found.marked].strip()


def _eqns(jaxpr: jex_core.Jaxpr) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jex_core.jaxprs_in_params(eqn.params):
            yield from _eqns(inner)
