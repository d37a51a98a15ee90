"""A layered layout for machines without Graphviz: sources above readers, each near the middle of its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from .plane import Layout, Point, Size
from .skeleton import Skeleton, Wire

_GAP = 16.0  # pixels between boxes
_ROW_GAP = 44.0
_SWEEPS = 8


def lay_out(skeleton: Skeleton, sizes: Sequence[Size]) -> Layout:
    """Places the boxes in rows by the longest way to them, and orders each row by its neighbours' places."""
    rows = _rows(skeleton)
    across = _across(rows, skeleton.wires, sizes)
    centres: list[Point] = [(0.0, 0.0)] * len(sizes)
    top = 0.0
    for row in rows:
        tall = max(sizes[k][1] for k in row)
        for k in row:
            centres[k] = round(across[k], 1), round(top + tall / 2, 1)
        top += tall + _ROW_GAP
    width = max(across[k] + sizes[k][0] / 2 for k in range(len(sizes)))
    curves = tuple(_curve(centres, sizes, wire) for wire in skeleton.wires)
    return Layout("layered", width, top - _ROW_GAP, tuple(centres), curves)


def _rows(skeleton: Skeleton) -> list[list[int]]:
    """Boxes by the length of the longest way to them."""
    layer = [0] * len(skeleton.boxes)
    for wire in sorted(skeleton.wires, key=lambda w: w.head):
        layer[wire.head] = max(layer[wire.head], layer[wire.tail] + 1)
    rows: list[list[int]] = [[] for _ in range(max(layer) + 1)]
    for k, depth in enumerate(layer):
        rows[depth].append(k)
    return rows


def _across(rows: list[list[int]], wires: Sequence[Wire], sizes: Sequence[Size]) -> list[float]:
    """The x of each box's centre: rows pulled towards their neighbours, down and up in turn."""
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for wire in wires:
        above.setdefault(wire.head, []).append(wire.tail)
        below.setdefault(wire.tail, []).append(wire.head)
    x = [0.0] * len(sizes)
    for row in rows:
        _spread(row, [0.0] * len(row), sizes, x)
    for sweep in range(_SWEEPS):
        near, order = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        for row in order:
            _pull(row, near, sizes, x)
    left = min(x[k] - sizes[k][0] / 2 for k in range(len(x)))
    return [value - left for value in x]


def _pull(row: list[int], near: dict[int, list[int]], sizes: Sequence[Size], x: list[float]) -> None:
    wanted = {k: sum(x[n] for n in near[k]) / len(near[k]) if k in near else x[k] for k in row}
    row.sort(key=lambda k: wanted[k])
    _spread(row, [wanted[k] for k in row], sizes, x)


def _spread(row: list[int], wanted: list[float], sizes: Sequence[Size], x: list[float]) -> None:
    """Puts a row's boxes side by side, as near to where they want to be as their order allows."""
    right = 0.0
    placed: list[float] = []
    for k, want in zip(row, wanted, strict=True):
        half = sizes[k][0] / 2
        at = want if not placed else max(want, right + _GAP + half)
        placed.append(at)
        right = at + half
    # What was pushed aside went to the right only: shift all back by the mean of it.
    shift = sum(at - want for at, want in zip(placed, wanted, strict=True)) / len(row)
    for k, at in zip(row, placed, strict=True):
        x[k] = at - shift


def _curve(centres: Sequence[Point], sizes: Sequence[Size], wire: Wire) -> tuple[Point, ...]:
    (x0, y0), (x1, y1) = centres[wire.tail], centres[wire.head]
    start, end = y0 + sizes[wire.tail][1] / 2, y1 - sizes[wire.head][1] / 2
    bend = max(_ROW_GAP / 2, (end - start) / 3)
    return (x0, start), (x0, start + bend), (x1, end - bend), (x1, end)
