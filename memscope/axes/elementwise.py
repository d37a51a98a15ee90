"""Elementwise primitives: every axis of the result is an axis of each operand."""

from __future__ import annotations

from collections.abc import Sequence

from .factor import Factor, shape_of
from .table import Eqn, mapped, rule

ELEMENTWISE = (
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp "
    "clz complex conj convert_element_type copy cos cosh digamma div eq erf erf_inv erfc exp exp2 "
    "expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p "
    "logistic lt max min mul mulhi ne neg nextafter not or polygamma population_count pow real reduce_precision "
    "regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta "
    "name lt_to le_to eq_to layout_constraint log2 one_minus_square polynomial"
).split()


@rule(*ELEMENTWISE)
def elementwise(eqn: Eqn) -> Sequence[Factor]:
    """One factor an axis. A scalar operand, and an operand's axis of size 1 under a longer one, has none."""
    shape = shape_of(eqn.outvars[0])
    return [
        mapped(size, [_axis(shape_of(a), shape, axis) for a in eqn.invars], [axis] * len(eqn.outvars))
        for axis, size in enumerate(shape)
    ]


@rule("sharding_constraint", why="its sharding places the array as a whole")
def sharding_constraint(eqn: Eqn) -> Sequence[Factor]:
    """Elementwise where it cuts no axis."""
    return elementwise(eqn) if getattr(eqn.params["sharding"], "is_fully_replicated", False) else []


@rule("device_put", why="the array is moved whole to another device or memory")
def device_put(eqn: Eqn) -> Sequence[Factor]:
    """As a barrier where nothing moves, as in `jnp.array(x)`."""
    return barrier(eqn) if all(device is None for device in eqn.params["devices"]) else []


@rule("optimization_barrier", why="the barrier ties several arrays together")
def barrier(eqn: Eqn) -> Sequence[Factor]:
    """Result i is operand i, whatever the shapes of the others."""
    places: list[Factor] = []
    for i, var in enumerate(eqn.outvars):
        for axis, size in enumerate(shape_of(var)):
            only = [axis if j == i else None for j in range(len(eqn.outvars))]
            places.append(mapped(size, only, only))
    return places


def _axis(operand: tuple[int, ...], result: tuple[int, ...], axis: int) -> int | None:
    return axis if len(operand) == len(result) and operand[axis] == result[axis] else None


@rule("bitcast_convert_type", why="the elements of this axis are taken apart")
def bitcast_convert_type(eqn: Eqn) -> Sequence[Factor]:
    """Elementwise, but for a last axis that a narrower or wider type adds or takes away."""
    operand, result = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    return [mapped(size, [axis], [axis]) for axis, size in enumerate(result[: min(len(operand), len(result))])]
