"""Convolutions and pooling: batches and features as in a matrix product, rows window by window.

Where windows lie side by side their rows are a factor; where they overlap, each chunk reads rows of the next as
well, its halo, and rows that stand for padding are filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..program import aval_of
from .factor import At, Blocked, Factor, Window, shape_of
from .reduction import has_extremes
from .table import Eqn, folded, mapped, resize, rule
from .windows import placed, row_numbers, windowed

OVERLAP = "windows take rows of this axis in a way that no chunk of rows follows"


@rule("conv_general_dilated", why=f"the convolution's {OVERLAP}")
def conv_general_dilated(eqn: Eqn) -> Sequence[Factor]:
    """`n c x, o c w -> n o y`, with c added up; in a grouped one, the groups instead."""
    dims = eqn.params["dimension_numbers"]
    (n, c), (o, i), (to_n, to_o) = dims.lhs_spec[:2], dims.rhs_spec[:2], dims.out_spec[:2]
    lhs, rhs = shape_of(eqn.invars[0]), shape_of(eqn.invars[1])
    batches, features = eqn.params["batch_group_count"], eqn.params["feature_group_count"]
    factors = list(_spatial(eqn))
    if batches == 1:
        factors.append(mapped(lhs[n], [n, None], [to_n]))
    if features == 1:
        factors.append(folded(lhs[c], [c, i], 1, "dot"))
    if batches == features == 1:
        return [*factors, mapped(rhs[o], [None, o], [to_o])]
    groups, axis = (batches, n) if batches > 1 else (features, c)
    unit = rhs[o] // groups
    return [*factors, Factor(groups, (At(axis, lhs[axis] // groups), At(o, unit)), (At(to_o, unit),))]


@resize("conv_general_dilated")
def _group_count(eqn: Eqn, factor: Factor, steps: int) -> dict[str, Any]:
    by_group = all((*factor.ins, *factor.outs))
    names = ("batch_group_count", "feature_group_count")
    return {name: steps for name in names if by_group and eqn.params[name] > 1}


def _spatial(eqn: Eqn) -> Iterator[Factor]:
    """Patches `(y w) -> y`, their transpose `x -> (x w)`, and the gradient of their kernel, which adds up y."""
    dims, params = eqn.params["dimension_numbers"], eqn.params
    shapes = [shape_of(a) for a in (*eqn.invars, *eqn.outvars)]
    for place, (x, k, y) in enumerate(zip(dims.lhs_spec[2:], dims.rhs_spec[2:], dims.out_spec[2:], strict=True)):
        rows, taps, results = shapes[0][x], shapes[1][k], shapes[2][y]
        stride, spread, dilation = (params[p][place] for p in ("window_strides", "lhs_dilation", "rhs_dilation"))
        low, high = params["padding"][place]
        width = (taps - 1) * dilation + 1
        if spread == 1 and low == high == 0 and width <= stride:
            yield Factor(results, (At(x, stride), None), (At(y),))
        elif stride == 1 and width <= spread and low == width - 1 and results == spread * rows:
            yield Factor(rows, (At(x), None), (At(y, spread),))
        elif stride == spread == 1 and low == 0 >= high and rows == dilation * taps:
            yield Factor(taps, (At(x, dilation), At(k)), (None,), "dot")


POOLING = "reduce_window_sum reduce_window_max reduce_window_min reduce_window select_and_gather_add".split()


@rule(*POOLING, why=f"the pooling's {OVERLAP}")
def pooling(eqn: Eqn) -> Sequence[Factor]:
    """`(n w) -> n`; initial values are scalars."""
    operands = [a for a in eqn.invars if shape_of(a)]
    scalars = [None] * (len(eqn.invars) - len(operands))
    return [
        Factor(size, (*[At(axis, unit)] * len(operands), *scalars), (At(axis),) * len(eqn.outvars))
        for axis, size, unit in _side_by_side(eqn, shape_of(eqn.outvars[0]))
    ]


@rule("select_and_scatter_add", why=f"the pooling's {OVERLAP}")
def pooling_gradient(eqn: Eqn) -> Sequence[Factor]:
    """`n, (n w) -> (n w)`: each window's cotangent goes to one of its rows."""
    source, operand = map(shape_of, eqn.invars)
    return [
        Factor(size, (At(axis), At(axis, unit)), (At(axis, unit),))
        for axis, size, unit in _side_by_side(eqn, source)
        if size * unit == operand[axis]
    ]


