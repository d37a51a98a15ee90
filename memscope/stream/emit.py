"""Writing the loops of a Streaming: the rewritten function, to be traced by JAX like any other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core

from ..axes import Share
from ..axes.indexing import start_inside
from ..evaluate import TAG, bind
from ..program import Atom, Program, aval_of, is_var
from .carried import SEQUENTIAL, State
from .chunk import Chunk, Env, Setting, combiner
from .lanes import lane_tasks, turned_outside
from .online import Online, finished, known_values, moved, running_values
from .reductions import Form
from .resident import Part, Resident, Slice, kept_shape, parts_of
from .structure import Carried, Fold, LoopPlan, Same, Sink, Stack, Streaming, sink_vars
from .tasks import Task

Carries = tuple[Any, ...]
_State = tuple[Carries, tuple[Any, ...]]
"""The carries of a loop's sinks, and the buffers of what it keeps."""

Kept = dict[Task, State]
"""For each carried task that is replayed, its states at the start of every chunk, stacked."""

Rows = dict[Slice, Any]
"""The buffers of rows that a loop keeps for later ones."""


@dataclasses.dataclass(frozen=True)
class _Left:
    """What loops leave for later ones beside the values of the program."""

    states: Kept = dataclasses.field(default_factory=dict)
    rows: Rows = dataclasses.field(default_factory=dict)


def rewrite(
    streaming: Streaming,
    chunks: Mapping[LoopPlan, int],
    form: Form = Form.PLAIN,
    resident: Resident | None = None,
) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, with each loop run in chunks of the given steps.

    Args:
      form: how the reductions inside the loops are written.
      resident: rows that a loop keeps for later ones.
    """
    program = streaming.program

    def run(*args: Any) -> list[Any]:
        left = _Left()
        env: Env = dict(zip(program.jaxpr.constvars, program.closed.consts, strict=True))
        env.update(zip(program.jaxpr.invars, args, strict=True))
        for item in streaming.order:
            if isinstance(item, int):
                eqn = program.eqns[item]
                outs = bind(eqn, _inside(eqn, [_value(env, a) for a in eqn.invars]), f"{TAG}{item}")
                env.update(zip(eqn.outvars, outs, strict=True))
            else:
                _run_loop(streaming, item, chunks[item], env, left, form, resident)
        return [_value(env, a) for a in program.jaxpr.outvars]

    run.__name__ = program.name
    return run


def _inside(eqn: jex_core.JaxprEqn, values: list[Any]) -> list[Any]:
    """The operands of an eqn, the starts of a `dynamic_slice` moved inside the array, which it does by itself.

    But where rows of the slice are cut, XLA (jaxlib 0.10.2) adds both starts and moves the sum inside: other rows.
    """
    if eqn.primitive is not lax.dynamic_slice_p:
        return values
    array, *starts = values
    room = (have - size for have, size in zip(array.shape, eqn.params["slice_sizes"], strict=True))
    return [array, *(start_inside(start, last) for start, last in zip(starts, room, strict=True))]


def _value(env: Env, atom: Atom) -> Any:
    return env[atom] if is_var(atom) else atom.val


def _run_loop(
    streaming: Streaming, loop: LoopPlan, chunk: int, env: Env, left: _Left, form: Form, resident: Resident | None
) -> None:
    program = streaming.program
    chunk = min(loop.steps, max(chunk, loop.least))
    parts = parts_of(program, loop, resident)
    setting = Setting(program, env, loop.steps, form)
    if form is Form.LANES:
        lanes = lane_tasks(program, loop, [var for part in parts for var, _ in part.keeps])
        setting = Setting(program, env, loop.steps, form, lanes, turned_outside(streaming, lanes, env))
    carries = tuple(_init(program, loop, sink, env, -(-loop.steps // chunk)) for sink in loop.sinks)
    for part in parts:
        carries = _run_part(setting, part, chunk, carries, left)
    for sink, carry in zip(loop.sinks, carries, strict=True):
        if isinstance(sink, Carried):
            state, left.states[sink.task] = carry
            env.update((var, state[i]) for i, var in sink.outvars)
        else:
            env.update(zip(sink_vars(sink), _finish(program, sink, carry), strict=True))
    for joined in loop.joined:
        (total,), (source,) = joined.total.outvars, joined.source.outvars
        shift = known_values(program, joined.online, env[source])[joined.online.shift]
        env[total] = finished(joined.online, env[total], shift)


def _run_part(setting: Setting, part: Part, chunk: int, carries: Carries, left: _Left) -> Carries:
    """Runs whole chunks in a `fori_loop`, and what remains in one smaller call: any size is exact."""
    loop, chunk = part.loop, min(chunk, part.steps)
    trips, rest = divmod(part.steps, chunk)

    def iteration(block: Any, steps: int, state: _State) -> _State:
        return _iteration(setting, part, block, block * np.int32(chunk), steps, state, left)

    def whole_chunks(state: _State) -> _State:
        def body(i: Any, state: _State) -> _State:
            return iteration(np.int32(trips - 1) - i if loop.reverse else i, chunk, state)

        if trips < 2:
            return body(np.int32(0), state) if trips else state
        return lax.fori_loop(np.int32(0), np.int32(trips), body, state)

    def remainder(state: _State) -> _State:
        return iteration(np.int32(trips), rest, state) if rest else state

    first, then = (remainder, whole_chunks) if loop.reverse else (whole_chunks, remainder)
    buffers = tuple(jnp.zeros(kept_shape(kept, part.steps), aval_of(kept[0]).dtype) for kept in part.keeps)
    carries, buffers = then(first((carries, buffers)))
    left.rows.update(zip(part.keeps, buffers, strict=True))
    return carries


def _init(program: Program, loop: LoopPlan, sink: Sink, env: Env, blocks: int) -> Any:
    if isinstance(sink, (Stack, Same)):
        aval = aval_of(sink.var)
        return (jnp.zeros(aval.shape, aval.dtype),)
    eqn = program.eqns[sink.task.eqn]
    if isinstance(sink, Carried):
        operands = [_value(env, a) if extent is None else None for a, extent in sink.task.reads(program)]
        state = SEQUENTIAL[eqn.primitive.name].init(eqn, sink.task, operands)
        saved = state if sink.task in loop.saves else ()
        return state, tuple(jnp.zeros((blocks, *jnp.shape(s)), jnp.result_type(s)) for s in saved)
    if _is_share(sink):
        return (jnp.zeros(aval_of(sink.outvars[0]).shape, aval_of(sink.outvars[0]).dtype),)
    return combiner(sink).init(eqn, _value(env, eqn.invars[0]) if _accumulates_into(sink) else None)


def _finish(program: Program, sink: Sink, carry: tuple[Any, ...]) -> Sequence[Any]:
    if isinstance(sink, Fold) and not _is_share(sink):
        return combiner(sink).finish(program.eqns[sink.task.eqn], carry)
    return carry


def _is_share(sink: Sink) -> bool:
    """True for a sum that the task itself has made a share of; other folds are made from the task's operands."""
    return isinstance(sink, Fold) and sink.task.factor is not None and sink.task.factor.fold is None


