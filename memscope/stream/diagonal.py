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

from ..axes import At, Factor
from ..axes.factor import shape_of
from ..axes.table import mapped
from ..evaluate import bind
from ..program import Atom, Program, is_var
from .free import generated_vars
from .reach import special

MOST_INDICES = 1 << 22


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
    if math.prod(shape) > MOST_INDICES:
        return []
    found = []
    for column in range(shape[-1]):
        values = _column(program, indices, column)
        if values is None:
            continue
        for row in range(len(shape) - 1):
            count = np.arange(shape[row]).reshape([-1 if a == row else 1 for a in range(len(shape) - 1)])
            if row not in batching and np.array_equal(values, np.broadcast_to(count, shape[:-1])):
                found.append((row, column))
    return found


def _column(program: Program, indices: Atom, column: int) -> Any:
    """The values of one column of an index array; None where they are not known before it runs."""
    if not is_var(indices):
        return None
    if indices in generated(program):
        values = constant_value(program, indices)
        return None if values is None else values[..., column]
    index = program.producer.get(indices)
    eqn = None if index is None else program.eqns[index]
    if eqn is None or eqn.primitive.name != "concatenate" or eqn.params["dimension"] != len(shape_of(indices)) - 1:
        return None
    for part in eqn.invars:
        if column < shape_of(part)[-1]:
            return _column(program, part, column)
        column -= shape_of(part)[-1]
    return None


def local_indices(eqn: jex_core.JaxprEqn, factor: Factor, indices: Any, first: Any) -> Any:
    """The indices of a window, counted from where the operand's window starts."""
    at = factor.ins[0]
    dims = eqn.params["dimension_numbers"]
    indexed = dims.start_index_map if eqn.primitive.name == "gather" else dims.scatter_dims_to_operand_dims
    if not isinstance(at, At) or at.axis not in indexed:
        return indices
    return indices.at[..., indexed.index(at.axis)].add(-jax.lax.convert_element_type(first, indices.dtype))


def writes_counted_rows(eqn: jex_core.JaxprEqn, factor: Factor) -> bool:
    """True for a scatter whose rows go to where they count: a row that is read twice would be written twice."""
    if not eqn.primitive.name.startswith("scatter"):
        return False
    at = factor.ins[0]
    return isinstance(at, At) and at.axis in eqn.params["dimension_numbers"].scatter_dims_to_operand_dims


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
