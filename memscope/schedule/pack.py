"""Orders that XLA's heap lays out more tightly, found by moving instructions one by one.

Orders whose live bytes are alike leave gaps of different size between buffers: up to 8% of the heap. The model of the
heap is exact and takes some milliseconds, so that some hundred moves can be tried.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

from .from_hlo import ComputationOrder
from .predict import HeapModel, LaidOut, ModuleOrder
from .problem import Order

PATIENCE, WALKS = 300, 24
"""Moves without a gain after which a walk ends and another one begins somewhere else; how many there are at most."""

WORTH, CLOSE = 0.001, 0.01
"""How far from the bound a heap may be for a walk to end, and for no other one to begin."""

STUCK, DRIFT = 100, 0.002
"""After so many moves in vain the heap may be by this share above the lowest: many a better one lies behind worse.

The threshold of Dueck's record-to-record travel (1993); with more of it the walk lost its way.
"""

HIGHEST = 0.98
"""Buffers that end above this part of the heap are those whose surroundings are changed."""

AROUND = 3
"""Instructions before and after a buffer's life that count as its surroundings."""

FOCUS = 0.8
"""How many of the moves are of instructions there; the rest are of any."""

SLACK = 1.01
"""How far an order's live bytes may rise above those of the order that is to be beaten, or above its heap."""


def packed(
    model: HeapModel,
    computation: ComputationOrder,
    starts: Sequence[tuple[Order, ModuleOrder]],
    bound: int,
    deadline: float,
) -> tuple[ModuleOrder, int]:
    """An order whose heap is no larger than that of any of those given, and the bytes of that heap.

    Args:
      model: of the module.
      computation: what is ordered.
      starts: where to begin, in turn, the best first: an order of the computation, and that of the whole module which
        has it; a walk from there is chained if that is.
      bound: bytes that no heap can go below: being near them ends the search.
      deadline: when to stop, by `time.perf_counter`.
    """
    best: _Walk | None = None
    for seed, (order, whole) in enumerate(itertools.islice(itertools.cycle(starts), WALKS)):
        walk = _Walk(model, computation, order, whole, random.Random(seed))
        best = walk if best is None or walk.lowest < best.lowest else best
        since = 0
        while since < PATIENCE and best.lowest > (1 + WORTH) * bound and time.perf_counter() < deadline:
            since = 0 if walk.step(DRIFT if since >= STUCK else 0.0) else since + 1
            best = walk if walk.lowest < best.lowest else best
        if best.lowest <= (1 + CLOSE) * bound or time.perf_counter() > deadline:
            break
    assert best is not None
    return best.best, best.lowest


class _Walk:
    """A random walk over orders that keeps near the lowest heap so far.

    Attributes:
      best, lowest: the module's order whose heap is lowest, and the bytes of that.
    """

    def __init__(
        self,
        model: HeapModel,
        computation: ComputationOrder,
        order: Order,
        whole: ModuleOrder,
        generator: random.Random,
    ) -> None:
        self._model, self._computation, self._generator = model, computation, generator
        self._number = {node.name: n for n, node in enumerate(computation.nodes)}
        laid_out = model.lay_out(whole)
        self.best, self.lowest = whole, laid_out.heap.bytes
        self._accept(order, whole, laid_out)

    def step(self, drift: float) -> bool:
        """Tries a move or a few; whether there is a lower heap for it.

        Args:
          drift: by what share of the lowest heap an order's may be above that.
        """
        order, most = self._moved(), int((1 + drift) * self.lowest)
        if order == self._order or self._computation.problem.peak(order) > SLACK * max(most, self._live):
            return False
        whole = self._whole.with_sequence(self._computation.computation.id, self._computation.sequence(order))
        laid_out = self._model.lay_out_within(whole, most)
        if laid_out is None:
            return False
        self._accept(order, whole, laid_out)
        if laid_out.heap.bytes >= self.lowest:
            return False
        self.best, self.lowest = whole, laid_out.heap.bytes
        return True

    def _accept(self, order: Order, whole: ModuleOrder, laid_out: LaidOut) -> None:
        self._order, self._whole, self._laid_out = order, whole, laid_out
        self._live = self._computation.problem.peak(order)
        self._line = [self._number.get(name) for name in laid_out.line]

    def _moved(self) -> Order:
        order = list(self._order)
        nearby = self._nearby()
        for _ in range(self._generator.choice((1, 1, 2, 3))):
            focused = nearby and self._generator.random() < FOCUS
            self._move(order, self._generator.choice(nearby if focused else order))
        return tuple(order)

    def _nearby(self) -> list[int]:
        """The nodes that run around the life of one of the highest buffers, mostly of a large one."""
        heap, blocks = self._laid_out.heap, self._laid_out.blocks
        highest = [
            block
            for block, offset in zip(blocks, heap.offsets, strict=True)
            if offset + block.bytes >= HIGHEST * heap.bytes
        ]
        if not highest:
            return []
        (block,) = self._generator.choices(highest, weights=[block.bytes for block in highest])
        start, end = self._generator.choice(block.spans)
        return [node for node in self._line[max(0, start - AROUND) : end + AROUND + 1] if node is not None]

    def _move(self, order: list[int], node: int) -> None:
        """To another place between what must run before and what must run after it."""
        problem = self._computation.problem
        time = {n: t for t, n in enumerate(order)}
        first = max((time[n] for n in problem.predecessors[node]), default=-1) + 1
        last = min((time[n] for n in problem.successors[node]), default=len(order)) - 1
        anywhere = self._generator.randint(first, last)
        order.insert(self._generator.choice((first, last, anywhere, anywhere)), order.pop(time[node]))
