"""XLA's optimised, scheduled module as small frozen dataclasses."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import os
from collections.abc import Iterator, Mapping

from . import hlo_pb2

Index = tuple[int, ...]  # where in a tuple-shaped value: () is the value itself

_TUPLE = 13
_LIBRARY_FUSIONS = (b'"__ynn_fusion"', b'"__xnn_fusion"', b'"__onednn_fusion"')
# xla.PrimitiveType -> (name, bits); bits are those of one element in a buffer.
_ELEMENTS: dict[int, tuple[str, int]] = {
    1: ("bool", 8), 2: ("int8", 8), 3: ("int16", 16), 4: ("int32", 32), 5: ("int64", 64),
    6: ("uint8", 8), 7: ("uint16", 16), 8: ("uint32", 32), 9: ("uint64", 64),
    10: ("float16", 16), 11: ("float32", 32), 12: ("float64", 64), 15: ("complex64", 64),
    16: ("bfloat16", 16), 18: ("complex128", 128), 19: ("float8_e5m2", 8), 20: ("float8_e4m3fn", 8),
    21: ("int4", 4), 22: ("uint4", 4), 23: ("float8_e4m3b11fnuz", 8), 24: ("float8_e5m2fnuz", 8),
    25: ("float8_e4m3fnuz", 8), 26: ("int2", 2), 27: ("uint2", 2), 28: ("float8_e4m3", 8),
    29: ("float8_e3m4", 8), 30: ("int1", 1), 31: ("uint1", 1), 32: ("float4_e2m1fn", 4), 33: ("float8_e8m0fnu", 8),
}  # fmt: skip
# A result may take the place of an operand that dies only if it is computed element by element from it.
MOVES_ELEMENTS = frozenset(
    {
        "all-gather", "bitcast", "broadcast", "cholesky", "concatenate", "convolution", "custom-call", "dot", "fft",
        "gather", "iota", "pad", "reduce", "reduce-window", "reshape", "reverse", "rng-bit-generator", "slice",
        "dynamic-slice", "select-and-scatter", "transpose", "while", "conditional", "call", "parameter", "constant",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array's dtype and dimensions, or a tuple of shapes (dtype "tuple"); tokens have 0 bytes.

    Attributes:
      layout: the dimensions from the fastest varying to the slowest.
    """

    dtype: str
    dimensions: tuple[int, ...] = ()
    elements: tuple[Shape, ...] = ()
    layout: tuple[int, ...] = ()

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes of the array, or of all the arrays in the tuple together (not its table of pointers)."""
        if self.is_tuple:
            return sum(s.bytes for s in self.elements)
        return (math.prod(self.dimensions) * _BITS.get(self.dtype, 0) + 7) // 8

    @property
    def is_tuple(self) -> bool:
        return self.dtype == "tuple"

    def at(self, index: Index) -> Shape:
        return self if not index else self.elements[index[0]].at(index[1:])

    def leaves(self) -> Iterator[tuple[Index, Shape]]:
        """Every array in the shape, with its index."""
        if not self.is_tuple:
            yield (), self
        for i, element in enumerate(self.elements):
            for index, leaf in element.leaves():
                yield (i, *index), leaf


_BITS = dict(_ELEMENTS.values())


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
    """One HLO instruction.

    Attributes:
      id: unique in the module; the buffer assignment names instructions by it.
      operands: ids of instructions of the same computation.
      called: ids of computations: a fusion's own, a loop's body and condition (in that order), ...
      op_name: JAX's name stack, as in "jit(f)/e17/reduce_sum"; "" where XLA made the instruction itself.
      line: the innermost user frame of the op, as in ("knn.py", 12).
      controls: instructions that must run before, though no data flows.
      is_library_fusion: runs in a library of kernels whose scratch XLA does not count.
      custom_call_target: what a custom call calls.
      in_place: (index in the result, operand number, index in the operand) of each pair that shares a buffer.
    """

    id: int
    name: str
    opcode: str
    shape: Shape
    operands: tuple[int, ...]
    called: tuple[int, ...]
    controls: tuple[int, ...] = ()
    op_name: str = ""
    line: tuple[str, int] | None = None
    parameter_number: int = 0
    tuple_index: int = 0
    fusion_kind: str = ""
    is_library_fusion: bool = False
    custom_call_target: str = ""
    in_place: tuple[tuple[Index, int, Index], ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Computation:
    """Instructions in the order of the schedule; a computation without one keeps its text order.

    Attributes:
      text: the ids of the instructions in the order of the module's text.
    """

    id: int
    name: str
    root: int
    instructions: tuple[Instruction, ...]
    text: tuple[int, ...]

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        return {i.parameter_number: i for i in self.instructions if i.opcode == "parameter"}

    @functools.cached_property
    def elementwise_parameters(self) -> frozenset[int]:
        """Numbers of the parameters of a fusion that no instruction moves the elements of."""
        from_parameters: dict[int, int] = {}  # by instruction, as a bit set
        moved = 0
        for i in self.instructions:  # operands first
            reached = functools.reduce(operator.or_, (from_parameters[o] for o in i.operands), 0)
            if i.opcode == "parameter":
                reached = 1 << i.parameter_number
            elif i.opcode in MOVES_ELEMENTS:
                moved |= reached
            from_parameters[i.id] = reached
        return frozenset(n for n in self.parameters if not moved >> n & 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """A scheduled module; computations stand callees first.

    Attributes:
      donations: (index in the result, parameter number, index in the parameter) that share a buffer.
    """

    name: str
    computations: tuple[Computation, ...]
    entry_id: int
    donations: tuple[tuple[Index, int, Index], ...]

    @functools.cached_property
    def by_id(self) -> dict[int, Computation]:
        return {c.id: c for c in self.computations}

    @functools.cached_property
    def instructions(self) -> dict[int, Instruction]:
        return {i.id: i for c in self.computations for i in c.instructions}

    @property
    def entry(self) -> Computation:
        return self.by_id[self.entry_id]


def parse_module(serialized: bytes) -> Module:
    """Reads a serialized HloModuleProto."""
    proto = hlo_pb2.Module.FromString(serialized)
    lines = _lines(proto.stack_frame_index)
    return Module(
        name=proto.name,
        computations=tuple(_computation(c, proto.schedule.sequences, lines) for c in proto.computations),
        entry_id=proto.entry_computation_id,
        donations=tuple(
            (tuple(e.output_shape_index), e.parameter_number, tuple(e.parameter_shape_index))
            for e in proto.input_output_alias.entries
        ),
    )


def _computation(
    proto: hlo_pb2.Computation,
    sequences: Mapping[int, hlo_pb2.Schedule.Sequence],
    lines: list[tuple[str, int] | None],
) -> Computation:
    instructions = {i.id: _instruction(i, lines) for i in proto.instructions}
    order = list(instructions)
    if proto.id in sequences:
        order = list(sequences[proto.id].instruction_ids) or order
    return Computation(proto.id, proto.name, proto.root_id, tuple(instructions[i] for i in order), tuple(instructions))


def _instruction(proto: hlo_pb2.Instruction, lines: list[tuple[str, int] | None]) -> Instruction:
    frame = proto.metadata.stack_frame_id
    line = lines[frame] if 0 < frame < len(lines) else None
    if line is None and proto.metadata.source_file:
        line = (proto.metadata.source_file, proto.metadata.source_line)
    return Instruction(
        id=proto.id,
        name=proto.name,
        opcode=proto.opcode,
        shape=_shape(proto.shape),
        operands=tuple(proto.operand_ids),
        called=tuple(proto.called_computation_ids),
        controls=tuple(proto.control_predecessor_ids),
        op_name=proto.metadata.op_name,
        line=line,
        parameter_number=proto.parameter_number,
        tuple_index=proto.tuple_index,
        fusion_kind=proto.fusion_kind,
        is_library_fusion=any(name in proto.backend_config for name in _LIBRARY_FUSIONS),
        custom_call_target=proto.custom_call_target,
        in_place=tuple(
            (tuple(a.output_shape_index), a.operand_index, tuple(a.operand_shape_index))
            for a in proto.output_operand_aliasing
        ),
    )


def _shape(proto: hlo_pb2.Shape) -> Shape:
    if proto.element_type == _TUPLE:
        return Shape("tuple", (), tuple(_shape(s) for s in proto.tuple_shapes))
    name, _ = _ELEMENTS.get(proto.element_type, ("token", 0))
    return Shape(name, tuple(proto.dimensions), (), tuple(proto.layout.minor_to_major))


def _lines(index: hlo_pb2.StackFrameIndex) -> list[tuple[str, int] | None]:
    """The innermost line of each stack frame that is not memscope's own; frame ids count from 1."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    lines: list[tuple[str, int] | None] = [None]
    for frame in index.stack_frames:
        location = index.file_locations[frame.file_location_id - 1]
        file = index.file_names[location.file_name_id - 1]
        lines.append(None if file.startswith(here) else (file, location.line))
    return lines
