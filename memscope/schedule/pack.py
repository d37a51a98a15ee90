"""Orders that XLA's heap lays out more tightly, found by moving instructions one by one.

Orders whose live bytes are alike leave gaps of different size between buffers: up to 8% of the heap. The model of the
heap is exact and takes some ten milliseconds, so that a few hundred moves can be tried.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from ..hlo.heap import Block, Heap
from ..hlo.module import Module
from ..hlo.ranges import flatten
from .from_hlo import ComputationOrder
from .predict import in_order, temporary_heap
from .problem import Order

PATIENCE = 400
"""Moves without a gain after which no more are tried."""

HIGHEST = 0.98
"""Buffers that end above this part of the heap are those whose surroundings are changed."""

AROUND = 3
"""Instructions before and after a buffer's life that count as its surroundings."""

FOCUS = 0.8
"""How many of the moves are of instructions there; the rest are of any."""

SLACK = 1.01
"""How far an order's live bytes may rise above those of the order that is to be beaten, or above its heap."""


def packed(
    module: Module,
    computation: ComputationOrder,
    others: Mapping[int, Sequence[str]],
    order: Order,
    bound: int,
    deadline: float,
) -> tuple[Order, int]:
    """An order whose heap is no larger than that of the one given, and the bytes of that heap.

    Args:
      computation: what is ordered, of `module`.
      others: the orders of the module's other computations.
      bound: bytes that no heap can go below: reaching them ends the search.
      deadline: when to stop, by `time.perf_counter`.
    """
    walk = _Walk(module, computation, others, order)
    since = 0
    while since < PATIENCE and walk.heap.bytes > bound and time.perf_counter() < deadline:
        since = 0 if walk.step() else since + 1
    return walk.order, walk.heap.bytes


class _Walk:
    """A random walk over orders that never raises the heap."""

    def __init__(
        self, module: Module, computation: ComputationOrder, others: Mapping[int, Sequence[str]], order: Order
    ) -> None:
        self._module, self._computation, self._others = module, computation, others
        self._generator = random.Random(0)
        self._number = {node.name: n for n, node in enumerate(computation.nodes)}
        self._accept(order, *self._laid_out(order))

    def step(self) -> bool:
        """Tries a move or a few; whether the heap is smaller for it."""
        order = self._moved()
        if order == self.order or self._computation.problem.peak(order) > SLACK * max(self.heap.bytes, self._live):
            return False
        before, (ordered, heap, blocks) = self.heap.bytes, self._laid_out(order)
        if heap.bytes <= before:
            self._accept(order, ordered, heap, blocks)
        return heap.bytes < before

    def _accept(self, order: Order, ordered: Module, heap: Heap, blocks: Sequence[Block]) -> None:
        self.order, self.heap, self._blocks = order, heap, blocks
        self._live = self._computation.problem.peak(order)
        self._line = [self._number.get(i.name) for i in flatten(ordered).instructions]

    def _laid_out(self, order: Order) -> tuple[Module, Heap, Sequence[Block]]:
        sequence = self._computation.sequence(order)
        ordered = in_order(self._module, {**self._others, self._computation.computation.id: sequence})
        return ordered, *temporary_heap(ordered)

    def _moved(self) -> Order:
        order = list(self.order)
        nearby = self._nearby()
        for _ in range(self._generator.choice((1, 1, 2, 3))):
            focused = nearby and self._generator.random() < FOCUS
            self._move(order, self._generator.choice(nearby if focused else order))
        return tuple(order)

    def _nearby(self) -> list[int]:
        """The nodes that run around the life of one of the highest buffers."""
        highest = [
            block
            for block, offset in zip(self._blocks, self.heap.offsets, strict=True)
            if offset + block.bytes >= HIGHEST * self.heap.bytes
        ]
        if not highest:
            return []
        start, end = self._generator.choice(self._generator.choice(highest).spans)
        return [node for node in self._line[max(0, start - AROUND) : end + AROUND + 1] if node is not None]

    def _move(self, order: list[int], node: int) -> None:
        """To another place between what must run before and what must run after it."""
        problem = self._computation.problem
        time = {n: t for t, n in enumerate(order)}
        first = max((time[n] for n in problem.predecessors[node]), default=-1) + 1
        last = min((time[n] for n in problem.successors[node]), default=len(order)) - 1
        order.insert(self._generator.randint(first, last), order.pop(time[node]))
