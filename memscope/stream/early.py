"""Slices taken early: of an array that is only read a few rows at a time, just those rows are computed.

`iou[i]` inside a loop needs one row of the matrix of overlaps. Where that matrix is made inside the loop as well,
the row alone takes no more work than all rows once outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend import core as jex_core

from ..axes import Window
from ..axes.factor import shape_of
from ..program import Program, is_var, nbytes
from .chunk import Chunk, Setting
from .free import generated_vars
from .needs import Demand, Needs
from .reductions import Form
from .structure import Obstacle
from .tasks import Task

Var = jex_core.Var


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


def _early(program: Program, index: int, inside: set[Var]) -> EarlySlice | None:
    eqn = program.eqns[index]
    operand, sizes = eqn.invars[0], eqn.params["slice_sizes"]
    cut = [a for a, (size, have) in enumerate(zip(sizes, shape_of(operand), strict=True)) if size != have]
    if len(cut) != 1 or not is_var(operand) or operand not in inside:
        return None
    large = {v for v in inside if nbytes(v) >= nbytes(operand)}

    def refusal(demand: Demand) -> Obstacle | None:
        var, extent = demand
        return Obstacle(var, index, "all of it is needed") if extent is None and var in large else None

    needs = Needs(program, lambda v: v in inside, refusal)
    demand = (operand, Window(cut[0]))
    if needs.verdict(demand) is not None:
        return None
    return EarlySlice(demand, sizes[cut[0]], 1 + cut[0], tuple(needs.closure([demand])))


def take_early(program: Program, slice_: EarlySlice, env: Mapping[Var, Any], values: Sequence[Any]) -> list[Any]:
    """The rows of an early slice, computed from what exists."""
    var, window = slice_.demand
    length = shape_of(var)[window.axis]
    start = lax.clamp(
        np.int32(0), lax.convert_element_type(values[slice_.start], np.int32), np.int32(length - slice_.rows)
    )
    chunk = Chunk(Setting(program, dict(env), length, Form.PLAIN, tagged=False), start, slice_.rows)
    for task in slice_.tasks:
        chunk.run(task)
    return [chunk.value(var, window)]
