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


_Moment = int | tuple[str, int]
"""When an instruction runs, by its id, or when a computation starts or ends."""


class LiveRanges:
    """When each value of a module is alive: what reads it is found once, and looked up in many orders.

    Args:
      schedule: any order of the module.
    """

    def __init__(self, flow: Dataflow, schedule: Schedule) -> None:
        self._last_of = {c.root: c.id for c in flow.module.computations if c.id in schedule.spans}
        touched: dict[Position, dict[_Moment, None]] = {}
        for instruction in schedule.instructions:
            for position, moment in self._touches(flow, instruction):
                touched.setdefault(flow.value(position), {})[moment] = None
        self._touched = {value: tuple(moments) for value, moments in touched.items()}
        donated = {(number, index) for _, number, index in flow.module.donations}
        parameters = flow.module.entry.parameters.items()
        arguments = {
            (p.id, index): (number, index) in donated for number, p in parameters for index in positions(p.shape)
        }
        self._donated = [argument for argument, is_donated in arguments.items() if is_donated]
        self._kept = [argument for argument, is_donated in arguments.items() if not is_donated]

    def of(self, schedule: Schedule) -> dict[Position, Span]:
        """First and last time of every value, by the position that defines it.

        Arguments and results live throughout: the caller holds them. A donated argument is free once it is read.
        """
        at: dict[_Moment, int] = dict(schedule.time.items())
        for computation, (start, end) in schedule.spans.items():
            at["start", computation], at["end", computation] = start, end
        ranges: dict[Position, Span] = {}
        for value, moments in self._touched.items():
            times = [at[moment] for moment in moments]
            ranges[value] = schedule.time.get(value[0], times[0]), max(times)
        last = max(0, len(schedule.instructions) - 1)
        return ranges | {a: (0, ranges[a][1]) for a in self._donated} | dict.fromkeys(self._kept, (0, last))

    def _touches(self, flow: Dataflow, instruction: Instruction) -> Iterator[tuple[Position, _Moment]]:
        """What an instruction makes or reads, and until when that is needed for it."""
        here: _Moment = instruction.id
        root = self._last_of.get(instruction.id)
        for index in positions(instruction.shape):
            position = instruction.id, index
            if root is not None or flow.value(position) == position:
                yield position, here if root is None else ("end", root)
        if instruction.opcode == "while":  # the body's own copy of the state takes over as soon as it starts
            here = "start", instruction.called[0]
        for position in reads(flow.module, instruction):
            yield position, here


def live_ranges(flow: Dataflow, schedule: Schedule) -> dict[Position, Span]:
    """First and last time of every value in one order."""
    return LiveRanges(flow, schedule).of(schedule)


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
