"""How many steps a chunk takes: from bytes of its largest array to steps of each loop."""

from __future__ import annotations

import math

from jax.extend import core as jex_core

from .axes import Window
from .axes.factor import shape_of
from .program import Program, is_var, nbytes
from .stream import LoopPlan, Streaming
from .stream.carried import state_bytes
from .stream.reductions import chain

Var = jex_core.Var


def chunks_of(streaming: Streaming, chunk_bytes: int) -> dict[LoopPlan, int]:
    """Steps of a chunk of every loop; the same for loops that are tied."""
    program = streaming.program
    chunks = {
        loop: chunk_steps(loop.steps, bytes_per_step(program, streaming, loop), chunk_bytes) for loop in streaming.loops
    }
    for tie in streaming.tied:
        steps = min(chunks[loop] for loop in tie)
        chunks.update(dict.fromkeys(tie, max(steps, fewest_steps(program, streaming, tie))))
    return chunks


def fewest_steps(program: Program, streaming: Streaming, tie: tuple[LoopPlan, ...]) -> int:
    """The chunk at which the states that are kept take as much as what one chunk computes: near sqrt(steps).

    Smaller ones would take more memory rather than less.
    """
    step = sum(bytes_per_step(program, streaming, loop) for loop in tie)
    states = sum(state_bytes(program, task) for loop in tie for task in loop.saves)
    best = round(math.sqrt(tie[0].steps * states / step))
    return chunk_steps(tie[0].steps, 1, max(1, best))


def largest_step(streaming: Streaming) -> int:
    """Bytes of the largest array of any loop's single step."""
    return max((bytes_per_step(streaming.program, streaming, loop) for loop in streaming.loops), default=0)


def bytes_per_step(program: Program, streaming: Streaming, loop: LoopPlan) -> int:
    """Bytes that the largest array of one iteration grows by with each step.

    What is fused into a reduction over another axis than the streamed one is no array.
    """
    fused = fused_vars(program, loop)
    sizes = [1]
    for task in loop.body:
        for atom, window in (*task.reads(program), *task.results(program)):
            if not isinstance(window, Window) or (is_var(atom) and (atom in streaming.remade or atom in fused)):
                continue
            sizes.append(nbytes(atom) * window.scale // max(1, shape_of(atom)[window.axis]))
    return max(sizes)


def fused_vars(program: Program, loop: LoopPlan) -> set[Var]:
    """What is fused into the loop's reductions over another axis than its own."""
    return {
        var
        for task in loop.body
        if task.factor is not None and task.factor.fold is None
        for var in chain(program, program.eqns[task.eqn])[0]
    }


def chunk_steps(total: int, step_bytes: int, chunk_bytes: int) -> int:
    """Steps of a chunk of about `chunk_bytes`: a divisor of the loop's steps where one is near, for want of a tail."""
    most = max(1, min(total, chunk_bytes // step_bytes))
    for steps in range(most, max(1, most // 2), -1):
        if total % steps == 0:
            return steps
    trips = -(-total // most)
    even = -(-total // trips)
    return even if even < 16 else min(most, -(-even // 8) * 8)
