"""Products of one matrix in a batch, with their operands in the order that needs the smaller copies.

XLA CPU multiplies `(batch, rows, depth)` by `(batch, depth, columns)` and copies an operand that lies otherwise.
Attention asks for values times probabilities, which copies the probabilities, the largest array of all;
probabilities times values copies a result of a few rows, in about half the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend import core as jex_core

from ..evaluate import bind

Axes = tuple[int, ...]

WORTH_TURNING = 2
"""How many times as many elements must be copied the way a product is written as the other way round."""


def multiply(eqn: jex_core.JaxprEqn, values: Sequence[Any], tag: str | None, **params: Any) -> list[Any]:
    """The results of a `dot_general` of these operands, with `params` in place of its own where given."""
    (contract, batch), (lhs, rhs) = eqn.params["dimension_numbers"], values
    single = (
        eqn.params.get("out_sharding") is None and len(batch[0]) > 0 and all(lhs.shape[axis] == 1 for axis in batch[0])
    )
    free = _free(lhs, contract[0], batch[0]), _free(rhs, contract[1], batch[1])
    as_written = _copied(lhs, batch[0] + free[0] + contract[0]) + _copied(rhs, batch[1] + contract[1] + free[1])
    turned = _copied(rhs, batch[1] + free[1] + contract[1]) + _copied(lhs, batch[0] + contract[0] + free[0])
    result = _size(lhs, free[0]) * _size(rhs, free[1])
    if not single or as_written <= WORTH_TURNING * (turned + result):
        return bind(eqn, values, tag, **params)
    numbers, precision = (contract[::-1], batch[::-1]), eqn.params["precision"]
    swapped = precision[::-1] if isinstance(precision, tuple) else precision
    (product,) = bind(eqn, [rhs, lhs], tag, **params, dimension_numbers=numbers, precision=swapped)
    first, middle, last = len(batch[0]), len(free[1]), len(free[0])
    order = (*range(first), *range(first + middle, first + middle + last), *range(first, first + middle))
    return [lax.transpose(product, order)]


def _free(operand: Any, contract: Axes, batch: Axes) -> Axes:
    return tuple(axis for axis in range(operand.ndim) if axis not in contract and axis not in batch)


def _copied(operand: Any, order: Axes) -> int:
    """Elements to be copied so that the axes lie in this order; those of size 1 lie anywhere."""
    wide = [axis for axis in order if operand.shape[axis] != 1]
    return 0 if wide == sorted(wide) else int(operand.size)


def _size(operand: Any, axes: Axes) -> int:
    return math.prod(operand.shape[axis] for axis in axes)
