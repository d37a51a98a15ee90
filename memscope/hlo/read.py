"""Byte counts straight from XLA's serialized protos."""

from __future__ import annotations

from . import hlo_pb2
from .hidden import hidden_scratch
from .module import parse_module


def constant_bytes(assignment: bytes) -> int:
    """Bytes of the constant allocations of a serialized buffer assignment; 0 where it is empty."""
    proto = hlo_pb2.BufferAssignment.FromString(assignment)
    return sum(a.size for a in proto.buffer_allocations if a.is_constant)


def module_constant_bytes(module: bytes) -> int:
    """Bytes of the constants that a serialized module keeps in memory of their own, where no assignment tells."""
    parsed = parse_module(module)
    fused = {c for i in parsed.instructions.values() if i.opcode == "fusion" for c in i.called}
    kept = (i for c in parsed.computations if c.id not in fused for i in c.instructions)
    return sum(i.shape.bytes for i in kept if i.opcode == "constant")


def hidden_bytes(module: bytes) -> int:
    """An upper bound, in bytes, on the scratch of library fusions that XLA's CPU account leaves out.

    Args:
      module: a serialized, optimised HloModuleProto.
    """
    return hidden_scratch(parse_module(module))
