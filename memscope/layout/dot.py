"""Layout by Graphviz, in a process of its own: what crashes or takes too long there is an error here, no more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .plane import Layout, Point, Size
from .skeleton import Skeleton

SECONDS = 5.0
_PIXELS = 72.0  # an inch


class DotError(RuntimeError):
    """Graphviz gave no layout."""


def engines() -> list[str]:
    """The Graphviz executables there are: the system's `dot`, then `graphviz-pure`, a wheel with nothing else in it."""
    beside_python = str(Path(sys.executable).parent)
    path = os.pathsep.join([os.environ.get("PATH", ""), beside_python])
    found = (shutil.which("dot"), shutil.which("graphviz-pure", path=path))
    return [engine for engine in found if engine]


def lay_out(skeleton: Skeleton, sizes: Sequence[Size], engine: str, seconds: float = SECONDS) -> Layout:
    """A layered layout by one Graphviz executable.

    Raises:
      DotError: it is missing, crashed, took longer than `seconds`, or answered something else than a layout.
    """
    text = _question(skeleton, sizes)
    try:
        done = subprocess.run(
            [engine, "-Tplain"], input=text, capture_output=True, text=True, timeout=seconds, check=True,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        raise DotError(str(error)) from error
    try:
        return _answer(done.stdout, skeleton, Path(engine).name)
    except (LookupError, ValueError) as error:
        raise DotError(f"{engine} answered {done.stdout[:80]!r}") from error


def _question(skeleton: Skeleton, sizes: Sequence[Size]) -> str:
    """The graph in Graphviz's language: boxes of a given size, known by number, without text or colour."""
    lines = [
        "digraph {",
        "graph [nodesep=0.15, ranksep=0.4, splines=true]",
        'node [shape=box, fixedsize=true, label=""]',
        "edge [arrowhead=none]",
    ]
    lines += [f"{k} [width={w / _PIXELS:.4f}, height={h / _PIXELS:.4f}]" for k, (w, h) in enumerate(sizes)]
    lines += [f"{w.tail} -> {w.head} [weight={4 if w.edge.on_peak_path else 1}]" for w in skeleton.wires]
    return "\n".join([*lines, "}"])


def _answer(text: str, skeleton: Skeleton, engine: str) -> Layout:
    """Reads the "plain" format: inches, y upwards."""
    rows = [line.split(" ") for line in text.splitlines()]
    ((_, _, width, height),) = (row for row in rows if row[0] == "graph")
    tall = float(height) * _PIXELS

    def point(x: str, y: str) -> Point:
        return round(float(x) * _PIXELS, 1), round(tall - float(y) * _PIXELS, 1)

    def points(numbers: Sequence[str]) -> tuple[Point, ...]:
        return tuple(map(point, numbers[::2], numbers[1::2]))

    centres = {int(row[1]): point(row[2], row[3]) for row in rows if row[0] == "node"}
    curves = {(int(row[1]), int(row[2])): points(row[4 : 4 + 2 * int(row[3])]) for row in rows if row[0] == "edge"}
    return Layout(
        engine,
        float(width) * _PIXELS,
        tall,
        tuple(centres[k] for k in range(len(skeleton.boxes))),
        tuple(curves[w.tail, w.head] for w in skeleton.wires),
    )
