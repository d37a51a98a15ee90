"""What an array is along one of its axes, read off the eqns that make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core

from ..axes.elementwise import ELEMENTWISE
from ..axes.factor import shape_of
from ..evaluate import Env, bind
from ..program import Atom, Program, aval_of, is_var

Eqn = jex_core.JaxprEqn


def eqn_of(program: Program, atom: Atom) -> Eqn | None:
    """The eqn that makes `atom`; None for literals and arguments."""
    index = program.producer.get(atom) if is_var(atom) else None
    return None if index is None else program.eqns[index]


def is_constant(program: Program, atom: Atom, axis: int) -> bool:
    """Whether all elements along `axis` are alike by construction."""
    shape = shape_of(atom)
    if not shape or shape[axis] == 1:
        return True
    eqn = eqn_of(program, atom)
    if eqn is None:
        return False
    match eqn.primitive.name:
        case "broadcast_in_dim":
            inner = _broadcast_axis(eqn, axis)
            return inner is None or is_constant(program, eqn.invars[0], inner)
        case "iota":
            return int(eqn.params["dimension"]) != axis
        case name if name in ELEMENTWISE:
            return all(is_constant(program, operand, axis) for operand in eqn.invars)
    return False


def counts_from(program: Program, atom: Atom, axis: int) -> int | None:
    """The first of the integers that it counts up along `axis`, whatever its other indices; None where it does not."""
    if not shape_of(atom) or not jnp.issubdtype(aval_of(atom).dtype, jnp.integer):
        return None
    eqn = eqn_of(program, atom)
    if eqn is None:
        return None
    match eqn.primitive.name:
        case "iota":
            return 0 if int(eqn.params["dimension"]) == axis else None
        case "broadcast_in_dim":
            inner = _broadcast_axis(eqn, axis)
            return None if inner is None else counts_from(program, eqn.invars[0], inner)
        case "convert_element_type" | "copy":
            return counts_from(program, eqn.invars[0], axis)
        case "add" | "sub":
            first, step = counts_from(program, eqn.invars[0], axis), eqn.invars[1]
            if first is None or is_var(step) or shape_of(step):
                return None
            return first + int(step.val) if eqn.primitive.name == "add" else first - int(step.val)
    return None


def without(program: Program, env: Env, atom: Atom, axis: int) -> Any:
    """The array without an axis along which it is constant, made from small operands where it is a broadcast.

    Args:
      env: the values of the program's vars.
    """
    value = env[atom] if is_var(atom) else atom.val
    shape, eqn = shape_of(atom), eqn_of(program, atom)
    if not shape:
        return value
    if eqn is not None and shape[axis] != 1:
        make = _WITHOUT.get("elementwise" if eqn.primitive.name in ELEMENTWISE else eqn.primitive.name)
        if make is not None:
            return make(program, env, eqn, axis)
    return lax.index_in_dim(value, 0, axis, keepdims=False)


def _broadcast_without(program: Program, env: Env, eqn: Eqn, axis: int) -> Any:
    (operand,), shape = eqn.invars[:1], shape_of(eqn.outvars[0])
    inner = _broadcast_axis(eqn, axis)
    dims = [int(d) for d in eqn.params["broadcast_dimensions"]]
    if axis in dims:
        position = dims.index(axis)
        value = without(program, env, operand, position if inner is None else inner)
        dims.remove(axis)
    else:
        value = env[operand] if is_var(operand) else operand.val
    return lax.broadcast_in_dim(value, _drop(shape, axis), [d - (d > axis) for d in dims])


def _iota_without(program: Program, env: Env, eqn: Eqn, axis: int) -> Any:
    along = int(eqn.params["dimension"])
    return lax.broadcasted_iota(eqn.params["dtype"], _drop(shape_of(eqn.outvars[0]), axis), along - (along > axis))


def _elementwise_without(program: Program, env: Env, eqn: Eqn, axis: int) -> Any:
    (value,) = bind(eqn, [without(program, env, operand, axis) for operand in eqn.invars])
    return value


_WITHOUT: dict[str, Callable[[Program, Env, Eqn, int], Any]] = {
    "broadcast_in_dim": _broadcast_without,
    "iota": _iota_without,
    "elementwise": _elementwise_without,
}


def _broadcast_axis(eqn: Eqn, axis: int) -> int | None:
    """The operand's axis that lies along `axis` of the result; None where the operand is repeated along it."""
    dims = [int(d) for d in eqn.params["broadcast_dimensions"]]
    if axis not in dims:
        return None
    inner = dims.index(axis)
    return inner if shape_of(eqn.invars[0])[inner] == shape_of(eqn.outvars[0])[axis] else None


def _drop(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]
