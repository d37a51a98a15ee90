"""Primitives whose steps depend on each other, run one chunk of steps after another.

What goes from chunk to chunk is a state: the carry of a scan, the last row of a cumulative sum. Kept at the
start of each chunk it lets any chunk be run again alone: the block checkpoints that a gradient needs, which
meets the steps from the last to the first (Griewank and Walther's "revolve" at one level).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core

from .._jax_private import scan_operands
from ..evaluate import bind
from ..program import Program, aval_of, nbytes
from .folds import accumulator, highest, lowest
from .tasks import Task

Eqn = jex_core.JaxprEqn
State = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Sequential:
    """How a primitive runs chunk by chunk.

    Attributes:
      init: the state before the first step, from the eqn, its task and its operands (windows are not read).
      step: (eqn, task, operands of a chunk, state, steps, tag) -> the eqn's results on it, and the state after it.
      finals: for each part of the state, the result that it is in the end; None for none.
    """

    init: Callable[[Eqn, Task, Sequence[Any]], State]
    step: Callable[[Eqn, Task, Sequence[Any], State, int, str | None], tuple[list[Any], State]]
    finals: Callable[[Eqn], list[int | None]]


def _scan_init(eqn: Eqn, task: Task, operands: Sequence[Any]) -> State:
    consts, carries = scan_operands(eqn.params)
    return tuple(operands[consts : consts + carries])


def _scan_step(
    eqn: Eqn, task: Task, operands: Sequence[Any], state: State, steps: int, tag: str | None
) -> tuple[list[Any], State]:
    consts, carries = scan_operands(eqn.params)
    outs = bind(eqn, [*operands[:consts], *state, *operands[consts + carries :]], tag, length=steps)
    return outs, tuple(outs[:carries])


def _scan_finals(eqn: Eqn) -> list[int | None]:
    _, carries = scan_operands(eqn.params)
    return list(range(carries))


def _cumulative(join: Callable[[Any, Any], Any], identity: Callable[[Any], Any]) -> Sequential:
    def init(eqn: Eqn, task: Task, operands: Sequence[Any]) -> State:
        aval = aval_of(eqn.outvars[0])
        shape = [1 if a == eqn.params["axis"] else s for a, s in enumerate(aval.shape)]
        dtype = accumulator(aval.dtype)
        return (lax.full(shape, identity(dtype), dtype),)

    def step(
        eqn: Eqn, task: Task, operands: Sequence[Any], state: State, steps: int, tag: str | None
    ) -> tuple[list[Any], State]:
        axis = eqn.params["axis"]
        (local,) = bind(eqn, [lax.convert_element_type(operands[0], state[0].dtype)], tag)
        rows = join(local, jnp.broadcast_to(state[0], local.shape))
        last = 0 if eqn.params["reverse"] else rows.shape[axis] - 1
        state = (lax.slice_in_dim(rows, last, last + 1, axis=axis),)
        return [lax.convert_element_type(rows, aval_of(eqn.outvars[0]).dtype)], state

    return Sequential(init, step, lambda eqn: [None])


SEQUENTIAL: dict[str, Sequential] = {
    "scan": Sequential(_scan_init, _scan_step, _scan_finals),
    "cumsum": _cumulative(lax.add, lambda dtype: 0),
    "cumprod": _cumulative(lax.mul, lambda dtype: 1),
    "cummax": _cumulative(lax.max, lowest),
    "cummin": _cumulative(lax.min, highest),
    "cumlogsumexp": _cumulative(jnp.logaddexp, lambda dtype: -np.inf),
}


def state_bytes(program: Program, task: Task) -> int:
    """Bytes of the state of a carried task."""
    eqn = program.eqns[task.eqn]
    results = [out for out in SEQUENTIAL[eqn.primitive.name].finals(eqn) if out is not None]
    if results:
        return sum(nbytes(eqn.outvars[out]) for out in results)
    return nbytes(eqn.outvars[0]) // task.steps
