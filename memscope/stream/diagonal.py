"""Gathers and scatters whose index counts along with its rows: a diagonal, or each row's own entry.

`jnp.diagonal(k)` gathers `k[i, i]` for `i` in an iota. Row i of the result needs row i of the operand only,
which the primitive's own rule can't see: it takes the values of the indices to know. Its gradient scatters the
same way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from ..axes import At, Factor, factors
from ..axes.factor import shape_of
from ..axes.indexing import picked_axes, wide_indices
from ..axes.table import mapped
from ..evaluate import bind
from ..program import Atom, Program, aval_of, is_var
from .free import generated_vars
from .reach import special

MOST_INDICES = 1 << 22

MOVES_COUNTS = frozenset("convert_element_type broadcast_in_dim reshape squeeze transpose".split())


@special("gather")
def diagonal_factors(program: Program, index: int) -> tuple[Factor, ...]:
    """A factor for each operand axis that a gather reads at the number of the index row."""
    eqn = program.eqns[index]
    dims = eqn.params["dimension_numbers"]
    operand, indices, result = (shape_of(a) for a in (*eqn.invars[:2], eqn.outvars[0]))
    batch_out = [a for a in range(len(result)) if a not in dims.offset_dims]
    found = []
    for row, column in _counting(program, eqn.invars[1], dims.start_indices_batching_dims):
        axis = dims.start_index_map[column]
        if indices[row] == operand[axis] and axis in dims.collapsed_slice_dims:
            found.append(mapped(indices[row], [axis, row], [batch_out[row]]))
    return tuple(found)


@special("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max")
def diagonal_scatter_factors(program: Program, index: int) -> tuple[Factor, ...]:
    """A factor for each operand axis that a scatter writes at the number of the index row."""
    eqn = program.eqns[index]
    dims = eqn.params["dimension_numbers"]
    operand, indices, updates = (shape_of(a) for a in eqn.invars)
    rows = [a for a in range(len(updates)) if a not in dims.update_window_dims]
    found = []
    for row, column in _counting(program, eqn.invars[1], dims.scatter_indices_batching_dims):
        axis = dims.scatter_dims_to_operand_dims[column]
        if indices[row] == operand[axis] and axis in dims.inserted_window_dims:
            found.append(mapped(indices[row], [axis, row, rows[row]], [axis]))
    return tuple(found)


def _counting(program: Program, indices: Atom, batching: Sequence[int]) -> list[tuple[int, int]]:
    """Each (row axis, column) of an index array such that the column's values are the row's numbers."""
    shape = shape_of(indices)
    found = []
    for column in range(shape[-1]):
        part, at = _column(program, indices, column)
        row = _counts(program, part)
        if row is not None and row < len(shape) - 1 and shape_of(part)[-1] == 1:
            rows = [row]
        else:
            rows = _counting_rows(program, part, at)
        found += [(row, column) for row in rows if row not in batching]
    return found


def _column(program: Program, indices: Atom, column: int) -> tuple[Atom, int]:
    """The array that a column of an index array is joined from, and the column's number there."""
    index = program.producer.get(indices) if is_var(indices) else None
    eqn = None if index is None else program.eqns[index]
    if eqn is None or eqn.primitive.name != "concatenate" or eqn.params["dimension"] != len(shape_of(indices)) - 1:
        return indices, column
    for part in eqn.invars:
        if column < shape_of(part)[-1]:
            return _column(program, part, column)
        column -= shape_of(part)[-1]
    raise AssertionError("a column lies in one of the parts")


def _counts(program: Program, atom: Atom) -> int | None:
    """The axis along which an array counts 0, 1, 2, ..., alike along all others, as its eqns show; None if not."""
    index = program.producer.get(atom) if is_var(atom) else None
    if index is None:
        return None
    eqn = program.eqns[index]
    name = eqn.primitive.name
    if name == "iota":
        return int(eqn.params["dimension"])
    if name in MOVES_COUNTS:
        axis = _counts(program, eqn.invars[0])
        held = np.iinfo(dtype).max if np.issubdtype(dtype := aval_of(eqn.outvars[0]).dtype, np.integer) else 0
        if axis is None or shape_of(eqn.invars[0])[axis] > held:
            return None
        ends = ((factor.ins[0], factor.outs[0]) for factor in factors(eqn))
        return next((out.axis for at, out in ends if at == At(axis) and isinstance(out, At) and out.unit == 1), None)
    if name == "select_n" and _is_negative(program, eqn.invars[0], eqn.invars[1]):
        return _counts(program, eqn.invars[1])
    return None


def _is_negative(program: Program, predicate: Atom, number: Atom) -> bool:
    """True for `number < 0`, as negative indices are told from others."""
    index = program.producer.get(predicate) if is_var(predicate) else None
    if index is None or program.eqns[index].primitive.name != "lt":
        return False
    left, right = program.eqns[index].invars
    return left is number and not is_var(right) and not np.any(right.val)


def _counting_rows(program: Program, part: Atom, column: int) -> list[int]:
    """The rows whose numbers are the values of a column that is known before it runs."""
    shape = shape_of(part)
    if not is_var(part) or math.prod(shape) > MOST_INDICES or part not in generated(program):
        return []
    values = constant_value(program, part)
    if values is None:
        return []
    return [row for row in range(len(shape) - 1) if np.array_equal(values[..., column], _numbers(shape[:-1], row))]


def _numbers(shape: Sequence[int], row: int) -> Any:
    """The number of each element along one axis."""
    return np.broadcast_to(np.arange(shape[row]).reshape([-1 if a == row else 1 for a in range(len(shape))]), shape)


def local_indices(eqn: jex_core.JaxprEqn, factor: Factor, indices: Any, first: Any) -> Any:
    """The indices of a window, counted from where the operand's window starts.

    They are widened in any case: XLA cuts a scatter of one row to an update of a slice, and clamps its start to a bound
    that wraps round in a narrow type.
    """
    indices = wide_indices(indices)
    at, column_of = factor.ins[0], picked_axes(eqn)
    if not isinstance(at, At) or at.axis not in column_of:
        return indices
    return indices.at[..., column_of[at.axis]].add(-jax.lax.convert_element_type(first, indices.dtype))


def writes_counted_rows(eqn: jex_core.JaxprEqn, factor: Factor) -> bool:
    """True for a scatter whose rows go to where they count: a row that is read twice would be written twice."""
    if not eqn.primitive.name.startswith("scatter"):
        return False
    at, rows = factor.ins[:2]
    return isinstance(at, At) and isinstance(rows, At) and at.axis in picked_axes(eqn)


@functools.lru_cache(maxsize=8)
def generated(program: Program) -> frozenset[jex_core.Var]:
    """The program's generated intermediates, found once."""
    return generated_vars(program)


def constant_value(program: Program, var: jex_core.Var) -> Any:
    """The value of an intermediate that is made from literals alone; None where it is not."""
    needed: dict[int, None] = {}
    pending = [var]
    while pending:
        index = program.producer.get(pending.pop())
        if index is None:
            return None
        if index not in needed:
            needed[index] = None
            pending += [a for a in program.eqns[index].invars if is_var(a)]
    env: dict[jex_core.Var, Any] = {}
    with jax.ensure_compile_time_eval():
        for index in sorted(needed):
            eqn = program.eqns[index]
            env.update(zip(eqn.outvars, bind(eqn, [env[a] if is_var(a) else a.val for a in eqn.invars]), strict=True))
    return np.asarray(env[var])
