"""Slices taken early: of an array that is only read a few rows at a time, just those rows are computed.

`iou[i]` inside a loop needs one row of the matrix of overlaps. Where that matrix is made inside the loop as well,
the row alone takes no more work than all rows once outside. Likewise `y[best]` after a `top_k` of what was made of `y`:
the best rows by themselves take next to nothing, while all of them would be made a second time to be looked through.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core
from jax.lax import GatherScatterMode

from ..axes import Window
from ..axes.factor import shape_of
from ..axes.indexing import missing_value, picked_axes, start_inside, wide_indices
from ..evaluate import run_program
from ..program import Program, is_var, nbytes
from ..target import Target
from ..trace import trace_flat
from .chunk import Chunk, Setting
from .free import generated_vars
from .needs import Demand, Needs
from .reductions import Form
from .structure import Obstacle
from .tasks import Task

Var = jex_core.Var

FEW = 1 / 16
"""Of an array's rows, how many are few enough to be computed a second time."""


@dataclasses.dataclass(frozen=True)
class EarlySlice:
    """A `dynamic_slice` that cuts one axis: what it needs of its operand, and the tasks that make it."""

    demand: tuple[Var, Window]
    rows: int
    start: int
    tasks: tuple[Task, ...]


def early_slices(program: Program, at_least: int) -> dict[int, EarlySlice]:
    """The slices of large arrays that nothing else reads, by eqn.

    Args:
      at_least: bytes from which an array is large.
    """
    found = {}
    inside = {v for v in program.producer if nbytes(v) >= at_least and v not in program.outputs}
    inside |= generated_vars(program)
    for index, eqn in enumerate(program.eqns):
        if eqn.primitive.name == "dynamic_slice" and is_var(eqn.invars[0]) and nbytes(eqn.invars[0]) >= at_least:
            slice_ = _early(program, index, inside)
            if slice_ is not None:
                found[index] = slice_
    return {i: s for i, s in found.items() if all(r in found for r in program.consumers[s.demand[0]])}


def pick_early(program: Program, target: Target) -> tuple[Program, tuple[int, ...]]:
    """The program with a few rows of large arrays computed by themselves, and the eqns that pick them.

    The program itself, and none, where there are none.
    """
    inside = {v for v in program.producer if nbytes(v) >= program.large_bytes and v not in program.outputs}
    inside |= generated_vars(program)
    picks = {i: pick for i in range(len(program.eqns)) if (pick := _pick(program, i, inside)) is not None}
    if not picks:
        return program, ()
    instead = {i: functools.partial(_picked, program, i, *pick) for i, pick in picks.items()}
    return program.rewritten(trace_flat(run_program(program, instead), program, target.platform)), tuple(picks)


def _pick(program: Program, index: int, inside: set[Var]) -> tuple[tuple[Var, Window], tuple[Task, ...]] | None:
    """What a few rows of a large array are needed of, for an eqn that picks them, and the tasks that make one."""
    eqn = program.eqns[index]
    table = eqn.invars[0] if eqn.invars else None
    if table is None or not is_var(table) or table not in inside:
        return None
    if eqn.primitive.name == "gather":
        axis, rows = _picked_axis(eqn), math.prod(shape_of(eqn.invars[1])[:-1])
    elif eqn.primitive.name == "dynamic_slice":
        shape = shape_of(table)
        cut = [a for a, size in enumerate(eqn.params["slice_sizes"]) if size != shape[a]]
        axis, rows = (cut[0], eqn.params["slice_sizes"][cut[0]]) if len(cut) == 1 else (None, 0)
    else:
        return None
    if axis is None or rows > FEW * shape_of(table)[axis]:
        return None
    demand = table, Window(axis)
    needs = _needs(program, table, inside, index)
    return None if needs.verdict(demand) is not None else (demand, tuple(needs.closure([demand])))


