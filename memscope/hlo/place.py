"""Which values share memory where XLA's placement is not known: its own rules, from the module alone."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal

from .assignment import Position
from .dataflow import Dataflow
from .module import MOVES_ELEMENTS, Computation, Index, Instruction, Module, Shape
from .ranges import Schedule, Span

Kind = Literal["argument", "output", "temporary", "constant"]
TakeOver = Callable[[Dataflow, Instruction], Iterator[tuple[Position, Position]]]
"""(operand, result) of each result of an instruction that may take the place of an operand."""


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Values in one piece of memory.

    Attributes:
      spans: times of the schedule at which one of the values is alive.
      hosted: lies in memory set aside for a result, and so costs nothing on its own.
      taken_from: the value that dies where this one is made, and leaves it its memory.
    """

    values: tuple[Position, ...]
    shape: Shape
    bytes: int
    kind: Kind
    spans: tuple[Span, ...]
    parameter: int | None
    hosted: bool = False
    taken_from: Position | None = None


class Sharing:
    """Sets of keys that share memory."""

    def __init__(self) -> None:
        self._parent: dict[object, object] = {}

    def root(self, key: object) -> object:
        root = key
        while root in self._parent:
            root = self._parent[root]
        while key != root:
            self._parent[key], key = root, self._parent[key]
        return root

    def join(self, a: object, b: object) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self._parent[b] = a


class Rules:
    """What XLA's placement of a module's values goes by whatever the order: found once, applied to many orders.

    Args:
      take_over: which results may be written over an operand; XLA CPU's rule where it is not given.
    """

    def __init__(self, flow: Dataflow, take_over: TakeOver | None = None) -> None:
        self.flow = flow
        self._take_over = take_over or may_take_over
        self._results = result_values(flow)
        self._arguments = {p.id: number for number, p in flow.module.entry.parameters.items()}
        self._order = text_order(flow.module)
        self._sharing: Sharing | None = None
        self._takers: dict[int, tuple[tuple[Position, Position], ...]] = {}
        self._operands: dict[int, frozenset[Position]] = {}

    def place(self, schedule: Schedule, ranges: dict[Position, Span]) -> list[Group]:
        """The values in groups, each with its kind; temporaries hosted in results' memory where they fit."""
        self._sharing = self._sharing or _sharing(self.flow, ranges.keys())
        values = sorted(ranges, key=lambda v: (schedule.time.get(v[0], 0), v[1]))
        groups = [self._group(together, ranges) for together in _together(self.flow, values, self._sharing)]
        lendings = list(self._lendings(schedule, ranges))
        return self._lend(self._host(groups, frozenset(lendings), ranges), lendings, ranges)

    def text_order(self, group: Group) -> int:
        """Where the first of a group's values stands in the module's text."""
        return self._order(group.values)

    def _group(self, values: tuple[Position, ...], ranges: dict[Position, Span]) -> Group:
        first = self.flow.module.instructions[values[0][0]]
        parameter = next((self._arguments[i] for i, _ in values if i in self._arguments), None)
        kind: Kind = "temporary"
        if parameter is not None:
            kind = "argument"
        elif not self._results.isdisjoint(values):
            kind = "output"
        elif first.opcode == "constant":
            kind = "constant"
        shape = first.shape.at(values[0][1])
        return Group(values, shape, shape.bytes, kind, tuple(ranges[v] for v in values), parameter)

    def _lendings(self, schedule: Schedule, ranges: dict[Position, Span]) -> Iterator[tuple[Position, Position]]:
        """(lender, borrower) of each result that may take the place of an operand read for the last time."""
        for time, instruction in enumerate(schedule.instructions):
            if instruction.id not in self._takers:
                self._takers[instruction.id] = tuple(self._take_over(self.flow, instruction))
            for value, result in self._takers[instruction.id]:
                if value in ranges and ranges[value][1] == time:
                    yield value, result

    def _lend(
        self, groups: list[Group], lendings: list[tuple[Position, Position]], ranges: dict[Position, Span]
    ) -> list[Group]:
        """Ends each lender one step sooner: from then on its borrower counts.

        Only a temporary that has no place yet can borrow, and only from another one, which it reads under its own
        name; neither shares its memory with other values anyway.
        """
        alone = {g.values[0] for g in groups if g.kind == "temporary" and not g.hosted and len(g.values) == 1}
        lender_of: dict[Position, Position] = {}
        lent: set[Position] = set()
        for lender, borrower in lendings:
            reads = lender[0] in self.flow.module.instructions[borrower[0]].operands
            if reads and {lender, borrower} <= alone and lender not in lent and borrower not in lender_of:
                lent.add(lender)
                lender_of[borrower] = lender
        return [_lent(g, ranges, lent, lender_of) for g in groups]

    def _host(
        self, groups: list[Group], lendings: frozenset[tuple[Position, Position]], ranges: dict[Position, Span]
    ) -> list[Group]:
        """Marks the temporaries that fit into a result's memory while nothing else is there.

        In the order of XLA's `BufferAssigner`: large ones first, each into memory where one of its operands is, else
        into the smallest that was set aside last.
        """
        taken = (g for g in groups if not self._results.isdisjoint(g.values))
        hosts = [_Room(g.bytes, list(g.values)) for g in sorted(taken, key=lambda g: (g.bytes, -self.text_order(g)))]
        hosted: set[int] = set()
        temporaries = (g for g in groups if g.kind == "temporary")
        for group in sorted(temporaries, key=lambda g: (-g.bytes, self.text_order(g))):
            large = [host for host in hosts if group.bytes <= host.bytes]
            operands = self._operands_of(group) if large else frozenset()
            beside = [host for host in large if not operands.isdisjoint(host.guests)]
            for host in (*beside, *large):
                if not _interfere(group.values, host.guests, lendings, ranges):
                    host.guests.extend(group.values)
                    hosted.add(id(group))
                    break
        return [dataclasses.replace(g, hosted=True) if id(g) in hosted else g for g in groups]

    def _operands_of(self, group: Group) -> frozenset[Position]:
        """The values that a group's instructions read."""
        for instruction, _ in group.values:
            if instruction not in self._operands:
                operands = self.flow.module.instructions[instruction].operands
                self._operands[instruction] = frozenset(self.flow.value((o, ())) for o in operands)
        return frozenset().union(*(self._operands[instruction] for instruction, _ in group.values))


