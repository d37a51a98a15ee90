"""Writing the loops of a Streaming: the rewritten function, to be traced by JAX like any other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core

from ..axes import Window
from ..axes.elementwise import ELEMENTWISE
from ..axes.table import RESIZE
from ..evaluate import TAG, bind
from ..program import Atom, Program, is_var
from .folds import COMBINERS
from .structure import Fold, LoopPlan, Sink, Stack, Streaming, sink_vars
from .tasks import Task

Env = dict[jex_core.Var, Any]


BLOCK, MOST_BLOCKS = 32, 16
"""XLA CPU fuses a reduction of at most 32 elements with its operand, and materialises the operand of a longer one."""


def rewrite(
    streaming: Streaming, chunks: Mapping[LoopPlan, int], blocked: bool = False
) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, with each loop run in chunks of the given steps.

    `blocked` cuts long reductions inside the loops into blocks that XLA CPU's reference build can fuse.
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
                _run_loop(streaming, item, chunks[item], env, blocked)
        return [_value(env, a) for a in program.jaxpr.outvars]

    run.__name__ = program.name
    return run


def _value(env: Env, atom: Atom) -> Any:
    return env[atom] if is_var(atom) else atom.val


def _run_loop(streaming: Streaming, loop: LoopPlan, chunk: int, env: Env, blocked: bool) -> None:
    """Runs whole chunks in a `fori_loop`, then what remains in one smaller call: any size is exact."""
    trips, rest = divmod(loop.steps, chunk)
    carries = tuple(_init(streaming.program, sink, env) for sink in loop.sinks)

    def body(i: Any, carries: Any) -> Any:
        return _iteration(_Chunk(streaming, env, i * np.int32(chunk), chunk, blocked), loop, carries)

    if trips == 1:
        carries = body(np.int32(0), carries)
    elif trips > 1:
        carries = lax.fori_loop(np.int32(0), np.int32(trips), body, carries)
    if rest:
        carries = _iteration(_Chunk(streaming, env, np.int32(trips * chunk), rest, blocked), loop, carries)
    for sink, carry in zip(loop.sinks, carries, strict=True):
        env.update(zip(sink_vars(sink), _finish(streaming.program, sink, carry), strict=True))


def _init(program: Program, sink: Sink, env: Env) -> tuple[Any, ...]:
    if isinstance(sink, Stack):
        aval = sink.var.aval
        return (jnp.zeros(aval.shape, aval.dtype),)
    eqn = program.eqns[sink.task.eqn]
    return _combiner(sink).init(eqn, _value(env, eqn.invars[0]) if _accumulates_into(sink) else None)


def _finish(program: Program, sink: Sink, carry: tuple[Any, ...]) -> Sequence[Any]:
    return carry if isinstance(sink, Stack) else _combiner(sink).finish(program.eqns[sink.task.eqn], carry)


def _combiner(sink: Fold) -> Any:
    assert sink.task.factor is not None and sink.task.factor.fold is not None
    return COMBINERS[sink.task.factor.fold]


def _accumulates_into(sink: Fold) -> bool:
    return sink.task.factor is not None and sink.task.factor.fold == "scatter"


def _iteration(chunk: _Chunk, loop: LoopPlan, carries: Sequence[Any]) -> tuple[Any, ...]:
    """One chunk: the body's tasks in program order, then each sink's carry brought up to date."""
    sinks = {sink.task: (i, sink) for i, sink in enumerate(loop.sinks) if isinstance(sink, Fold)}
    updated = list(carries)
    for task in loop.body:
        if task in sinks:
            i, sink = sinks[task]
            updated[i] = chunk.fold(sink, carries[i])
        else:
            chunk.run(task)
    for i, sink in enumerate(loop.sinks):
        if isinstance(sink, Stack):
            updated[i] = (chunk.write(sink, carries[i][0]),)
    return tuple(updated)


class _Chunk:
    """The values of one iteration, by var and window."""

    def __init__(self, streaming: Streaming, env: Env, start: Any, steps: int, blocked: bool) -> None:
        self.program = streaming.program
        self.blocked = blocked
        self.env = env
        self.start = start
        self.steps = steps
        self._values: dict[tuple[jex_core.Var, Window | None], Any] = {}

    def run(self, task: Task) -> None:
        """Computes a task and remembers its results."""
        eqn = self.program.eqns[task.eqn]
        outs = self._bind(task, self._operands(task))
        windows = task.windows() or [None] * len(outs)
        for var, window, value in zip(eqn.outvars, windows, outs, strict=True):
            self._values[var, window] = value

    def fold(self, sink: Fold, carry: Any) -> Any:
        """The carry after this chunk."""
        task, eqn = sink.task, self.program.eqns[sink.task.eqn]
        first = self._row(task.scale, task.shift)
        return _combiner(sink).step(
            eqn, carry, self._operands(task), first, lambda values, **params: self._bind(task, values, **params)
        )

    def write(self, sink: Stack, buffer: Any) -> Any:
        """The buffer with this chunk's rows written in place."""
        value = self._values[sink.var, sink.window]
        starts = _starts(buffer.ndim, sink.window.axis, self._row(sink.window.scale, 0))
        return lax.dynamic_update_slice(buffer, value, starts, allow_negative_indices=False)

    def _bind(self, task: Task, values: Sequence[Any], **params: Any) -> list[Any]:
        eqn = self.program.eqns[task.eqn]
        tag = f"{TAG}{task.eqn}"
        if task.factor is None:
            return bind(eqn, values, tag, **params)
        name = eqn.primitive.name
        if name in RESIZE:
            params = {**RESIZE[name](eqn, task.factor, task.scale * self.steps), **params}
        if self.blocked and name in JOINS and fusible_operand(self.program, eqn):
            return [_in_blocks(eqn, values[0], tag, params)]
        outs = bind(eqn, values, tag, **params)
        if name == "iota":
            return [self._shifted(task, outs[0])]
        return outs

    def _shifted(self, task: Task, counted: Any) -> Any:
        """An iota's window counts from where the window starts."""
        eqn = self.program.eqns[task.eqn]
        (window,) = task.windows()
        if window is None or window.axis != eqn.params["dimension"]:
            return counted
        return lax.add(counted, lax.convert_element_type(self._row(window.scale, window.shift), counted.dtype))

    def _operands(self, task: Task) -> list[Any]:
        return [self._read(atom, window) for atom, window in task.reads(self.program)]

    def _read(self, atom: Atom, window: Window | None) -> Any:
        if not is_var(atom):
            return atom.val
        key = (atom, window)
        if key not in self._values:
            whole = self.env[atom]
            if window is None:
                return whole
            sizes = list(whole.shape)
            sizes[window.axis] = window.scale * self.steps
            starts = _starts(whole.ndim, window.axis, self._row(window.scale, window.shift))
            self._values[key] = lax.dynamic_slice(whole, starts, sizes, allow_negative_indices=False)
        return self._values[key]

    def _row(self, scale: int, shift: int) -> Any:
        """The first row of a window in this chunk."""
        first = self.start if scale == 1 else self.start * scale
        return first if shift == 0 else first + shift


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": lax.add,
    "reduce_prod": lax.mul,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_and": lax.bitwise_and,
    "reduce_or": lax.bitwise_or,
}


