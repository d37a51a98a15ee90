"""Which buffer each position of each instruction reads: XLA's dataflow through tuples, loops and branches."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from .assignment import Position
from .module import Index, Instruction, Module, Shape

# Results of these are their operand under another shape or name.
_PASSES_ON = frozenset(
    {"bitcast", "opt-barrier", "add-dependency", "domain", "copy-done", "async-done", "async-update"}
)
RUNS_COMPUTATIONS = frozenset({"while", "conditional", "call", "async-start"})


class Dataflow:
    """Follows any position back to the instruction that defines the value there.

    Args:
      module: the module.
      defined: all positions that define a value, from a buffer assignment; without it they are found by XLA's
        rules: every array that an instruction computes, and a new value for each part of a loop's or branch's
        result that differs from what went in.
    """

    def __init__(self, module: Module, defined: Collection[Position] | None = None) -> None:
        self.module = module
        self.callers: dict[int, Instruction] = {}
        self._home = {i.id: c for c in module.computations for i in c.instructions}
        for instruction in module.instructions.values():
            if instruction.opcode in RUNS_COMPUTATIONS:
                for called in instruction.called:
                    self.callers.setdefault(called, instruction)
        self._defined = set(defined) if defined is not None else self._phis()
        self._known: dict[Position, Position] = {}

    def value(self, position: Position) -> Position:
        """The position that defines the value found at `position`."""
        if position not in self._known:
            self._known[position] = self._follow(position, self._defined, through_calls=True)
        return self._known[position]

    def source(self, position: Position) -> Position | None:
        """Where the instruction at `position` takes that value from, or None where it computes it."""
        instruction, index = self.module.instructions[position[0]], position[1]
        match instruction.opcode:
            case "tuple" if index:
                return instruction.operands[index[0]], index[1:]
            case "get-tuple-element":
                return instruction.operands[0], (instruction.tuple_index, *index)
            case "while":
                return instruction.operands[0], index
            case "conditional" | "call":
                return self.module.by_id[instruction.called[0]].root, index
            case "async-done" if self.module.instructions[instruction.operands[0]].opcode.startswith("async"):
                return instruction.operands[0], (1, *index)
            case "parameter":
                return self._argument(instruction, index)
            case opcode if opcode in _PASSES_ON and instruction.operands:
                return instruction.operands[0], index
        return None

    def _argument(self, parameter: Instruction, index: Index) -> Position | None:
        home = self._home[parameter.id]
        caller = self.callers.get(home.id)
        if caller is None:
            return None
        if caller.opcode == "conditional":
            return caller.operands[1 + caller.called.index(home.id)], index
        number = 0 if caller.opcode == "while" else parameter.parameter_number
        return (caller.operands[number], index) if number < len(caller.operands) else None

    def _follow(self, position: Position, defined: Collection[Position], *, through_calls: bool) -> Position:
        while position not in defined:
            if not through_calls and self.module.instructions[position[0]].opcode == "parameter":
                return position
            source = self.source(position)
            if source is None:
                return position
            position = source
        return position

    def _phis(self) -> set[Position]:
        """Positions where a loop or branch merges different values."""
        phis: set[Position] = set()
        for computation in self.module.computations:  # callees first: inner loops before outer ones
            for instruction in computation.instructions:
                if instruction.opcode == "while":
                    phis.update(self._loop_phis(instruction, phis))
                elif instruction.opcode == "conditional":
                    phis.update((instruction.id, index) for index, _ in instruction.shape.leaves())
        return phis

    def _loop_phis(self, loop: Instruction, phis: set[Position]) -> Iterator[Position]:
        body, condition = (self.module.by_id[c] for c in loop.called)
        states = [c.parameters[0].id for c in (body, condition)]
        for index, _ in loop.shape.leaves():
            if self._follow((body.root, index), phis, through_calls=False) != (states[0], index):
                yield from ((loop.id, index), (states[0], index), (states[1], index))


def positions(shape: Shape, index: Index = ()) -> Iterator[Index]:
    """Every index of a shape, inner tuples and leaves included."""
    yield index
    for i, element in enumerate(shape.elements):
        yield from positions(element, (*index, i))
