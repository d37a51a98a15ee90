"""Which values share memory where XLA's placement is not known: its own rules, from the module alone."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal

from .assignment import Position
from .dataflow import Dataflow
from .module import MOVES_ELEMENTS, Computation, Index, Instruction, Module, Shape
from .ranges import Schedule, Span

_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})
"""Their results lie where their first operands were."""

Kind = Literal["argument", "output", "temporary", "constant"]

Lending = tuple[Position, Position]
"""A value, and another one that may be written over it where it is read for the last time."""

TakeOver = Callable[[Dataflow, Instruction], Iterator[Lending]]
"""(operand, result) of each result of an instruction that may take the place of an operand."""

Values = tuple[Position, ...]
"""Values in one piece of memory, the first one first."""

Text = Callable[[Iterable[Position]], int]
"""Where the first of some values stands in a module's text."""


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Values in one piece of memory.

    Attributes:
      spans: times of the schedule at which one of the values is alive.
      hosted: lies in memory set aside for a result, and so costs nothing on its own.
      taken_from: the value that dies where this one is made, and leaves it its memory.
    """

    values: Values
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
        self._together: list[Values] | None = None
        self._known: dict[Values, _Known] = {}
        self._takers: dict[int, tuple[Lending, ...]] = {}
        self._operands: dict[int, frozenset[Position]] = {}

    def place(self, schedule: Schedule, ranges: dict[Position, Span], text: Text) -> list[Group]:
        """The values in groups, each with its kind; temporaries hosted in results' memory where they fit.

        Args:
          text: of the module in that schedule.

        Returns:
          The groups in the order of the schedule.
        """
        if self._together is None:
            self._together = _together(self.flow, ranges, _sharing(self.flow, ranges.keys()))
        turn = {value: (schedule.time.get(value[0], 0), value[1]) for value in ranges}
        groups = [tuple(sorted(values, key=turn.__getitem__)) for values in self._together]
        groups.sort(key=lambda values: turn[values[0]])
        lendings = list(self._lendings(schedule, ranges))
        hosted = self._hosted(groups, _Interference(lendings, ranges), text)
        lender_of = self._lenders(groups, hosted, lendings)
        lent = frozenset(lender_of.values())
        return [self._group(values, ranges, values in hosted, lent, lender_of.get(values[0])) for values in groups]

    def _group(
        self,
        values: Values,
        ranges: dict[Position, Span],
        hosted: bool,
        lent: frozenset[Position],
        taken_from: Position | None,
    ) -> Group:
        known = self._what_is_known(values)
        spans = tuple(_until(ranges[v], v in lent) for v in values)
        return Group(values, known.shape, known.bytes, known.kind, spans, known.parameter, hosted, taken_from)

    def _what_is_known(self, values: Values) -> _Known:
        if values not in self._known:
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
            self._known[values] = _Known(shape, shape.bytes, kind, parameter)
        return self._known[values]

    def _lendings(self, schedule: Schedule, ranges: dict[Position, Span]) -> Iterator[Lending]:
        """Where a result may take the place of an operand that is read for the last time."""
        for time, instruction in enumerate(schedule.instructions):
            if instruction.id not in self._takers:
                self._takers[instruction.id] = tuple(self._take_over(self.flow, instruction))
            for value, result in self._takers[instruction.id]:
                if value in ranges and ranges[value][1] == time:
                    yield value, result

    def _lenders(
        self, groups: list[Values], hosted: Collection[Values], lendings: list[Lending]
    ) -> dict[Position, Position]:
        """Whose memory each borrower takes over.

        Only a temporary that has no place yet can borrow, and only from another one, which it reads under its own
        name; neither shares its memory with other values anyway.
        """
        free = (values for values in groups if len(values) == 1 and values not in hosted)
        alone = {values[0] for values in free if self._what_is_known(values).kind == "temporary"}
        lender_of: dict[Position, Position] = {}
        lent: set[Position] = set()
        for lender, borrower in lendings:
            reads = lender[0] in self.flow.module.instructions[borrower[0]].operands
            if reads and {lender, borrower} <= alone and lender not in lent and borrower not in lender_of:
                lent.add(lender)
                lender_of[borrower] = lender
        return lender_of

    def _hosted(self, groups: list[Values], interference: _Interference, text: Text) -> frozenset[Values]:
        """The temporaries that fit into a result's memory while nothing else is there.

        In the order of XLA's `BufferAssigner`: large ones first, each into memory where one of its operands is, else
        into the smallest that was set aside last.
        """
        known = {values: self._what_is_known(values) for values in groups}
        results = [values for values in groups if not self._results.isdisjoint(values)]
        results.sort(key=lambda values: (known[values].bytes, -text(values)))
        hosts = [_Room(interference.stay(values)) for values in results]
        sizes = [known[values].bytes for values in results]
        host_of = {value: number for number, values in enumerate(results) for value in values}
        small = (v for v, k in known.items() if k.kind == "temporary" and sizes and k.bytes <= sizes[-1])
        hosted: set[Values] = set()
        for values in sorted(small, key=lambda values: (-known[values].bytes, text(values))):
            large = range(bisect.bisect_left(sizes, known[values].bytes), len(hosts))
            beside = sorted({host_of[operand] for operand in self._operands_of(values) if operand in host_of})
            stay = interference.stay(values)
            candidates = itertools.chain((number for number in beside if number in large), large)
            number = next((number for number in candidates if hosts[number].is_free_for(stay)), None)
            if number is not None:
                hosts[number].take(stay)
                host_of.update(dict.fromkeys(values, number))
                hosted.add(values)
        return frozenset(hosted)

    def _operands_of(self, values: Values) -> frozenset[Position]:
        """The values that a group's instructions read."""
        for instruction, _ in values:
            if instruction not in self._operands:
                operands = self.flow.module.instructions[instruction].operands
                self._operands[instruction] = frozenset(self.flow.value((o, ())) for o in operands)
        return frozenset().union(*(self._operands[instruction] for instruction, _ in values))