def _side_by_side(eqn: Eqn, windows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The axes without padding along which windows are disjoint: (axis, windows, rows from one to the next)."""
    params, ones = eqn.params, (1,) * len(windows)
    base, dilation = params.get("base_dilation", ones), params.get("window_dilation", ones)
    for axis, (size, stride) in enumerate(zip(params["window_dimensions"], params["window_strides"], strict=True)):
        disjoint = (size - 1) * dilation[axis] + 1 <= stride and base[axis] == 1
        if disjoint and tuple(params["padding"][axis]) == (0, 0):
            yield axis, windows[axis], stride


# Overlapping windows.


def _halo(window: Window, axis: int, stride: int, low: int, width: int) -> Window:
    """The rows that windows of `width` rows, `stride` apart, read of an axis that is padded by `low` in front."""
    extra = window.extra * stride + max(0, width - stride)
    return Window(axis, window.scale * stride, window.shift * stride - low, extra)


def _filled(rows: Any, axis: int, first: Any, length: int, value: Any) -> Any:
    """The rows of a halo window, those outside the array replaced by what stands for padding."""
    number = row_numbers(rows.ndim, axis, first, rows.shape[axis])
    return jnp.where((number >= 0) & (number < length), rows, jnp.asarray(value, rows.dtype))


def _convolved(eqn: Eqn, window: Window) -> tuple[int, int, int, int, int]:
    """Of the spatial axis that a window of the result lies on: its number, the operand's axis, stride, low, width."""
    dims, params = eqn.params["dimension_numbers"], eqn.params
    if window.axis not in dims.out_spec[2:]:
        raise Blocked(OVERLAP)
    place = dims.out_spec[2:].index(window.axis)
    if params["lhs_dilation"][place] != 1:
        raise Blocked("the convolution spreads the rows of this axis out")
    taps = shape_of(eqn.invars[1])[dims.rhs_spec[2 + place]]
    width = (taps - 1) * params["rhs_dilation"][place] + 1
    return place, dims.lhs_spec[2 + place], params["window_strides"][place], params["padding"][place][0], width


@windowed("conv_general_dilated")
def convolution_window(eqn: Eqn, out: int, window: Window) -> list[Window | None]:
    """Row r of the result reads the rows from `stride * r - low` on."""
    _, axis, stride, low, width = _convolved(eqn, window)
    return [_halo(window, axis, stride, low, width), None]


@placed("conv_general_dilated")
def convolution_rows(eqn: Eqn, out: int, window: Window, operands: Sequence[Any], first: Any, count: int) -> Any:
    """A convolution without padding along the window's axis, on rows that have it already."""
    place, axis, stride, low, width = _convolved(eqn, window)
    lhs, rhs = operands
    rows = _filled(lhs, axis, first * stride - low, shape_of(eqn.invars[0])[axis], 0)
    rows = lax.slice_in_dim(rows, 0, (count - 1) * stride + width, axis=axis)
    padding = [(0, 0) if i == place else p for i, p in enumerate(eqn.params["padding"])]
    params = {**eqn.params, "padding": tuple(padding)}
    return convolve(
        eqn, rows, rhs, lambda lhs, rhs, dims: eqn.primitive.bind(lhs, rhs, **{**params, "dimension_numbers": dims})
    )


def convolve(eqn: Eqn, lhs: Any, rhs: Any, bind: Callable[[Any, Any, lax.ConvDimensionNumbers], Any]) -> Any:
    """The convolution of these operands, with their axes in the order that XLA CPU's fast kernel takes.

    XLA puts them in that order itself, but not inside loops: what it finds there in any other, as the gradients of
    convolutions are, it computes tap by tap, twenty times as slowly.

    Args:
      bind: the convolution of operands in an order that it is told.
    """
    dims, last = eqn.params["dimension_numbers"], lhs.ndim - 1
    (n, c, *x), (o, i, *k), (to_n, to_o, *y) = dims.lhs_spec, dims.rhs_spec, dims.out_spec
    middle = tuple(range(1, last))
    usual = lax.ConvDimensionNumbers((0, last, *middle), (last, last - 1, *range(last - 1)), (0, last, *middle))
    result = bind(lax.transpose(lhs, (n, *x, c)), lax.transpose(rhs, (*k, i, o)), usual)
    comes_from = dict(zip((to_n, *y, to_o), range(lhs.ndim), strict=True))
    return lax.transpose(result, [comes_from[axis] for axis in range(lhs.ndim)])


def _pooled(eqn: Eqn, window: Window) -> tuple[int, int, int]:
    """Stride, padding in front and width of the windows along an axis."""
    params, axis = eqn.params, window.axis
    if params["base_dilation"][axis] != 1:
        raise Blocked("the pooling spreads the rows of this axis out")
    width = (params["window_dimensions"][axis] - 1) * params["window_dilation"][axis] + 1
    return params["window_strides"][axis], params["padding"][axis][0], width


def pooling_window(eqn: Eqn, out: int, window: Window) -> list[Window | None]:
    """Row r of the result reads the rows from `stride * r - low` on."""
    stride, low, width = _pooled(eqn, window)
    if eqn.primitive.name != "reduce_window_sum" and not has_extremes(aval_of(eqn.invars[0]).dtype):
        raise Blocked("no number of this type stands for padding")
    return [_halo(window, window.axis, stride, low, width)]


def pooling_rows(eqn: Eqn, out: int, window: Window, operands: Sequence[Any], first: Any, count: int) -> Any:
    """Pooling without padding along the window's axis, on rows that have it already."""
    stride, low, width = _pooled(eqn, window)
    axis = window.axis
    rows = _filled(operands[0], axis, first * stride - low, shape_of(eqn.invars[0])[axis], _neutral(eqn))
    rows = lax.slice_in_dim(rows, 0, (count - 1) * stride + width, axis=axis)
    padding = tuple((0, 0) if a == axis else p for a, p in enumerate(eqn.params["padding"]))
    return eqn.primitive.bind(rows, **{**eqn.params, "padding": padding})


def _neutral(eqn: Eqn) -> Any:
    """What padding counts as."""
    dtype = aval_of(eqn.invars[0]).dtype
    if eqn.primitive.name == "reduce_window_sum":
        return 0
    lowest = eqn.primitive.name == "reduce_window_max"
    if dtype == np.bool_:
        return not lowest
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf if lowest else jnp.inf
    return jnp.iinfo(dtype).min if lowest else jnp.iinfo(dtype).max


for _name in ("reduce_window_sum", "reduce_window_max", "reduce_window_min"):
    windowed(_name)(pooling_window)
    placed(_name)(pooling_rows)
