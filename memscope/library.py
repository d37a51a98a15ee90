"""Which rewritten programs suit XLA CPU's library of kernels, to which its plain build hands them.

The library (YNNPACK) runs dots, elementwise chains and reductions of whole rows on all cores and in few passes:
along rows of 1000 a sum took half as long as in XLA's own loops, a maximum a fifth. Other reductions take many
times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax import numpy as jnp
from jax.extend import core as jex_core

from .axes.factor import shape_of
from .axes.reduction import COMBINERS
from .cost import Estimate, matrix, trips
from .program import aval_of

SHORT, WIDE, WIDEST = 8, 8192, 16384
"""Elements: of a row that is no row, and of rows too wide to be summed up a few or many at a time."""

FEW_ROWS, SHORT_ROWS, NARROW_ROWS, SINGLE, WIDEST_ROWS = 1.3e-9, 0.8e-9, 1.6e-9, 5e-9, 2.7e-9
"""Seconds that an element takes, measured on two cores; XLA's own loops take a tenth of that."""

MOST_OF_TIME = 0.25
"""Of a program's time that such reductions may take and leave a gain."""


def suits_library(closed: jex_core.ClosedJaxpr, estimate: Estimate) -> bool:
    """False where reductions that the library is slow at would take a large part of the time."""
    return _slow_seconds(closed.jaxpr) <= MOST_OF_TIME * estimate.seconds


def _slow_seconds(jaxpr: jex_core.Jaxpr) -> float:
    return sum(_seconds(eqn) for eqn in jaxpr.eqns)


def _seconds(eqn: jex_core.JaxprEqn) -> float:
    if eqn.primitive.name == "dot_general":
        return SINGLE * math.prod(shape_of(eqn.invars[0])) if _multiplies_vectors(eqn) else 0.0
    if eqn.primitive.name not in COMBINERS:
        return trips(eqn) * max(map(_slow_seconds, jex_core.jaxprs_in_params(eqn.params)), default=0.0)
    operand = eqn.invars[0]
    if not jnp.issubdtype(aval_of(operand).dtype, jnp.floating):
        return 0.0
    sizes = shape_of(operand)
    return math.prod(sizes) * seconds_per_element(sizes, [int(axis) for axis in eqn.params["axes"]])


def _multiplies_vectors(dot: jex_core.JaxprEqn) -> bool:
    """True for a batch of products of two vectors, which XLA turns into a reduction."""
    rows, columns, _ = matrix(dot)
    _, (batch, _) = dot.params["dimension_numbers"]
    return rows == columns == 1 and len(batch) > 0


def seconds_per_element(sizes: Sequence[int], axes: Sequence[int]) -> float:
    """What the library takes to reduce these axes, where it is slow at that; 0 elsewhere."""
    reduced = {axis for axis in axes if sizes[axis] > 1}
    if not reduced:
        return 0.0
    last = len(sizes) - 1
    if last in reduced:
        return SHORT_ROWS if _run(sizes, reduced) < SHORT else 0.0
    row = math.prod(sizes[max(reduced) + 1 :])
    if row < SHORT:
        return SINGLE if row == 1 else NARROW_ROWS
    if row > WIDEST:
        return WIDEST_ROWS
    return FEW_ROWS if row > WIDE and _run(sizes[: max(reduced) + 1], reduced) < SHORT else 0.0


def _run(sizes: Sequence[int], reduced: set[int]) -> int:
    """Elements of the reduced axes that run together up to the last one."""
    first = next((axis for axis in range(len(sizes) - 1, -1, -1) if axis not in reduced), -1) + 1
    return math.prod(sizes[first:])
