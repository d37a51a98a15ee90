"""How much a module's instructions read and write: what an order that keeps XLA from fusing costs."""

from __future__ import annotations

from .liveness import SILENT
from .module import Module


def moved_bytes(module: Module) -> int:
    """Bytes of the operands and results of the entry computation's instructions; a loop counts as one of them."""
    size = {i.id: i.shape.bytes for i in module.entry.instructions}
    working = (i for i in module.entry.instructions if i.opcode not in SILENT)
    return sum(size[i.id] + sum(size[o] for o in i.operands) for i in working)
