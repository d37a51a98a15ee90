"""Orders that need less of XLA's heap, found by moving instructions.

Orders whose live bytes are alike leave gaps of different size between buffers, up to 8% of the heap, and differ in what
fits into results' memory. The model of both is exact and takes a few milliseconds: some hundred moves can be tried.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Collection, Mapping, Sequence

from ..hlo.heap import Block, Heap, alive_from
from .from_hlo import ComputationOrder
from .predict import HeapModel, ModuleOrder, Placed
from .problem import Order

PATIENCE, WALKS = 300, 24
"""Moves without a gain after which a walk ends and another one begins somewhere else; how many there are at most."""

WORTH = 0.001
"""By what share an order has to be better than another one, or may be above the bound, to be worth a look."""

CLOSE = 0.01
"""How far from the bound an order may be for nothing else to be begun that may find a better one."""

STEEP = 50.0
"""How little steps below the peak count as crowded: one with 2% less held counts a third of one at the peak."""

HIGHEST = 0.98
"""What is near the top of the heap, or near the peak: above this part of it."""

AROUND = 3
"""Instructions before and after the first and the last step of a buffer that count as its surroundings."""

ALONE, REACH = 0.6, 40
"""How many of the moves are of one instruction between its neighbours in the data flow; how many others are passed by
the rest, which take along what depends on it."""

PEAK = 0.6
"""How often it is the buffers alive at the peak that are looked at; else those at the top of the heap."""

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
        best = walk if best is None or walk.is_worth_more_than(best) else best
        since = 0
        while since < PATIENCE and best.lowest > (1 + WORTH) * bound and time.perf_counter() < deadline:
            since = 0 if walk.step(only_less_crowded=seed % 2 == 1) else since + 1
            best = walk if walk.is_worth_more_than(best) else best
        if best.lowest <= (1 + CLOSE) * bound or time.perf_counter() > deadline:
            break
    assert best is not None
    return best.best, best.lowest


class _Walk:
    """A random walk over orders whose heaps are no higher than the lowest so far.

    Many orders have the same peak. Those that come near it at fewer steps are closer to a lower one: a sum over all
    steps that grows steeply with what is held, the crowding, leads there.

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
        placed = model.place(whole)
        heap = model.heap(placed)
        self.best, self.lowest = whole, heap.bytes
        self._accept(order, whole, placed, alive_from(placed.blocks), heap, computation.problem.peak(order))

    def is_worth_more_than(self, other: _Walk) -> bool:
        """Whether its order is to be preferred: a chain may cost some time, so it has to save something."""
        worth = 1 + WORTH * (self.best.chained - other.best.chained)
        return worth * self.lowest < other.lowest

    def step(self, only_less_crowded: bool) -> bool:
        """Tries a move or a few; whether there is a lower heap for it.

        Args:
          only_less_crowded: moves that crowd the order are never made; else they are where there is room for gaps, as
            then the heap tells more.
        """
        order = self._moved()
        if order == self._order:
            return False
        live = self._computation.problem.peak(order)
        if live > SLACK * max(self.lowest, self._live):
            return False
        whole = self._whole.with_sequence(self._computation.computation.id, self._computation.sequence(order))
        placed = self._model.place(whole)
        alive = alive_from(placed.blocks)
        most = max(alive.values(), default=0)
        may_be_lower = most < self.lowest  # else there is no need to lay it out
        if most > self.lowest or ((only_less_crowded or not may_be_lower) and self._crowds(alive)):
            return False
        heap = self._model.heap_within(placed, self.lowest) if may_be_lower else None
        if may_be_lower and heap is None:
            return False
        self._accept(order, whole, placed, alive, heap, live)
        if heap is None or heap.bytes >= self.lowest:
            return False
        self.best, self.lowest = whole, heap.bytes
        return True

    def _accept(
        self,
        order: Order,
        whole: ModuleOrder,
        placed: Placed,
        alive: Mapping[int, int],
        heap: Heap | None,
        live: int,
    ) -> None:
        self._order, self._whole, self._blocks = order, whole, placed.blocks
        self._alive, self._heap, self._live = alive, heap, live
        self._line = [self._number.get(name) for name in placed.line]

    def _crowds(self, alive: Mapping[int, int]) -> bool:
        """Whether that is more crowded than the order that the walk is at."""
        end = len(self._line)
        return _crowding(alive, end, self.lowest) > _crowding(self._alive, end, self.lowest)

    def _moved(self) -> Order:
        order = list(self._order)
        nearby = self._nearby()
        for _ in range(self._generator.choice((1, 1, 2, 3))):
            focused = nearby and self._generator.random() < FOCUS
            node = self._generator.choice(nearby if focused else order)
            if self._generator.random() < ALONE:
                self._move(order, node)
            else:
                self._move_with_others(order, node)
        return tuple(order)

    def _nearby(self) -> list[int]:
        """The nodes around the first and the last step of a buffer that stands in the way, mostly of a large one."""
        at_the_peak = self._heap is None or self._generator.random() < PEAK
        blocks = self._at_the_peak() if at_the_peak else self._highest()
        if not blocks:
            return []
        (block,) = self._generator.choices(blocks, weights=[block.bytes for block in blocks])
        span = self._generator.choice(block.spans)
        ends = {step for end in span for step in range(max(0, end - AROUND), end + AROUND + 1)}
        nodes = (self._line[step] for step in sorted(ends) if step < len(self._line))
        return [node for node in nodes if node is not None]

    def _at_the_peak(self) -> list[Block]:
        """The buffers alive at a step with about the most of them."""
        most = max(self._alive.values(), default=0)
        steps = [step for step, held in self._alive.items() if held >= HIGHEST * most]
        step = self._generator.choice(steps or [0])
        return [block for block in self._blocks if any(start <= step <= end for start, end in block.spans)]

    def _highest(self) -> list[Block]:
        """The buffers at the top of the heap."""
        assert self._heap is not None
        heap = self._heap
        tops = (offset + block.bytes for block, offset in zip(self._blocks, heap.offsets, strict=True))
        return [block for block, top in zip(self._blocks, tops, strict=True) if top >= HIGHEST * heap.bytes]

    def _move(self, order: list[int], node: int) -> None:
        """To another place between what must run before and what must run after it."""
        problem = self._computation.problem
        time = {n: t for t, n in enumerate(order)}
        first = max((time[n] for n in problem.predecessors[node]), default=-1) + 1
        last = min((time[n] for n in problem.successors[node]), default=len(order)) - 1
        anywhere = self._generator.randint(first, last)
        order.insert(self._generator.choice((first, last, anywhere, anywhere)), order.pop(time[node]))

    def _move_with_others(self, order: list[int], node: int) -> None:
        """Past some of the others, and whatever can't be passed along with it."""
        here = order.index(node)
        far = self._generator.randint(1, REACH)
        if self._generator.random() < 0.5:
            part = order[here : here + far + 1]
            order[here : here + far + 1] = _apart(part, self._computation.problem.predecessors)
        else:
            part = order[max(0, here - far) : here + 1]
            order[max(0, here - far) : here + 1] = _apart(part[::-1], self._computation.problem.successors)[::-1]


def _crowding(alive: Mapping[int, int], end: int, lowest: int) -> float:
    """How much is held at all steps together; near the lowest heap it counts, else hardly."""
    lasts = (after - step for step, after in itertools.pairwise([*alive, end]))
    return sum(last * math.exp(STEEP * (held / lowest - 1)) for last, held in zip(lasts, alive.values(), strict=True))


def _apart(part: Sequence[int], before: Sequence[Collection[int]]) -> list[int]:
    """The first node of these, and what must come after it, behind all the others."""
    moving: dict[int, None] = {part[0]: None}
    staying: list[int] = []
    for node in part[1:]:
        if moving.keys() & before[node]:
            moving[node] = None
        else:
            staying.append(node)
    return [*staying, *moving]
