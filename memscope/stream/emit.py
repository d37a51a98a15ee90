"""Writing the loops of a Streaming: the rewritten function, to be traced by JAX like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core

from ..axes import Window
from ..axes.factor import shape_of
from ..axes.table import RESIZE
from ..evaluate import TAG, bind
from ..program import Atom, Program, is_var
from .folds import COMBINERS
from .reductions import JOINS, Form, chain_leaves, fusible_operand, in_blocks, lane_block, reduces_lanes, turn
from .structure import Fold, LoopPlan, Sink, Stack, Streaming, sink_vars
from .tasks import Read, Task

Env = dict[jex_core.Var, Any]


def rewrite(
    streaming: Streaming, chunks: Mapping[LoopPlan, int], form: Form = Form.PLAIN
) -> Callable[..., list[Any]]:
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
    trips, rest = divmod(loop.steps, chunk)
    turned = _turned_outside(streaming, loop, env) if form is Form.LANES else {}
    carries = tuple(_init(streaming.program, sink, env) for sink in loop.sinks)

    def body(i: Any, carries: Any) -> Any:
        return _iteration(_Chunk(streaming, env, i * np.int32(chunk), chunk, form, turned), loop, carries)

    if trips == 1:
        carries = body(np.int32(0), carries)
    elif trips > 1:
        carries = lax.fori_loop(np.int32(0), np.int32(trips), body, carries)
    if rest:
        carries = _iteration(_Chunk(streaming, env, np.int32(trips * chunk), rest, form, turned), loop, carries)
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


def _turned_outside(streaming: Streaming, loop: LoopPlan, env: Env) -> dict[jex_core.Var, Any]:
    """What the loop's reductions over a last axis read whole, turned once for all iterations."""
    program = streaming.program
    turned: dict[jex_core.Var, Any] = {}
    for task in loop.body:
        eqn = program.eqns[task.eqn]
        if eqn.primitive.name in JOINS and reduces_lanes(program, eqn):
            for atom in chain_leaves(program, eqn):
                if atom in env and atom not in streaming.streamed:
                    turned[atom] = turn(env[atom])
    return turned


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

    def __init__(
        self, streaming: Streaming, env: Env, start: Any, steps: int, form: Form, turned: Mapping[jex_core.Var, Any]
    ) -> None:
        self.program = streaming.program
        self.form = form
        self.turned = turned
        self.turning = turning
        self.env = env
        self.start = start
        self.steps = steps
        self._values: dict[tuple[jex_core.Var, Window | None], Any] = {}
        self._made_by: dict[tuple[Atom, Window | None], Task] = {}

    def run(self, task: Task) -> None:
        """Computes a task and remembers its results; one that a reduction makes block by block, only remembers it."""
        eqn = self.program.eqns[task.eqn]
        windows = task.windows() or [None] * len(eqn.outvars)
        keys = list(zip(eqn.outvars, windows, strict=True))
        self._made_by.update((key, task) for key in keys)
        if eqn.outvars[0] not in self.turning:
            self._values.update(zip(keys, self._bind(task, self._operands(task)), strict=True))

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
        if self.form is not Form.PLAIN and name in JOINS and fusible_operand(self.program, eqn):
            return [in_blocks(eqn, values[0], tag)]
        outs = bind(eqn, values, tag, **params)
        if name == "iota":
            return [self._shifted(task, outs[0])]
        return outs

    def _reduce_lanes(self, eqn: jex_core.JaxprEqn, operand: Read, length: int, tag: str) -> Any:
        """A reduction over the last axis of an elementwise chain, made block by block with that axis in front."""
        size = lane_block(length)

        def partial(first: Any, size: int) -> Any:
            return bind(eqn, [self._turned(operand, first, size)], tag, axes=(0,))[0]

        join = JOINS[eqn.primitive.name]
        total = partial(np.int32(0), size)
        count, rest = divmod(length, size)
        if count > 1:
            total = lax.fori_loop(
                np.int32(1), np.int32(count), lambda b, so_far: join(so_far, partial(b * np.int32(size), size)), total
            )
        return join(total, partial(np.int32(count * size), rest)) if rest else total

    def _turned(self, read: Read, first: Any, size: int) -> Any:
        """Rows `[first, first + size)` of a chain's value with its last axis in front, made from turned operands."""
        atom, window = read
        if shape_of(atom) == ():
            return self._read(atom, window)
        task = self._made_by.get(read)
        eqn = None if task is None else self.program.eqns[task.eqn]
        if task is not None and eqn is not None and eqn.primitive.name != "broadcast_in_dim":
            operands = [self._turned(r, first, size) for r in task.reads(self.program)]
            return bind(eqn, operands, f"{TAG}{task.eqn}")[0]
        whole = self.turned[atom] if window is None and atom in self.turned else turn(self._read(atom, window))
        if whole.shape[0] == 1:
            return whole
        sizes = (size, *whole.shape[1:])
        return lax.dynamic_slice(whole, _starts(whole.ndim, 0, first), sizes, allow_negative_indices=False)

    def _shifted(self, task: Task, counted: Any) -> Any:
        """An iota's window counts from where the window starts."""
        eqn = self.program.eqns[task.eqn]
        (window,) = task.windows()
        if window is None or window.axis != eqn.params["dimension"]:
            return counted
        return lax.add(counted, lax.convert_element_type(self._row(window.scale, window.shift), counted.dtype))

    def reduce_lanes(self, task: Task) -> None:
        """Computes a reduction over the last axis of an elementwise chain."""
        eqn = self.program.eqns[task.eqn]
        (window,) = task.windows()
        length = shape_of(eqn.invars[0])[-1]
        total = self._reduce_lanes(eqn, task.reads(self.program)[0], length, f"{TAG}{task.eqn}")
        self._values[eqn.outvars[0], window] = total
        self._made_by[eqn.outvars[0], window] = task

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


def _starts(rank: int, axis: int, row: Any) -> list[Any]:
    starts: list[Any] = [np.int32(0)] * rank
    starts[axis] = lax.convert_element_type(row, np.int32)
    return starts
