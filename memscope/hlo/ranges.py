"""When each value is alive, in the order in which XLA runs the instructions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from .assignment import Position
from .dataflow import RUNS_COMPUTATIONS, Dataflow, positions
from .module import Computation, Instruction, Module

Span = tuple[int, int]  # first and last time, both inclusive


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """The instructions of all the computations that run as code of their own, in one line.

    A loop's or branch's computations stand, once, just before the instruction that runs them: so one trip of
    the loop is seen, and its temporaries are counted while it runs.
    """

    instructions: tuple[Instruction, ...]
    time: dict[int, int]
    spans: dict[int, Span]  # by computation id


def flatten(module: Module) -> Schedule:
    """One line of instructions out of nested computations, as XLA's live range analysis makes it."""
    order: list[Instruction] = []
    spans: dict[int, Span] = {}

    def visit(computation: Computation) -> None:
        start = len(order)
        spans[computation.id] = start, start
        for instruction in computation.instructions:
            if instruction.opcode in RUNS_COMPUTATIONS:
                for called in reversed(instruction.called) if instruction.opcode == "while" else instruction.called:
                    if called not in spans:
                        visit(module.by_id[called])
            order.append(instruction)
        spans[computation.id] = start, max(start, len(order) - 1)

    visit(module.entry)
    return Schedule(tuple(order), {i.id: t for t, i in enumerate(order)}, spans)


def live_ranges(flow: Dataflow, schedule: Schedule) -> dict[Position, Span]:
    """First and last time of every value, by the position that defines it.

    Arguments and results live throughout: the caller holds them. A donated argument is free once it is read.
    """
    last = max(0, len(schedule.instructions) - 1)
    roots = {c.root: schedule.spans[c.id][1] for c in flow.module.computations if c.id in schedule.spans}
    ranges: dict[Position, Span] = {}

    def extend(position: Position, time: int) -> None:
        value = flow.value(position)
        start, end = ranges.get(value, (schedule.time.get(value[0], time), time))
        ranges[value] = start, max(end, time)

    for time, instruction in enumerate(schedule.instructions):
        for index in positions(instruction.shape):
            position = instruction.id, index
            if instruction.id in roots or flow.value(position) == position:
                extend(position, roots.get(instruction.id, time))
        until = time
        if instruction.opcode == "while":  # the body's own copy of the state takes over as soon as it starts
            until = schedule.spans[instruction.called[0]][0]
        for position in reads(flow.module, instruction):
            extend(position, until)
    donated = {(number, index) for _, number, index in flow.module.donations}
    for number, parameter in flow.module.entry.parameters.items():
        for index in positions(parameter.shape):
            until = ranges[parameter.id, index][1] if (number, index) in donated else last
            ranges[parameter.id, index] = 0, until
    return ranges


def reads(module: Module, instruction: Instruction) -> Iterator[Position]:
    """The positions that an instruction reads; a tuple is made of its parts without reading them."""
    if instruction.opcode == "tuple":
        return
    for operand in instruction.operands:
        if instruction.opcode == "get-tuple-element":
            yield operand, ()
            continue
        for index in positions(module.instructions[operand].shape):
            yield operand, index
