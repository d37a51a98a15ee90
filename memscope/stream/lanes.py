"""Reductions over a last axis, made with that axis in front.

XLA CPU vectorises along the last axis of a result. A distance summed over its features reduces the last
axis of its operand, which leaves nothing to vectorise along; with the features in front it ran three times
as fast. The operand is a chain of elementwise ops over small arrays, so those are turned, not the operand,
and long axes go block by block: two reductions in one fusion are not vectorised either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import lax
from jax.extend import core as jex_core

from ..axes.factor import shape_of
from ..evaluate import TAG, bind
from ..program import Program, is_var
from .reductions import BLOCK, JOINS, chain, reduces_lanes
from .structure import LoopPlan, Streaming, sink_vars
from .tasks import Read, Task

if TYPE_CHECKING:
    from .chunk import Chunk


@dataclasses.dataclass(frozen=True)
class Lanes:
    """The reductions of a loop that are made lane by lane.

    Attributes:
      reductions: their tasks.
      inner: the tasks of the chains under them, which are made inside.
      leaves: the arrays that the chains start from.
    """

    reductions: frozenset[Task] = frozenset()
    inner: frozenset[Task] = frozenset()
    leaves: frozenset[jex_core.Var] = frozenset()


def lane_tasks(program: Program, loop: LoopPlan, kept: Iterable[jex_core.Var] = ()) -> Lanes:
    """What a loop can make lane by lane.

    A fold along the reduced axis itself is not of that kind, nor is a chain some of which the loop leaves behind
    or keeps rows of.
    """
    left = {var for sink in loop.sinks for var in sink_vars(sink)} | set(kept)
    reductions = frozenset(
        task
        for task in loop.body
        if task.factor is not None
        and task.factor.fold is None
        and reduces_lanes(program, program.eqns[task.eqn])
        and left.isdisjoint(chain(program, program.eqns[task.eqn])[0])
    )
    inner, leaves = set(), set()
    for task in reductions:
        made, read = chain(program, program.eqns[task.eqn])
        inner.update(made)
        leaves.update(read)
    tasks = frozenset(t for t in loop.body if program.eqns[t.eqn].outvars[0] in inner)
    return Lanes(reductions, tasks, frozenset(leaves))


def turned_outside(streaming: Streaming, lanes: Lanes, env: Mapping[jex_core.Var, Any]) -> dict[jex_core.Var, Any]:
    """The leaves that exist outside the loop, turned once for all iterations."""
    return {v: turn(env[v]) for v in lanes.leaves if v in env and v not in streaming.streamed}


def reduce_lanes(chunk: Chunk, task: Task) -> Any:
    """The value of a reduction made lane by lane."""
    program = chunk.program
    eqn, tag = program.eqns[task.eqn], f"{TAG}{task.eqn}"
    operand = task.reads(program)[0]
    length = shape_of(eqn.invars[0])[-1]
    size = lane_block(length)

    def partial(first: Any, count: int) -> Any:
        return bind(eqn, [_turned(chunk, operand, first, count)], tag, axes=(0,))[0]

    join = JOINS[eqn.primitive.name]
    total = partial(np.int32(0), size)
    blocks, rest = divmod(length, size)
    if blocks > 1:
        total = lax.fori_loop(
            np.int32(1), np.int32(blocks), lambda b, so_far: join(so_far, partial(b * np.int32(size), size)), total
        )
    return join(total, partial(np.int32(blocks * size), rest)) if rest else total


def _turned(chunk: Chunk, read: Read, first: Any, count: int) -> Any:
    """Rows `[first, first + count)` of a chain's value with its last axis in front."""
    atom, window = read
    if shape_of(atom) == ():
        return chunk.read(atom, window)
    task = chunk.made_by.get(read)
    if task is not None and task in chunk.setting.lanes.inner:
        operands = [_turned(chunk, r, first, count) for r in task.reads(chunk.program)]
        return bind(chunk.program.eqns[task.eqn], operands, f"{TAG}{task.eqn}")[0]
    turned = chunk.setting.turned
    whole = turned[atom] if is_var(atom) and window is None and atom in turned else turn(chunk.read(atom, window))
    if whole.shape[0] in (1, count):
        return whole
    starts = [first, *[np.int32(0)] * (whole.ndim - 1)]
    return lax.dynamic_slice(whole, starts, (count, *whole.shape[1:]), allow_negative_indices=False)


def lane_block(length: int) -> int:
    """How many lanes to reduce at once: all of a short axis, else a divisor near 16, which ran fastest."""
    if length <= BLOCK:
        return length
    near = sorted(range(BLOCK // 3, BLOCK + 1), key=lambda size: abs(size - BLOCK // 2))
    return next((size for size in near if length % size == 0), BLOCK // 2)


def turn(value: Any) -> Any:
    """`value` with its last axis moved to the front."""
    rank = value.ndim
    return lax.transpose(value, (rank - 1, *range(rank - 1)))