@dataclasses.dataclass(frozen=True, eq=False)
class _Room:
    """A result's memory, and the values that take turns in it."""

    bytes: int
    guests: list[Position]


def sharing_values(flow: Dataflow, values: Sequence[Position]) -> list[tuple[Position, ...]]:
    """The values, tuples left out, in sets of those that lie in one piece of memory whatever the order."""
    return _together(flow, values, _sharing(flow, frozenset(values)))


def _sharing(flow: Dataflow, known: Collection[Position]) -> Sharing:
    sharing = Sharing()
    for a, b in _must_share(flow):
        if a in known and b in known:
            sharing.join(a, b)
    return sharing


def _together(flow: Dataflow, values: Iterable[Position], sharing: Sharing) -> list[tuple[Position, ...]]:
    members: dict[object, list[Position]] = {}
    for value in values:
        if not flow.module.instructions[value[0]].shape.at(value[1]).is_tuple:
            members.setdefault(sharing.root(value), []).append(value)
    return [tuple(together) for together in members.values()]


def result_values(flow: Dataflow) -> frozenset[Position]:
    """The values that the entry computation returns."""
    root = flow.module.instructions[flow.module.entry.root]
    return frozenset(flow.value((root.id, index)) for index, _ in root.shape.leaves())


def _must_share(flow: Dataflow) -> Iterator[tuple[Position, Position]]:
    module = flow.module
    for instruction in module.instructions.values():
        here = instruction.id
        match instruction.opcode:
            case "while":
                body, condition = (module.by_id[c] for c in instruction.called)
                for index, _ in instruction.shape.leaves():
                    others = (instruction.operands[0], body.root, body.parameters[0].id, condition.parameters[0].id)
                    for other in others:
                        yield flow.value((here, index)), flow.value((other, index))
            case "conditional":
                for index, _ in instruction.shape.leaves():
                    for called in instruction.called:
                        yield (here, index), flow.value((module.by_id[called].root, index))
            case "dynamic-update-slice":
                yield (here, ()), flow.value((instruction.operands[0], ()))
            case "fusion":
                for index, operand in _updates_in_place(module.by_id[instruction.called[0]]):
                    yield (here, index), flow.value((instruction.operands[operand], ()))
        for index, operand, inner in instruction.in_place:
            yield (here, index), flow.value((instruction.operands[operand], inner))
    for index, parameter, inner in module.donations:
        yield flow.value((module.entry.parameters[parameter].id, inner)), flow.value((module.entry.root, index))


