"""An order eased: as XLA had it wherever that costs no memory.

XLA's own order starts independent branches one beside the other, so that they can run at the same time; one that saves
memory lets each take over what the last one leaves, and so wait for it. That is of use near the peak alone.
"""

from __future__ import annotations

import time

from .from_hlo import ComputationOrder
from .predict import HeapModel, ModuleOrder

SHORTEST = 4
"""Instructions in a stretch of the order that is not cut up any further."""


def eased(
    model: HeapModel, computation: ComputationOrder, order: ModuleOrder, limit: int, deadline: float
) -> tuple[ModuleOrder, int]:
    """An order whose heap is within a limit, stretches of it in the order of XLA's, and the bytes of its heap.

    The whole of it is tried first, then each half of what is too much, and so on.

    Args:
      order: its heap is within the limit.
      deadline: when to stop, by `time.perf_counter`.
    """
    nodes = computation.order_of(order.sequences[computation.computation.id])
    assert nodes is not None
    best, lowest = order, model.heap_bytes(order)
    stretches = [(0, len(nodes))]
    while stretches and time.perf_counter() < deadline:
        start, end = stretches.pop(0)
        changed = (*nodes[:start], *sorted(nodes[start:end]), *nodes[end:])  # nodes are numbered in XLA's order
        if changed == nodes:
            continue
        whole = order.with_sequence(computation.computation.id, computation.sequence(changed))
        heap = model.heap_within(model.place(whole), limit)
        if heap is not None:
            best, lowest, nodes = whole, heap.bytes, changed
        elif end - start > SHORTEST:
            middle = (start + end) // 2
            stretches += [(start, middle), (middle, end)]
    return best, lowest
