"""Gathers whose index counts along with its rows: a diagonal, or each row's own entry.

`jnp.diagonal(k)` gathers `k[i, i]` for `i` in an iota. Row i of the result needs row i of the operand only,
which the primitive's own rule can't see: it takes the values of the indices to know.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from ..axes import At, Factor
from ..axes.factor import shape_of
from ..axes.table import mapped
from ..evaluate import bind
from ..program import Program, is_var
from .free import generated_vars
from .reach import special

MOST_INDICES = 1 << 22


@special("gather")
def diagonal_factors(program: Program, index: int) -> tuple[Factor, ...]:
    """A factor for each operand axis that a gather reads at the number of the index row."""
    eqn = program.eqns[index]
    if not is_var(eqn.invars[1]):
        return ()
    dims = eqn.params["dimension_numbers"]
    operand, indices = shape_of(eqn.invars[0]), shape_of(eqn.invars[1])
    if np.prod(indices) > MOST_INDICES or eqn.invars[1] not in generated(program):
        return ()
    values = constant_value(program, eqn.invars[1])
    if values is None:
        return ()
    result = shape_of(eqn.outvars[0])
    batch_out = [a for a in range(len(result)) if a not in dims.offset_dims]
    found = []
    for row, out in enumerate(batch_out):
        if row in dims.start_indices_batching_dims:
            continue
        count = np.arange(indices[row]).reshape([-1 if a == row else 1 for a in range(len(indices) - 1)])
        for column, axis in enumerate(dims.start_index_map):
            whole = indices[row] == operand[axis] and axis in dims.collapsed_slice_dims
            if whole and np.array_equal(values[..., column], np.broadcast_to(count, indices[:-1])):
                found.append(mapped(indices[row], [axis, row], [out]))
    return tuple(found)


def local_indices(eqn: jex_core.JaxprEqn, factor: Factor, indices: Any, first: Any) -> Any:
    """The indices of a window, counted from where the operand's window starts."""
    at = factor.ins[0]
    dims = eqn.params["dimension_numbers"]
    if not isinstance(at, At) or at.axis not in dims.start_index_map:
        return indices
    column = dims.start_index_map.index(at.axis)
    return indices.at[..., column].add(-jax.lax.convert_element_type(first, indices.dtype))


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
