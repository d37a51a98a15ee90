"""An order eased: as XLA had it wherever that costs no memory.

XLA's own order starts independent branches one beside the other, so that they can run at the same time; one that saves
memory lets each take over what the last one leaves, and so wait for it. That is of use near the peak alone.
"""

from __future__ import annotations

import time

from ..hlo.module import Module
from .from_hlo import OrderingProblems
from .pack import WORTH
from .predict import HeapModel, ModuleOrder

SHORTEST = 4
"""Instructions in a stretch of the order that is not cut up any further."""


def eased(module: Module, order: ModuleOrder, heap_bytes: int, seconds: float) -> tuple[ModuleOrder, int]:
    """An order with stretches of it in the order of XLA's, where its heap hardly grows, and the bytes of that.

    The whole of it is tried first, then each half of what is too much, and so on.

    Args:
      module: in XLA's order.
      heap_bytes: of the order that is given.
      seconds: to try; what was found by then is valid.
    """
    deadline = time.perf_counter() + seconds
    entry = OrderingProblems(module).problem(module.entry, {})
    nodes = entry.order_of(order.sequences[module.entry_id])
    if nodes is None:
        return order, heap_bytes
    model, limit = HeapModel(module), int((1 + WORTH) * heap_bytes)
    best, lowest = order, heap_bytes
    stretches = [(0, len(nodes))]
    while stretches and time.perf_counter() < deadline:
        start, end = stretches.pop(0)
        changed = (*nodes[:start], *sorted(nodes[start:end]), *nodes[end:])  # nodes are numbered in XLA's order
        if changed == nodes:
            continue
        whole = order.with_sequence(module.entry_id, entry.sequence(changed))
        heap = model.heap_within(model.place(whole), limit)
        if heap is not None:
            best, lowest, nodes = whole, heap.bytes, changed
        elif end - start > SHORTEST:
            middle = (start + end) // 2
            stretches += [(start, middle), (middle, end)]
    return best, lowest
