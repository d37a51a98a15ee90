"""Primitives whose result depends on where a window lies: slices, pads, joins and counts.

Along these axes an operand's window is the result's, shifted: `WINDOWS` says by how much, `AT` computes the
result's rows from operands cut so. Rows that fall outside an operand are masked here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .factor import Blocked, Factor, Window, shape_of
from .table import Eqn, mapped

WindowRule = Callable[[Eqn, int, Window], "list[Window | None]"]
PlacedRule = Callable[[Eqn, int, Window, Sequence[Any], Any, int], Any]

WINDOWS: dict[str, WindowRule] = {}
"""(eqn, which result, its window) -> the window of each operand; raises Blocked along other axes."""

AT: dict[str, PlacedRule] = {}
"""(eqn, which result, its window, operands, first row, rows) -> those rows of the result."""


def windowed(name: str) -> Callable[[WindowRule], WindowRule]:
    """Registers how windows pass through a primitive along the axes that have no factor."""

    def register(windows: WindowRule) -> WindowRule:
        WINDOWS[name] = windows
        return windows

    return register


def placed(name: str) -> Callable[[PlacedRule], PlacedRule]:
    """Registers how a primitive's rows are computed when where they lie matters."""

    def register(compute: PlacedRule) -> PlacedRule:
        AT[name] = compute
        return compute

    return register


def shifted_axes(eqn: Eqn) -> Sequence[Factor]:
    """What `WINDOWS` joins, in the form of factors: for following an axis, not for computing along it."""
    if eqn.primitive.name not in WINDOWS:
        return ()
    shape = shape_of(eqn.outvars[0])
    joined = []
    for axis in range(len(shape)):
        try:
            windows = WINDOWS[eqn.primitive.name](eqn, 0, Window(axis))
        except Blocked:
            continue
        ins = [None if w is None else w.axis for w in windows]
        joined.append(mapped(shape[axis], ins, [axis] * len(eqn.outvars)))
    return joined


def row_numbers(rank: int, axis: int, first: Any, count: int) -> Any:
    shape = [1] * rank
    shape[axis] = count
    return lax.broadcasted_iota(np.int32, shape, axis) + lax.convert_element_type(first, np.int32)


def _shifted(window: Window, rows: int) -> Window:
    return dataclasses.replace(window, shift=window.shift + rows)


@windowed("slice")
def slice_window(eqn: Eqn, out: int, window: Window) -> list[Window | None]:
    """Row r of the result is row `start + stride * r` of the operand."""
    start = eqn.params["start_indices"][window.axis]
    stride = (eqn.params["strides"] or (1,) * len(eqn.params["start_indices"]))[window.axis]
    return [Window(window.axis, window.scale * stride, window.shift * stride + start, window.extra * stride)]


@placed("slice")
def slice_rows(eqn: Eqn, out: int, window: Window, operands: Sequence[Any], first: Any, count: int) -> Any:
    """The operand comes cut along the window's axis already; the other axes and the stride remain."""
    (operand,) = operands
    starts, limits = list(eqn.params["start_indices"]), list(eqn.params["limit_indices"])
    starts[window.axis], limits[window.axis] = 0, operand.shape[window.axis]
    return lax.slice(operand, starts, limits, eqn.params["strides"])


@windowed("pad")
def pad_window(eqn: Eqn, out: int, window: Window) -> list[Window | None]:
    """Row r of the result is row `r - low` of the operand."""
    low, _, interior = eqn.params["padding_config"][window.axis]
    if interior:
        raise Blocked("the padding lies between the rows of this axis")
    return [_shifted(window, -low), None]


@placed("pad")
def pad_rows(eqn: Eqn, out: int, window: Window, operands: Sequence[Any], first: Any, count: int) -> Any:
    """Rows outside the operand are the padding value."""
    operand, value = operands
    axis = window.axis
    low, _, _ = eqn.params["padding_config"][axis]
    length = shape_of(eqn.invars[0])[axis]
    others = [(0, 0, 0) if a == axis else c for a, c in enumerate(eqn.params["padding_config"])]
    padded = lax.pad(operand, value, others)
    if length == 0:
        return jnp.full(padded.shape, value, padded.dtype)
    row = row_numbers(padded.ndim, axis, first, count) - low
    return jnp.where((row >= 0) & (row < length), padded, value)


@windowed("concatenate")
def concatenate_window(eqn: Eqn, out: int, window: Window) -> list[Window | None]:
    """Row r of the result is row `r - offset` of one of the operands."""
    if window.axis != int(eqn.params["dimension"]):
        raise Blocked("the concatenation joins arrays along another axis")
    return [_shifted(window, -offset) for offset in _offsets(eqn)]


@placed("concatenate")
def concatenate_rows(eqn: Eqn, out: int, window: Window, operands: Sequence[Any], first: Any, count: int) -> Any:
    """Each row is picked from the operand it lies in."""
    row = row_numbers(len(shape_of(eqn.outvars[0])), window.axis, first, count)
    rows, *rest = operands
    for offset, operand in zip(_offsets(eqn)[1:], rest, strict=True):
        rows = jnp.where(row >= offset, operand, rows)
    return rows


def _offsets(eqn: Eqn) -> list[int]:
    lengths = [shape_of(a)[int(eqn.params["dimension"])] for a in eqn.invars]
    return [sum(lengths[:i]) for i in range(len(lengths))]


@windowed("split")
def split_window(eqn: Eqn, out: int, window: Window) -> list[Window | None]:
    """Row r of part k is row `offset k + r` of the operand."""
    if window.axis != int(eqn.params["axis"]):
        raise Blocked("the split cuts another axis")
    return [_shifted(window, sum(eqn.params["sizes"][:out]))]


@placed("split")
def split_rows(eqn: Eqn, out: int, window: Window, operands: Sequence[Any], first: Any, count: int) -> Any:
    """The operand comes cut already."""
    return operands[0]


@placed("iota")
def iota_rows(eqn: Eqn, out: int, window: Window, operands: Sequence[Any], first: Any, count: int) -> Any:
    """Counts from where the window starts; in whole numbers, as halves can't add up large ones."""
    shape = list(eqn.params["shape"])
    shape[window.axis] = count
    counted = lax.broadcasted_iota(np.int32, shape, eqn.params["dimension"])
    if window.axis == eqn.params["dimension"]:
        counted = lax.add(counted, lax.convert_element_type(first, np.int32))
    return lax.convert_element_type(counted, eqn.params["dtype"])