def _picked_axis(eqn: jex_core.JaxprEqn) -> int | None:
    """The axis that a gather picks whole rows along, one by one."""
    axes, dims = picked_axes(eqn), eqn.params["dimension_numbers"]
    sizes, shape = eqn.params["slice_sizes"], shape_of(eqn.invars[0])
    whole = all(size == have for a, (size, have) in enumerate(zip(sizes, shape, strict=True)) if a not in axes)
    known = eqn.params["mode"] != GatherScatterMode.FILL_OR_DROP or missing_value(eqn) is not None
    return next(iter(axes)) if len(axes) == 1 and whole and known and not dims.operand_batching_dims else None


def _picked(
    program: Program,
    index: int,
    demand: tuple[Var, Window],
    tasks: Sequence[Task],
    env: Mapping[Var, Any],
    values: Sequence[Any],
) -> list[Any]:
    """The results of an eqn that picks rows, each row made by itself from what exists."""
    eqn, (table, window) = program.eqns[index], demand
    length = shape_of(table)[window.axis]
    setting = Setting(program, dict(env), length, Form.PLAIN, tagged=False)

    def row(start: Any) -> Any:
        chunk = Chunk(setting, start, 1)
        for task in tasks:
            chunk.run(task)
        return lax.squeeze(chunk.value(table, window), [window.axis])

    if eqn.primitive.name == "dynamic_slice":
        count = eqn.params["slice_sizes"][window.axis]
        start = lax.convert_element_type(start_inside(values[1 + window.axis], length - count), np.int32)
        return [jnp.moveaxis(jax.vmap(row)(start + jnp.arange(count, dtype=np.int32)), 0, window.axis)]
    numbers = lax.squeeze(wide_indices(values[1]), [values[1].ndim - 1])
    rows = jax.vmap(row)(lax.convert_element_type(jnp.clip(numbers, 0, length - 1), np.int32).reshape(-1))
    rows = rows.reshape(*numbers.shape, *rows.shape[1:])
    if eqn.params["mode"] == GatherScatterMode.FILL_OR_DROP:
        outside = ((numbers < 0) | (numbers >= length)).reshape(*numbers.shape, *[1] * (rows.ndim - numbers.ndim))
        rows = jnp.where(outside, jnp.asarray(missing_value(eqn), rows.dtype), rows)
    offsets = eqn.params["dimension_numbers"].offset_dims
    batch = [a for a in range(rows.ndim) if a not in offsets]
    return [jnp.moveaxis(rows, range(numbers.ndim), batch)]


def _early(program: Program, index: int, inside: set[Var]) -> EarlySlice | None:
    eqn = program.eqns[index]
    operand, sizes = eqn.invars[0], eqn.params["slice_sizes"]
    cut = [a for a, (size, have) in enumerate(zip(sizes, shape_of(operand), strict=True)) if size != have]
    if len(cut) != 1 or not is_var(operand) or operand not in inside:
        return None
    needs = _needs(program, operand, inside, index)
    demand = (operand, Window(cut[0]))
    if needs.verdict(demand) is not None:
        return None
    return EarlySlice(demand, sizes[cut[0]], 1 + cut[0], tuple(needs.closure([demand])))


def _needs(program: Program, array: Var, inside: set[Var], index: int) -> Needs:
    """What a slice of an array needs, if nothing as large as the array is needed whole."""
    large = {v for v in inside if nbytes(v) >= nbytes(array)}

    def refusal(demand: Demand) -> Obstacle | None:
        var, extent = demand
        return Obstacle(var, index, "all of it is needed") if extent is None and var in large else None

    return Needs(program, lambda v: v in inside, refusal)


def take_early(program: Program, slice_: EarlySlice, env: Mapping[Var, Any], values: Sequence[Any]) -> list[Any]:
    """The rows of an early slice, computed from what exists."""
    var, window = slice_.demand
    length = shape_of(var)[window.axis]
    start = lax.convert_element_type(start_inside(values[slice_.start], length - slice_.rows), np.int32)
    chunk = Chunk(Setting(program, dict(env), length, Form.PLAIN, tagged=False), start, slice_.rows)
    for task in slice_.tasks:
        chunk.run(task)
    return [chunk.value(var, window)]