def fusible_operand(program: Program, reduction: jex_core.JaxprEqn) -> bool:
    """True where a reduction's operand is elementwise and read by nobody else: it could be fused away."""
    operand = reduction.invars[0]
    if not is_var(operand) or operand in program.outputs or len(program.consumers[operand]) != 1:
        return False
    producer = program.producer.get(operand)
    return producer is not None and program.eqns[producer].primitive.name in ELEMENTWISE


def _in_blocks(eqn: jex_core.JaxprEqn, value: Any, tag: str, params: dict[str, Any]) -> Any:
    """A reduction of `value` in blocks of at most 32 elements, of equal size as far as that goes."""
    axis = max((int(a) for a in eqn.params["axes"]), key=lambda a: value.shape[a])
    length = value.shape[axis]
    count = -(-length // BLOCK)
    if not 1 < count <= MOST_BLOCKS:
        return bind(eqn, [value], tag, **params)[0]
    size = -(-length // count)
    blocks = [lax.slice_in_dim(value, i, min(i + size, length), axis=axis) for i in range(0, length, size)]
    partials = [bind(eqn, [block], tag, **params)[0] for block in blocks]
    return functools.reduce(JOINS[eqn.primitive.name], partials)


def _starts(rank: int, axis: int, row: Any) -> list[Any]:
    starts: list[Any] = [np.int32(0)] * rank
    starts[axis] = lax.convert_element_type(row, np.int32)
    return starts
