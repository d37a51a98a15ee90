"""XLA's buffer assignment as small frozen dataclasses: what each buffer's size and place is."""

from __future__ import annotations

import dataclasses

from . import hlo_pb2
from .module import Index

Position = tuple[int, Index]  # instruction id, and where in its tuple-shaped result


@dataclasses.dataclass(frozen=True)
class Slot:
    """A value's place in an allocation; offset and size in bytes."""

    value: int
    position: Position
    offset: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Allocation:
    """One piece of memory that XLA asks for, and the values that take turns in it.

    Attributes:
      parameter: the number of the argument that the caller hands over in it, or None.
      holds_result: part of the result is there when the call returns.
    """

    index: int
    bytes: int
    parameter: int | None
    holds_result: bool
    is_constant: bool
    slots: tuple[Slot, ...]

    @property
    def is_temporary(self) -> bool:
        return self.parameter is None and not self.holds_result and not self.is_constant


@dataclasses.dataclass(frozen=True)
class Assignment:
    """All allocations but those of code that runs element by element (they are on the stack).

    Attributes:
      shared: for each value that others share memory with by construction (a loop's state, an update in
        place), the positions where it or they stand.
    """

    allocations: tuple[Allocation, ...]
    shared: tuple[tuple[int, Position], ...]


def parse_assignment(serialized: bytes) -> Assignment | None:
    """Reads a serialized BufferAssignmentProto; None where it is empty."""
    proto = hlo_pb2.BufferAssignment.FromString(serialized)
    if not proto.buffer_allocations:
        return None
    position = {b.id: _position(b.defined_at) for b in proto.logical_buffers}
    return Assignment(
        allocations=tuple(_allocation(a, position) for a in proto.buffer_allocations if not a.is_thread_local),
        shared=tuple((a.source_buffer_id, _position(a.location)) for a in proto.buffer_aliases),
    )


def _allocation(proto: hlo_pb2.BufferAllocation, position: dict[int, Position]) -> Allocation:
    return Allocation(
        index=proto.index,
        bytes=proto.size,
        parameter=proto.parameter_number if proto.is_entry_computation_parameter else None,
        holds_result=proto.maybe_live_out,
        is_constant=proto.is_constant,
        slots=tuple(Slot(a.logical_buffer_id, position[a.logical_buffer_id], a.offset, a.size) for a in proto.assigned),
    )


def _position(proto: hlo_pb2.LogicalBuffer.Location) -> Position:
    return proto.instruction_id, tuple(proto.shape_index)
