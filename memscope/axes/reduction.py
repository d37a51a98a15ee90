"""Reductions: an axis of the operand disappears, joined by a combiner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..program import aval_of
from .factor import Factor, shape_of
from .table import Eqn, folded, mapped, rule

COMBINERS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
    "reduce_xor": "xor",
    "argmax": "argmax",
    "argmin": "argmin",
}


@rule(*COMBINERS, why="there is no largest or smallest number of this type to start from")
def reduction(eqn: Eqn) -> Sequence[Factor]:
    """`n k -> n`, with k folded."""
    shape = shape_of(eqn.invars[0])
    axes = {int(a) % len(shape) for a in eqn.params["axes"]}
    combiner = COMBINERS[eqn.primitive.name]
    kept = [a for a in range(len(shape)) if a not in axes]
    return [
        *(mapped(shape[source], [source], [axis]) for axis, source in enumerate(kept)),
        *(folded(shape[axis], [axis], 1, combiner) for axis in sorted(axes) if _has_identity(eqn)),
    ]


def _has_identity(eqn: Eqn) -> bool:
    """False for the largest or smallest of numbers of a type that has no number below or above all of them."""
    if COMBINERS[eqn.primitive.name] not in ("max", "min", "argmax", "argmin"):
        return True
    return has_extremes(aval_of(eqn.invars[0]).dtype)


def has_extremes(dtype: Any) -> bool:
    """Whether a type has a least and a largest value; complex numbers and floats without infinities have none."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return False
    return not jnp.issubdtype(dtype, jnp.floating) or bool(np.isinf(np.asarray(np.inf).astype(dtype)))


@rule("reduce", why="only the function that it reduces with could join the parts")
def variadic_reduce(eqn: Eqn) -> Sequence[Factor]:
    """A user's own combiner: the axes that stay are mapped; its initial values are scalars."""
    operands = len(eqn.outvars)
    shape = shape_of(eqn.invars[0])
    axes = {int(a) for a in eqn.params["dimensions"]}
    kept = [a for a in range(len(shape)) if a not in axes]
    return [
        mapped(shape[source], [source] * operands + [None] * operands, [axis] * operands)
        for axis, source in enumerate(kept)
    ]
