"""What the instructions of a module compute: two modules with the same of it round alike, to the last bit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from . import hlo_pb2

_MOVES = frozenset(
    {
        "bitcast", "broadcast", "concatenate", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "pad",
        "reshape", "reverse", "slice", "transpose",
    }
)  # fmt: skip
"""Their results are elements of their operands, whatever the layout."""

_ORDERED = frozenset(
    {
        "call", "cholesky", "conditional", "convolution", "custom-call", "dot", "fft", "map", "reduce", "reduce-window",
        "rng", "rng-bit-generator", "scatter", "select-and-scatter", "sort", "triangular-solve", "while",
    }
)  # fmt: skip
"""They may round otherwise where their operands are laid out otherwise."""

_SILENT = frozenset({"constant", "get-tuple-element", "parameter", "tuple"})

_THREADS = re.compile(rb'"outer_dimension_partitions":\[[^\]]*\],?')
"""How many threads an instruction is cut up for: each element is computed as before."""

_NAMING = ("id", "name", "metadata", "operand_ids", "control_predecessor_ids", "called_computation_ids")
_LAID_OUT = ("shape", "backend_config", "fusion_kind")

Operation = int
"""A hash of what is computed from what."""


def arithmetic(module: bytes) -> frozenset[Operation]:
    """What the instructions of a serialized module's entry computation compute, each on its own.

    Element by element, that is an expression of the elements read: where these lie does not count. Of sums, dots and
    loops the shapes and layouts are part of it.
    """
    proto = hlo_pb2.Module.FromString(module)
    reader = _Reader({c.id: c for c in proto.computations})
    return frozenset(reader.operations(proto.entry_computation_id))


class _Reader:
    def __init__(self, computations: dict[int, hlo_pb2.Computation]) -> None:
        self._computations = computations
        self._exact: dict[int, Operation] = {}

    def operations(self, computation: int) -> Iterator[Operation]:
        instructions = {i.id: i for i in self._computations[computation].instructions}
        for instruction in instructions.values():
            if instruction.opcode in _SILENT or instruction.opcode in _MOVES:
                continue
            if self._is_ordered(instruction):
                shapes = tuple(_bytes_of(instructions[o].shape) for o in instruction.operand_ids)
                yield hash((self._exactly(instruction), shapes))
            elif instruction.opcode == "fusion":
                yield from self._expressions(instruction.called_computation_ids[0])
            else:
                read = tuple(_element(instructions[o]) for o in instruction.operand_ids)
                yield hash((_fields(instruction, *_LAID_OUT), _element(instruction), read))

    def _is_ordered(self, instruction: hlo_pb2.Instruction) -> bool:
        called = (self._computations[c].instructions for c in instruction.called_computation_ids)
        inner = (i for instructions in called for i in instructions)
        return instruction.opcode in _ORDERED or any(self._is_ordered(i) for i in inner)

    def _expressions(self, computation: int) -> Iterator[Operation]:
        """What the results of a fusion are, element by element; nothing for those that are only moved."""
        found: dict[int, Operation] = {}
        moved: set[int] = set()
        instructions = {i.id: i for i in self._computations[computation].instructions}  # operands first
        for i in instructions.values():
            read = tuple(found[o] for o in i.operand_ids)
            if i.opcode == "parameter" or (i.opcode in _MOVES and moved.issuperset(i.operand_ids)):
                moved.add(i.id)
            if i.opcode == "parameter":
                found[i.id] = _element(i)
            elif i.opcode in _MOVES and len(set(read)) == 1:
                found[i.id] = read[0]
            elif i.opcode == "constant":
                found[i.id] = hash(_fields(i))
            else:
                found[i.id] = hash((_fields(i, *_LAID_OUT) if i.opcode not in _MOVES else i.opcode, _element(i), read))
        root = instructions[self._computations[computation].root_id]
        for result in root.operand_ids if root.opcode == "tuple" else (root.id,):
            if result not in moved:
                yield found[result]

    def _exactly(self, instruction: hlo_pb2.Instruction) -> Operation:
        return hash((_fields(instruction), tuple(map(self._computed, instruction.called_computation_ids))))

    def _computed(self, computation: int) -> Operation:
        if computation not in self._exact:
            found: dict[int, Operation] = {}
            for i in self._computations[computation].instructions:  # operands first
                found[i.id] = hash((self._exactly(i), tuple(found[o] for o in i.operand_ids)))
            self._exact[computation] = found[self._computations[computation].root_id]
        return self._exact[computation]


def _element(instruction: hlo_pb2.Instruction) -> int:
    return int(instruction.shape.element_type)


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
