"""What a module computes: two modules with the same of it round alike, to the last bit.

XLA CPU may make one operation of a product and the sum that it is a term of, where they are fused: that rounds once.
So of what is computed element by element two things count: the expression, and which products are fused with their
sums. Where elements lie does not; of sums, dots and loops the shapes and layouts are part of it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from . import hlo_pb2

_MOVES = frozenset(
    {
        "bitcast", "broadcast", "concatenate", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "pad",
        "reshape", "reverse", "slice", "transpose",
    }
)  # fmt: skip
"""Their results are elements of their operands."""

_ORDERED = frozenset(
    {
        "call", "cholesky", "conditional", "convolution", "custom-call", "dot", "fft", "map", "reduce", "reduce-window",
        "rng", "rng-bit-generator", "scatter", "select-and-scatter", "sort", "triangular-solve", "while",
    }
)  # fmt: skip
"""They may round otherwise where their operands are laid out otherwise."""

_COMMUTE = frozenset({"add", "and", "maximum", "minimum", "multiply", "or", "xor"})
_SUMS = frozenset({"add", "subtract"})

_THREADS = re.compile(rb'"outer_dimension_partitions":\[[^\]]*\],?')
"""How many threads an instruction is cut up for: each element is computed as before."""

_NAMING = ("id", "name", "metadata", "operand_ids", "control_predecessor_ids", "called_computation_ids")
_LAID_OUT = ("shape", "backend_config", "fusion_kind")

Expression = int
"""A hash of what a value is computed from, and how."""


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """What a module computes.

    Attributes:
      results: an expression of the arguments for each result.
      fused: the sums that are fused with a product.
    """

    results: tuple[Expression, ...]
    fused: frozenset[Expression]


def arithmetic(module: bytes, handed: Sequence[Expression] = ()) -> Arithmetic:
    """The arithmetic of a serialized module.

    Args:
      handed: expressions of its last arguments, where another module has computed them.
    """
    return _Reader(hlo_pb2.Module.FromString(module), handed).read()


class _Reader:
    def __init__(self, module: hlo_pb2.Module, handed: Sequence[Expression]) -> None:
        self._computations = {c.id: c for c in module.computations}
        self._entry = self._computations[module.entry_computation_id]
        self._handed = handed
        self._exact: dict[int, Expression] = {}
        self._fused: set[Expression] = set()

    def read(self) -> Arithmetic:
        found: dict[int, list[Expression]] = {}
        instructions = {i.id: i for i in self._entry.instructions}  # operands first
        own = sum(i.opcode == "parameter" for i in instructions.values()) - len(self._handed)
        for i in instructions.values():
            if i.opcode == "parameter":
                number = i.parameter_number
                found[i.id] = [hash(("argument", number)) if number < own else self._handed[number - own]]
            elif i.opcode == "tuple":
                found[i.id] = [found[o][0] for o in i.operand_ids]
            elif i.opcode == "get-tuple-element":
                found[i.id] = [found[i.operand_ids[0]][i.tuple_index]]
            else:
                found[i.id] = self._results(i, instructions, found)
        return Arithmetic(tuple(found[self._entry.root_id]), frozenset(self._fused))

    def _results(
        self,
        i: hlo_pb2.Instruction,
        instructions: Mapping[int, hlo_pb2.Instruction],
        found: Mapping[int, Sequence[Expression]],
    ) -> list[Expression]:
        if self._is_ordered(i):
            shapes = tuple(_bytes_of(instructions[o].shape) for o in i.operand_ids)
            whole = hash((self._exactly(i), shapes, tuple(tuple(found[o]) for o in i.operand_ids)))
            return [whole] if not i.shape.tuple_shapes else [hash((whole, k)) for k in range(len(i.shape.tuple_shapes))]
        read = [found[o][0] for o in i.operand_ids]
        if i.opcode == "fusion":
            return self._expressions(i.called_computation_ids[0], read)
        return [_expression(i, read)]

    def _is_ordered(self, instruction: hlo_pb2.Instruction) -> bool:
        called = (self._computations[c].instructions for c in instruction.called_computation_ids)
        inner = (i for instructions in called for i in instructions)
        return instruction.opcode in _ORDERED or any(self._is_ordered(i) for i in inner)

    def _expressions(self, computation: int, read: Sequence[Expression]) -> list[Expression]:
        """What the results of a fusion are, element by element."""
        found: dict[int, Expression] = {}
        products: set[int] = set()
        instructions = {i.id: i for i in self._computations[computation].instructions}  # operands first
        root = instructions[self._computations[computation].root_id]
        for i in instructions.values():
            if i.opcode == "tuple":
                continue
            is_argument = i.opcode == "parameter"
            found[i.id] = read[i.parameter_number] if is_argument else _expression(i, [found[o] for o in i.operand_ids])
            if i.opcode == "multiply" or (i.opcode in {*_MOVES, "negate"} and not products.isdisjoint(i.operand_ids)):
                products.add(i.id)
            if i.opcode in _SUMS:
                self._fused.update(hash((found[i.id], found[o])) for o in i.operand_ids if o in products)
        return [found[r] for r in (root.operand_ids if root.opcode == "tuple" else (root.id,))]

    def _exactly(self, instruction: hlo_pb2.Instruction) -> Expression:
        return hash((_fields(instruction), tuple(map(self._computed, instruction.called_computation_ids))))

    def _computed(self, computation: int) -> Expression:
        if computation not in self._exact:
            found: dict[int, Expression] = {}
            for i in self._computations[computation].instructions:  # operands first
                found[i.id] = hash((self._exactly(i), tuple(found[o] for o in i.operand_ids)))
            self._exact[computation] = found[self._computations[computation].root_id]
        return self._exact[computation]


def _expression(instruction: hlo_pb2.Instruction, read: Sequence[Expression]) -> Expression:
    """Of one element; one that is only moved stays what it is."""
    if instruction.opcode in _MOVES:
        return read[0] if len(set(read)) == 1 else hash((instruction.opcode, tuple(read)))
    if not read:
        return hash(_fields(instruction))
    operands = sorted(read) if instruction.opcode in _COMMUTE else read
    return hash((_fields(instruction, *_LAID_OUT), instruction.shape.element_type, tuple(operands)))


def _fields(instruction: hlo_pb2.Instruction, *apart: str) -> bytes:
    """All that is said of an instruction but its name, its operands and what is named."""
    bare = hlo_pb2.Instruction()
    bare.CopyFrom(instruction)
    for field in (*_NAMING, *apart):
        bare.ClearField(field)
    if bare.backend_config:
        bare.backend_config = _THREADS.sub(b"", bare.backend_config)
    return _bytes_of(bare)


def _bytes_of(message: hlo_pb2.Instruction | hlo_pb2.Shape) -> bytes:
    return message.SerializeToString(deterministic=True)
