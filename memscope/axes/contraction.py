"""Products of arrays: batch and free axes are mapped, contracted ones summed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .factor import At, Factor, shape_of
from .table import Eqn, folded, mapped, rule


@rule("dot_general")
def dot_general(eqn: Eqn) -> Sequence[Factor]:
    """`b n k, b m k -> b n m`, with k added up."""
    return _dot(eqn, eqn.params["dimension_numbers"])


def _dot(eqn: Eqn, dimension_numbers: Any, groups: Sequence[int] = ()) -> list[Factor]:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    lhs, rhs = shape_of(eqn.invars[0]), shape_of(eqn.invars[1])
    lhs_free = [a for a in range(len(lhs)) if a not in {*lhs_contract, *lhs_batch}]
    rhs_free = [a for a in range(len(rhs)) if a not in {*rhs_contract, *rhs_batch, *groups}]
    batch, rows = len(lhs_batch), len(lhs_batch) + len(lhs_free)
    return [
        *(mapped(lhs[i], [i, j], [axis]) for axis, (i, j) in enumerate(zip(lhs_batch, rhs_batch, strict=True))),
        *(mapped(lhs[i], [i, None], [batch + axis]) for axis, i in enumerate(lhs_free)),
        *(mapped(rhs[j], [None, j], [rows + axis]) for axis, j in enumerate(rhs_free)),
        *(folded(lhs[i], [i, j], 1, "dot") for i, j in zip(lhs_contract, rhs_contract, strict=True)),
    ]


@rule("scaled_dot", why="one scale serves all of this axis")
def scaled_dot(eqn: Eqn) -> Sequence[Factor]:
    """A dot whose operands each have an array of scales, one for each row and each block of k."""
    lhs, rhs, *scales = (shape_of(a) for a in eqn.invars)
    factors = []
    for factor in _dot(eqn, eqn.params["dimension_numbers"]):
        if factor.fold is None:
            factors.append(Factor(factor.size, (*factor.ins, *factor.ins), factor.outs))
            continue
        (i, j) = (at.axis for at in factor.ins if isinstance(at, At))
        blocks = [scale[axis] for scale, axis in zip(scales, (i, j), strict=True)]
        size = math.gcd(*(b for b in blocks if b > 1)) or factor.size
        places = [At(a, n // size) if n > 1 else None for a, n in zip((i, j), blocks, strict=True)]
        factors.append(Factor(size, (At(i, lhs[i] // size), At(j, rhs[j] // size), *places), (None,), "dot"))
    return factors


@rule("ragged_dot_general", why="where its groups begin along this axis is only known at run time")
def ragged_dot_general(eqn: Eqn) -> Sequence[Factor]:
    """`n k, g k m, g -> n m`: as a dot, but for g and the axis that is cut into groups."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    if len(shape_of(eqn.invars[2])) > 1:
        return []
    (ragged,), dims = numbers.lhs_ragged_dimensions, numbers.dot_dimension_numbers
    (contract, _), _ = dims
    first = int(ragged in contract)  # a result for each group: they come as a new axis in front
    return [
        Factor(factor.size, (*factor.ins, None), tuple(_behind(at, first) for at in factor.outs), factor.fold)
        for factor in _dot(eqn, dims, numbers.rhs_group_dimensions)
        if factor.ins[0] != At(ragged)
    ]


def _behind(at: Any, axes: int) -> At | None:
    return At(at.axis + axes) if isinstance(at, At) else None