class _Interference:
    """Which values are in memory at the same time."""

    def __init__(self, lendings: Iterable[Lending], ranges: dict[Position, Span]) -> None:
        self._lendings = frozenset(lendings)
        self._ranges = ranges
        self._partners: dict[Position, set[Position]] = {}
        for lender, borrower in self._lendings:
            self._partners.setdefault(lender, set()).add(borrower)
            self._partners.setdefault(borrower, set()).add(lender)

    def stay(self, values: Values) -> _Stay:
        """These values in some piece of memory."""
        times, partners = 0, set[Position]()
        for value in values:
            start, end = self._ranges[value]
            times |= (2 << end) - (1 << start)
            partners |= self._partners.get(value, set())
        return _Stay(values, times, partners, self)

    def between(self, ours: Iterable[Position], theirs: Iterable[Position]) -> bool:
        """Whether one of ours and one of theirs need memory at the same time, though the one may be written over."""
        for a in ours:
            for b in theirs:
                (start, end), (other_start, other_end) = self._ranges[a], self._ranges[b]
                lent, borrowed = (a, b) in self._lendings, (b, a) in self._lendings
                if start <= other_end - borrowed and other_start <= end - lent:
                    return True
        return False


@dataclasses.dataclass(frozen=True, eq=False)
class _Stay:
    """Values in some piece of memory.

    Attributes:
      times: when one of them is there, as bits.
      partners: the values that may be written over one of them, or that one of them may be written over.
    """

    values: Values
    times: int
    partners: set[Position]
    interference: _Interference


class _Room:
    """A result's memory, in which values take turns."""

    def __init__(self, first: _Stay) -> None:
        self._guests = set(first.values)
        self._times = first.times

    def is_free_for(self, stay: _Stay) -> bool:
        """Whether nothing else is there while these values need memory."""
        if not self._times & stay.times:
            return True
        if self._guests.isdisjoint(stay.partners):  # nobody leaves one step sooner for them
            return False
        return not stay.interference.between(stay.values, self._guests)

    def take(self, stay: _Stay) -> None:
        """Lets these values in as well."""
        self._guests.update(stay.values)
        self._times |= stay.times


@dataclasses.dataclass(frozen=True)
class _Known:
    """What a group of values is in any order in which the same one comes first."""

    shape: Shape
    bytes: int
    kind: Kind
    parameter: int | None


def sharing_values(flow: Dataflow, values: Sequence[Position]) -> list[Values]:
    """The values, tuples left out, in sets of those that lie in one piece of memory whatever the order."""
    return _together(flow, values, _sharing(flow, frozenset(values)))


def _sharing(flow: Dataflow, known: Collection[Position]) -> Sharing:
    sharing = Sharing()
    for a, b in _must_share(flow):
        if a in known and b in known:
            sharing.join(a, b)
    return sharing


def _together(flow: Dataflow, values: Iterable[Position], sharing: Sharing) -> list[Values]:
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
            case opcode if opcode in _IN_PLACE:
                for number, (index, _) in enumerate(instruction.shape.leaves()):  # a scatter may update several
                    yield (here, index), flow.value((instruction.operands[number], ()))
            case "fusion":
                for index, operand in _updates_in_place(module.by_id[instruction.called[0]]):
                    yield (here, index), flow.value((instruction.operands[operand], ()))
        for index, operand, inner in instruction.in_place:
            yield (here, index), flow.value((instruction.operands[operand], inner))
    for index, parameter, inner in module.donations:
        yield flow.value((module.entry.parameters[parameter].id, inner)), flow.value((module.entry.root, index))


def _updates_in_place(fusion: Computation) -> Iterator[tuple[Index, int]]:
    """(index in the result, operand number) of each result that is an operand with a part replaced."""
    by_id = {i.id: i for i in fusion.instructions}
    root = by_id[fusion.root]
    outputs = enumerate(root.operands) if root.opcode == "tuple" else [(None, root.id)]
    for number, output in outputs:
        update = _past_bitcasts(by_id, by_id[output])
        if update.opcode in _IN_PLACE and not update.shape.is_tuple:
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


def _until(span: Span, lent: bool) -> Span:
    return (span[0], max(span[0], span[1] - 1)) if lent else span


def text_order(module: Module, schedule: Schedule) -> Text:
    """Where the first of some values stands in the module's text; the entry computation first."""
    count = itertools.count()
    at = {i: next(count) for c in reversed(module.computations) if c.id in schedule.spans for i in c.text}
    return lambda values: min(at[i] for i, _ in values)
