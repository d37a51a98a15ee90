"""Reductions in the form that XLA CPU's reference build runs best.

It fuses a reduction of at most 32 elements with its operand and materialises the operand of a longer one,
so a long one is cut into blocks. And it vectorises along the result's last axis, so where the reduced axis
is the operand's last (a distance summed over its features), the operand is made with that axis in front.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any

from jax import lax
from jax.extend import core as jex_core

from ..axes.elementwise import ELEMENTWISE
from ..axes.factor import shape_of
from ..evaluate import bind
from ..program import Atom, Program, is_var

BLOCK, MOST_BLOCKS = 32, 16


class Form(enum.Enum):
    """How reductions inside loops are written.

    PLAIN: as they are. BLOCKS: long ones in blocks. LANES: also with a reduced last axis in front, which
    takes a turned copy of what the loop reads whole.
    """

    PLAIN = "plain"
    BLOCKS = "blocks"
    LANES = "lanes"


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": lax.add,
    "reduce_prod": lax.mul,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_and": lax.bitwise_and,
    "reduce_or": lax.bitwise_or,
}


def fusible_operand(program: Program, reduction: jex_core.JaxprEqn) -> bool:
    """True where a reduction's operand is elementwise and read by nobody else, so that it need never exist."""
    operand = reduction.invars[0]
    return _is_private(program, operand) and _maker(program, operand).primitive.name in ELEMENTWISE


def fused_chain(program: Program, eqn: jex_core.JaxprEqn) -> list[jex_core.Var]:
    """The intermediates of an elementwise chain that is fused into the reduction `eqn`; none where it is no such thing."""
    if eqn.primitive.name not in JOINS or not fusible_operand(program, eqn):
        return []
    chain, pending = [], list(eqn.invars)
    while pending:
        atom = pending.pop()
        if _is_private(program, atom) and _maker(program, atom).primitive.name in (*ELEMENTWISE, "broadcast_in_dim"):
            chain.append(atom)
            pending += _maker(program, atom).invars
    return chain


def reduces_lanes(program: Program, reduction: jex_core.JaxprEqn) -> bool:
    """True where the reduced axis is the last one of a chain of elementwise ops over smaller, broadcast arrays.

    Turning those is cheap beside the work on what they are broadcast to.
    """
    shape = shape_of(reduction.invars[0])
    axes = [int(a) for a in reduction.params["axes"]]
    if len(shape) < 3 or axes != [len(shape) - 1]:
        return False
    return _is_turnable(program, reduction.invars[0])


def _is_turnable(program: Program, atom: Atom) -> bool:
    if shape_of(atom) == ():
        return True
    if not _is_private(program, atom):
        return False
    eqn = _maker(program, atom)
    if eqn.primitive.name == "broadcast_in_dim":
        return True
    return eqn.primitive.name in ELEMENTWISE and all(_is_turnable(program, a) for a in eqn.invars)


def _is_private(program: Program, atom: Atom) -> bool:
    """True for an intermediate with a single reader."""
    return (
        is_var(atom)
        and atom in program.producer
        and atom not in program.outputs
        and len(program.consumers[atom]) == 1
    )


def _maker(program: Program, atom: Any) -> jex_core.JaxprEqn:
    return program.eqns[program.producer[atom]]


def in_blocks(eqn: jex_core.JaxprEqn, value: Any, tag: str) -> Any:
    """The reduction of `value` in blocks of at most 32 elements of its longest axis, of equal size as far as that goes."""
    axis = max((int(a) for a in eqn.params["axes"]), key=lambda a: value.shape[a])
    length = value.shape[axis]
    count = -(-length // BLOCK)
    if not 1 < count <= MOST_BLOCKS:
        return bind(eqn, [value], tag)[0]
    size = -(-length // count)
    blocks = [lax.slice_in_dim(value, i, min(i + size, length), axis=axis) for i in range(0, length, size)]
    return functools.reduce(JOINS[eqn.primitive.name], (bind(eqn, [block], tag)[0] for block in blocks))


def lane_block(length: int) -> int:
    """How many lanes to reduce at once: all of a short axis, else a divisor near 16, which ran fastest."""
    if length <= BLOCK:
        return length
    near = sorted(range(BLOCK // 3, BLOCK + 1), key=lambda size: abs(size - BLOCK // 2))
    return next((size for size in near if length % size == 0), BLOCK // 2)


def chain_leaves(program: Program, reduction: jex_core.JaxprEqn) -> list[jex_core.Var]:
    """The broadcast arrays that the elementwise chain under a reduction starts from."""
    leaves, pending = [], list(reduction.invars)
    while pending:
        atom = pending.pop()
        if shape_of(atom) != ():
            eqn = _maker(program, atom)
            if eqn.primitive.name == "broadcast_in_dim":
                leaves.append(eqn.outvars[0])
            else:
                pending += eqn.invars
    return leaves


def turn(value: Any) -> Any:
    """`value` with its last axis moved to the front."""
    rank = value.ndim
    return lax.transpose(value, (rank - 1, *range(rank - 1)))