def _updates_in_place(fusion: Computation) -> Iterator[tuple[Index, int]]:
    """(index in the result, operand number) of each result that is an operand with one slice replaced."""
    by_id = {i.id: i for i in fusion.instructions}
    root = by_id[fusion.root]
    outputs = enumerate(root.operands) if root.opcode == "tuple" else [(None, root.id)]
    for number, output in outputs:
        update = _past_bitcasts(by_id, by_id[output])
        if update.opcode == "dynamic-update-slice":
            target = _past_bitcasts(by_id, by_id[update.operands[0]])
            if target.opcode == "parameter":
                yield () if number is None else (number,), target.parameter_number


def _past_bitcasts(by_id: dict[int, Instruction], instruction: Instruction) -> Instruction:
    while instruction.opcode == "bitcast":
        instruction = by_id[instruction.operands[0]]
    return instruction


def may_take_over(flow: Dataflow, instruction: Instruction) -> Iterator[tuple[Position, Position]]:
    """(operand, result) of each result that could be written over an operand, were that read for the last time."""
    instructions = flow.module.instructions
    kept = _elementwise_operands(flow.module, instruction)
    operands = [flow.value((operand, ())) for n, operand in enumerate(instruction.operands) if n in kept]
    for index, shape in instruction.shape.leaves() if operands else ():
        result = instruction.id, index
        if flow.value(result) == result:
            alike = (v for v in operands if instructions[v[0]].shape.at(v[1]) == shape)
            yield from ((value, result) for value in alike)


def _elementwise_operands(module: Module, instruction: Instruction) -> Collection[int]:
    """Numbers of the operands that the result is computed from element by element."""
    if instruction.opcode != "fusion":
        moves = instruction.opcode == "copy" or instruction.opcode in MOVES_ELEMENTS
        return () if moves else range(len(instruction.operands))
    if instruction.fusion_kind not in ("kLoop", "kInput"):
        return ()
    return module.by_id[instruction.called[0]].elementwise_parameters


def _lent(
    group: Group, ranges: dict[Position, Span], lent: set[Position], lender_of: dict[Position, Position]
) -> Group:
    lender = lender_of.get(group.values[0])
    if lender is None and lent.isdisjoint(group.values):
        return group
    return dataclasses.replace(
        group, spans=tuple(_until(ranges[v], v in lent) for v in group.values), taken_from=lender
    )


def _until(span: Span, lent: bool) -> Span:
    return (span[0], max(span[0], span[1] - 1)) if lent else span


def text_order(module: Module) -> Callable[[Iterable[Position]], int]:
    """Where the first of some values stands in the module's text; the entry computation first."""
    count = itertools.count()
    at = {i: next(count) for c in reversed(module.computations) for i in c.text}
    return lambda values: min(at[i] for i, _ in values)


def _interfere(
    ours: Iterable[Position],
    theirs: Iterable[Position],
    lendings: frozenset[tuple[Position, Position]],
    ranges: dict[Position, Span],
) -> bool:
    for a in ours:
        for b in theirs:
            (start, end), (other_start, other_end) = ranges[a], ranges[b]
            if start <= other_end - ((b, a) in lendings) and other_start <= end - ((a, b) in lendings):
                return True
    return False