def _accumulates_into(sink: Fold) -> bool:
    return sink.task.factor is not None and sink.task.factor.fold == "scatter"


def _iteration(setting: Setting, part: Part, block: Any, after: Any, steps: int, state: _State, left: _Left) -> _State:
    """One chunk: the body's tasks in program order, then each sink's carry brought up to date.

    Args:
      block: its number among the chunks of its part.
      after: steps of the part before it.
    """
    loop, (carries, buffers) = part.loop, state
    start = after + np.int32(part.first) if part.first else after
    states = {task: tuple(s[block] for s in left.states[task]) for task in loop.replays}
    states.update((s.task, carry[0]) for s, carry in zip(loop.sinks, carries, strict=True) if isinstance(s, Carried))
    chunk = Chunk(setting, start, steps, states)
    chunk.take((*kept, chunk.rows_of(left.rows[kept], kept[1], after)) for kept in part.takes)
    updated = _folded(chunk, part, carries)
    for i, sink in enumerate(loop.sinks):
        if isinstance(sink, Stack):
            updated[i] = (chunk.write(sink.var, sink.window, carries[i][0], start),)
        elif isinstance(sink, Same):
            updated[i] = (chunk.value(sink.var, None),)
        elif isinstance(sink, Carried):
            saved = zip(carries[i][1], states[sink.task], strict=False)
            updated[i] = chunk.states[sink.task], tuple(_put(kept, block, state) for kept, state in saved)
        elif _is_share(sink):
            updated[i] = (lax.add(carries[i][0], chunk.value(sink.outvars[0], Share(sink.task.steps))),)
    written = (chunk.write(*kept, buffer, after) for kept, buffer in zip(part.keeps, buffers, strict=True))
    return tuple(updated), tuple(written)


def _folded(chunk: Chunk, part: Part, carries: Carries) -> list[Any]:
    """Runs the tasks of one chunk; the carries, those of folds as they are with it."""
    loop = part.loop
    folds = {s.task: (i, s) for i, s in enumerate(loop.sinks) if isinstance(s, Fold) and not _is_share(s)}
    updated = list(carries)
    done = loop.steps - chunk.start - chunk.steps if loop.reverse else chunk.start
    moves: dict[Fold, Callable[[Any], Any]] = {}
    for task in part.body:
        if task in folds:
            i, fold = folds[task]
            carry = (moves[fold](carries[i][0]),) if fold in moves else carries[i]
            updated[i] = chunk.fold(fold, carry)
            for joined in loop.joined:
                if joined.source == fold:
                    moves[joined.total] = _move(chunk, joined.online, carries[i], updated[i], done)
        else:
            chunk.run(task)
    return updated


def _move(chunk: Chunk, online: Online, before: Carries, after: Carries, done: Any) -> Callable[[Any], Any]:
    """How a sum moves with what it is about, which the chunk takes to be what it is with the chunk.

    Args:
      before, after: the carry of that, without the chunk and with it.
      done: rows before the chunk.
    """
    program, of = chunk.program, chunk.setting.steps
    old = running_values(program, online, before[0], done, of)[online.shift]
    new = running_values(program, online, after[0], done + chunk.steps, of)
    chunk.assume(new)
    return lambda total: moved(online, total, before[0], old, new[online.shift], done, of)


def _put(kept: Any, block: Any, state: Any) -> Any:
    """`kept` with the state before one chunk in its place."""
    return lax.dynamic_update_index_in_dim(kept, state, block, 0)
