"""Reductions that XLA CPU's reference build can fuse with their operand.

It fuses a reduction of at most 32 elements and materialises the operand of a longer one, so a long one is
cut into blocks where its operand need not exist otherwise.
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


def chain(program: Program, reduction: jex_core.JaxprEqn) -> tuple[list[jex_core.Var], list[jex_core.Var]]:
    """The elementwise chain that is fused into a reduction: what is made in it, and the arrays it starts from."""
    made: list[jex_core.Var] = []
    leaves: list[jex_core.Var] = []
    if reduction.primitive.name not in JOINS or not fusible_operand(program, reduction):
        return made, leaves
    pending = list(reduction.invars)
    while pending:
        atom = pending.pop()
        if not is_var(atom) or shape_of(atom) == ():
            continue
        if _is_private(program, atom) and _maker(program, atom).primitive.name in ELEMENTWISE:
            made.append(atom)
            pending += _maker(program, atom).invars
        else:
            leaves.append(atom)
    return made, leaves


def reduces_lanes(program: Program, reduction: jex_core.JaxprEqn) -> bool:
    """True where the reduced axis is the last one of an elementwise chain over smaller, broadcast arrays.

    Turning those is cheap beside the work on what they are broadcast to.
    """
    if reduction.primitive.name not in JOINS:
        return False
    shape = shape_of(reduction.invars[0])
    axes = [int(a) for a in reduction.params["axes"]]
    made, leaves = chain(program, reduction)
    return (
        len(shape) >= 3
        and axes == [len(shape) - 1]
        and bool(made)
        and all(1 in shape_of(leaf) or shape_of(leaf)[-1] == 1 for leaf in leaves)
    )


def in_blocks(eqn: jex_core.JaxprEqn, value: Any, tag: str | None) -> Any:
    """The reduction of `value` in blocks of at most 32 of its longest axis, of equal size as far as that goes."""
    axis = max((int(a) for a in eqn.params["axes"]), key=lambda a: value.shape[a])
    length = value.shape[axis]
    count = -(-length // BLOCK)
    if not 1 < count <= MOST_BLOCKS:
        return _without_unit_axes(eqn, value, tag)
    size = -(-length // count)
    blocks = [lax.slice_in_dim(value, i, min(i + size, length), axis=axis) for i in range(0, length, size)]
    return functools.reduce(JOINS[eqn.primitive.name], (bind(eqn, [block], tag)[0] for block in blocks))


def _without_unit_axes(eqn: jex_core.JaxprEqn, value: Any, tag: str | None) -> Any:
    """The reduction of `value` without its axes of size 1, which keep XLA CPU's plain build from its fast kernels.

    A sum of products over rows of an array like (1, 131, 4001) took nine times as long there as over (131, 4001).
    """
    axes = [int(a) for a in eqn.params["axes"]]
    kept = [a for a, size in enumerate(value.shape) if size != 1 or a in axes]
    if len(kept) == value.ndim:
        return bind(eqn, [value], tag)[0]
    squeezed = lax.reshape(value, [value.shape[a] for a in kept])
    reduced = bind(eqn, [squeezed], tag, axes=tuple(kept.index(a) for a in axes))[0]
    return lax.reshape(reduced, [size for a, size in enumerate(value.shape) if a not in axes])


def _is_private(program: Program, atom: Atom) -> bool:
    """True for an intermediate with a single reader."""
    return (
        is_var(atom) and atom in program.producer and atom not in program.outputs and len(program.consumers[atom]) == 1
    )


def _maker(program: Program, atom: Any) -> jex_core.JaxprEqn:
    return program.eqns[program.producer[atom]]
