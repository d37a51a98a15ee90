"""Which values share memory where XLA's placement is not known: its own rules, from the module alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from .assignment import Position
from .dataflow import Dataflow
from .module import Computation, Index, Instruction, Module, Shape
from .ranges import Schedule, Span

Kind = Literal["argument", "output", "temporary", "constant"]
TakeOver = Callable[[Dataflow, Instruction], Iterator[tuple[Position, Position]]]
"""(operand, result) of each result of an instruction that could be written over that operand, were it read no more."""

# A result may take the place of an operand that dies only if it is computed element by element from it.
MOVES_ELEMENTS = frozenset(
    {
        "all-gather", "bitcast", "broadcast", "cholesky", "concatenate", "convolution", "custom-call", "dot", "fft",
        "gather", "iota", "pad", "reduce", "reduce-window", "reshape", "reverse", "rng-bit-generator", "slice",
        "dynamic-slice", "select-and-scatter", "transpose", "while", "conditional", "call", "parameter", "constant",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Values in one piece of memory.

    Attributes:
      spans: times of the schedule at which one of the values is alive.
      hosted: lies in memory set aside for a result, and so costs nothing on its own.
    """

    values: tuple[Position, ...]
    shape: Shape
    bytes: int
    kind: Kind
    spans: tuple[Span, ...]
    parameter: int | None
    hosted: bool = False


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


def place(
    flow: Dataflow, schedule: Schedule, ranges: dict[Position, Span], take_over: TakeOver | None = None
) -> list[Group]:
    """The values in groups, each with its kind; temporaries hosted in results' memory where they fit.

    Args:
      take_over: which results may be written over an operand; XLA CPU's rule where it is not given.
    """
    module = flow.module
    sharing = Sharing()
    for a, b in _must_share(flow):
        if a in ranges and b in ranges:
            sharing.join(a, b)
    members: dict[object, list[Position]] = {}
    for value in sorted(ranges, key=lambda v: (schedule.time.get(v[0], 0), v[1])):
        if not module.instructions[value[0]].shape.at(value[1]).is_tuple:
            members.setdefault(sharing.root(value), []).append(value)
    results = result_values(flow)
    lendings = list(_lendings(flow, schedule, ranges, take_over or may_take_over))
    groups = [_group(module, tuple(values), ranges, results) for values in members.values()]
    return _lend(_host(groups, dict(lendings), ranges), lendings, ranges)


def result_values(flow: Dataflow) -> frozenset[Position]:
    """The values that the entry computation returns."""
    root = flow.module.instructions[flow.module.entry.root]
    return frozenset(flow.value((root.id, index)) for index, _ in root.shape.leaves())


def _group(
    module: Module,
    values: tuple[Position, ...],
    ranges: dict[Position, Span],
    results: frozenset[Position],
) -> Group:
    first = module.instructions[values[0][0]]
    arguments = {p.id: number for number, p in module.entry.parameters.items()}
    parameter = next((arguments[i] for i, _ in values if i in arguments), None)
    kind: Kind = "temporary"
    if parameter is not None:
        kind = "argument"
    elif results & set(values):
        kind = "output"
    elif first.opcode == "constant":
        kind = "constant"
    shape = first.shape.at(values[0][1])
    return Group(values, shape, shape.bytes, kind, tuple(ranges[v] for v in values), parameter)


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


def _lendings(
    flow: Dataflow, schedule: Schedule, ranges: dict[Position, Span], take_over: TakeOver
) -> Iterator[tuple[Position, Position]]:
    """(lender, borrower) of each result that may take the place of an operand read for the last time."""
    for time, instruction in enumerate(schedule.instructions):
        for value, result in take_over(flow, instruction):
            if value in ranges and ranges[value][1] == time:
                yield value, result


def may_take_over(flow: Dataflow, instruction: Instruction) -> Iterator[tuple[Position, Position]]:
    """XLA CPU's rule: the same shape, computed element by element."""
    instructions = flow.module.instructions
    for index, shape in instruction.shape.leaves():
        result = instruction.id, index
        if flow.value(result) != result:
            continue
        for number, operand in enumerate(instruction.operands):
            value = flow.value((operand, ()))
            alike = instructions[value[0]].shape.at(value[1]) == shape
            if alike and _elementwise(flow.module, instruction, number):
                yield value, result


def _elementwise(module: Module, instruction: Instruction, operand: int) -> bool:
    if instruction.opcode != "fusion":
        return instruction.opcode != "copy" and instruction.opcode not in MOVES_ELEMENTS
    if instruction.fusion_kind not in ("kLoop", "kInput"):
        return False
    inner = module.by_id[instruction.called[0]]
    reached = {inner.parameters[operand].id}
    for i in inner.instructions:  # operands first
        if i.id not in reached and any(o in reached for o in i.operands):
            if i.opcode in MOVES_ELEMENTS:
                return False
            reached.add(i.id)
    return True


def _lend(groups: list[Group], lendings: list[tuple[Position, Position]], ranges: dict[Position, Span]) -> list[Group]:
    """Ends each lender one step sooner: from then on its borrower counts.

    Only a buffer of temporaries that has no place yet can borrow, and only from one that is no result's.
    """
    first = {g.values[0] for g in groups if g.kind == "temporary" and not g.hosted}
    own = {v for g in groups if g.kind == "temporary" and not g.hosted for v in g.values}
    lent: set[Position] = set()
    for lender, borrower in lendings:
        if lender in own and borrower in first and lender not in lent:
            lent.add(lender)
            first.remove(borrower)
    return [dataclasses.replace(g, spans=tuple(_until(ranges[v], v in lent) for v in g.values)) for g in groups]


def _until(span: Span, lent: bool) -> Span:
    return (span[0], max(span[0], span[1] - 1)) if lent else span


def _host(groups: list[Group], lendings: dict[Position, Position], ranges: dict[Position, Span]) -> list[Group]:
    """Marks the temporaries that fit into a result's memory while nothing else is there."""
    hosts = sorted((g for g in groups if g.kind == "output"), key=lambda g: g.bytes)
    guests = [list(g.values) for g in hosts]
    hosted: set[int] = set()
    temporaries = (g for g in groups if g.kind == "temporary")
    for group in sorted(temporaries, key=lambda g: (-g.bytes, -sum(end - start for start, end in g.spans))):
        for host, values in zip(hosts, guests, strict=True):
            if group.bytes <= host.bytes and not _interfere(group.values, values, lendings, ranges):
                values.extend(group.values)
                hosted.add(id(group))
                break
    return [dataclasses.replace(g, hosted=True) if id(g) in hosted else g for g in groups]


def _interfere(
    ours: Iterable[Position],
    theirs: list[Position],
    lendings: dict[Position, Position],
    ranges: dict[Position, Span],
) -> bool:
    for a in ours:
        for b in theirs:
            (start, end), (other_start, other_end) = ranges[a], ranges[b]
            if start <= other_end - (lendings.get(b) == a) and other_start <= end - (lendings.get(a) == b):
                return True
    return False
