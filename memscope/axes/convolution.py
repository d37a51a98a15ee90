"""Convolutions and pooling: batches and features as in a matrix product, rows where windows lie side by side.

Windows that overlap read rows of the next chunk as well (a halo), which no factor has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .factor import At, Factor, shape_of
from .table import Eqn, folded, mapped, resize, rule

OVERLAP = "windows overlap along this axis, so that each chunk would need rows of the next"


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
