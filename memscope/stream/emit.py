"""Writing the loops of a Streaming: the rewritten function, to be traced by JAX like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..evaluate import TAG, bind
from ..program import Atom, Program, aval_of, is_var
from .chunk import Chunk, Env, Setting, combiner
from .lanes import lane_tasks, turned_outside
from .reductions import Form
from .structure import Fold, LoopPlan, Sink, Stack, Streaming, sink_vars


def rewrite(streaming: Streaming, chunks: Mapping[LoopPlan, int], form: Form = Form.PLAIN) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, with each loop run in chunks of the given steps.

    `form` is how the reductions inside the loops are written.
    """
    program = streaming.program

    def run(*args: Any) -> list[Any]:
        env: Env = dict(zip(program.jaxpr.constvars, program.closed.consts, strict=True))
        env.update(zip(program.jaxpr.invars, args, strict=True))
        for item in streaming.order:
            if isinstance(item, int):
                eqn = program.eqns[item]
                outs = bind(eqn, [_value(env, a) for a in eqn.invars], f"{TAG}{item}")
                env.update(zip(eqn.outvars, outs, strict=True))
            else:
                _run_loop(streaming, item, chunks[item], env, form)
        return [_value(env, a) for a in program.jaxpr.outvars]

    run.__name__ = program.name
    return run


def _value(env: Env, atom: Atom) -> Any:
    return env[atom] if is_var(atom) else atom.val


def _run_loop(streaming: Streaming, loop: LoopPlan, chunk: int, env: Env, form: Form) -> None:
    """Runs whole chunks in a `fori_loop`, then what remains in one smaller call: any size is exact."""
    program = streaming.program
    setting = Setting(program, env, loop.steps, form)
    if form is Form.LANES:
        lanes = lane_tasks(program, loop)
        setting = Setting(program, env, loop.steps, form, lanes, turned_outside(streaming, lanes, env))
    trips, rest = divmod(loop.steps, chunk)
    carries = tuple(_init(program, sink, env) for sink in loop.sinks)

    def body(i: Any, carries: Any) -> Any:
        return _iteration(Chunk(setting, i * np.int32(chunk), chunk), loop, carries)

    if trips == 1:
        carries = body(np.int32(0), carries)
    elif trips > 1:
        carries = lax.fori_loop(np.int32(0), np.int32(trips), body, carries)
    if rest:
        carries = _iteration(Chunk(setting, np.int32(trips * chunk), rest), loop, carries)
    for sink, carry in zip(loop.sinks, carries, strict=True):
        env.update(zip(sink_vars(sink), _finish(program, sink, carry), strict=True))


def _init(program: Program, sink: Sink, env: Env) -> tuple[Any, ...]:
    if isinstance(sink, Stack):
        aval = aval_of(sink.var)
        return (jnp.zeros(aval.shape, aval.dtype),)
    eqn = program.eqns[sink.task.eqn]
    return combiner(sink).init(eqn, _value(env, eqn.invars[0]) if _accumulates_into(sink) else None)


def _finish(program: Program, sink: Sink, carry: tuple[Any, ...]) -> Sequence[Any]:
    return carry if isinstance(sink, Stack) else combiner(sink).finish(program.eqns[sink.task.eqn], carry)


def _accumulates_into(sink: Fold) -> bool:
    return sink.task.factor is not None and sink.task.factor.fold == "scatter"


def _iteration(chunk: Chunk, loop: LoopPlan, carries: Sequence[Any]) -> tuple[Any, ...]:
    """One chunk: the body's tasks in program order, then each sink's carry brought up to date."""
    folds = {sink.task: (i, sink) for i, sink in enumerate(loop.sinks) if isinstance(sink, Fold)}
    updated = list(carries)
    for task in loop.body:
        if task in folds:
            i, fold = folds[task]
            updated[i] = chunk.fold(fold, carries[i])
        else:
            chunk.run(task)
    for i, sink in enumerate(loop.sinks):
        if isinstance(sink, Stack):
            updated[i] = (chunk.write(sink, carries[i][0]),)
    return tuple(updated)
