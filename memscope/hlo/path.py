"""The chain of instructions that a buffer hangs on."""

from __future__ import annotations

from collections import deque

from .assignment import Position
from .dataflow import Dataflow, positions
from .liveness import LiveBuffer, Liveness
from .module import Instruction


def peak_path(live: Liveness, buffer: LiveBuffer) -> tuple[Position, ...]:
    """The values on the shortest chain from an input to `buffer`, then that of the instruction that frees it."""
    flow = live.flow
    made = _maker(flow, buffer)
    after: dict[Position, Position | None] = {made: None}
    queue = deque([made])
    start = made
    while queue:
        start = queue.popleft()
        if _is_input(flow, start):
            break
        for source in _sources(flow, start):
            if source not in after:
                after[source] = start
                queue.append(source)
    chain = []
    step: Position | None = start
    while step is not None:
        if _is_input(flow, step) or flow.module.instructions[step[0]].opcode != "parameter":
            chain.append(step)
        step = after[step]
    freeing = live.steps[buffer.freed_at]
    if buffer.kind in ("temporary", "constant") and freeing.id != made[0]:
        first = next((index for index, _ in freeing.shape.leaves()), ())
        chain.append((freeing.id, first))
    return tuple(chain)


def _maker(flow: Dataflow, buffer: LiveBuffer) -> Position:
    """The value of a buffer that is computed rather than carried, copied or handed in."""
    return next((v for v in reversed(buffer.values) if is_computed(flow.module.instructions[v[0]])), buffer.values[0])


def is_computed(instruction: Instruction) -> bool:
    return instruction.opcode not in ("parameter", "while", "conditional", "call", "copy", "copy-start", "copy-done")


def _is_input(flow: Dataflow, position: Position) -> bool:
    instruction = flow.module.instructions[position[0]]
    return flow.module.entry.parameters.get(instruction.parameter_number) is instruction


def _sources(flow: Dataflow, position: Position) -> list[Position]:
    """The values that the one at `position` was computed from, largest first."""
    instruction = flow.module.instructions[position[0]]
    onward = flow.source(position)
    if onward is not None:  # a loop's state, or a branch's result
        sources = [onward]
        if instruction.opcode == "while":
            sources.append((flow.module.by_id[instruction.called[0]].root, position[1]))
    else:
        shapes = {o: flow.module.instructions[o].shape for o in instruction.operands}
        sources = [(o, i) for o, shape in shapes.items() for i in positions(shape) if not shape.at(i).is_tuple]
    values = dict.fromkeys(flow.value(s) for s in sources)
    return sorted(values, key=lambda v: -flow.module.instructions[v[0]].shape.at(v[1]).bytes)
