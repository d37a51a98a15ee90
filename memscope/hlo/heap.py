"""The heap that XLA lays a program's temporaries out in, as it would lay them out.

XLA replays the schedule as allocations and frees, sorts the buffers once by size and once by lifetime, gives each
in turn the smallest gap that it fits in, and keeps the lower of the two heaps (`GlobalDecreasingSizeBestFitHeap` and
`ChooseBestHeapAlgorithm` of its `heap_simulator.cc`).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from .assignment import Position
from .place import Group
from .ranges import Span

ALIGNMENT, GPU_ALIGNMENT = 64, 256
"""Bytes that XLA's compilers align buffers to."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Buffers that take turns at one address.

    Attributes:
      bytes: of the largest.
      spans: when each is alive: first and last step, inclusive; the first one is the block's own.
      lent: each but the last is written over by the next one, in the step that reads it for the last time.
    """

    bytes: int
    spans: tuple[Span, ...]
    lent: bool = False


@dataclasses.dataclass(frozen=True)
class Heap:
    """Where each block lies.

    Attributes:
      bytes: the heap's size.
      offsets: of the blocks, in bytes.
    """

    bytes: int
    offsets: tuple[int, ...]


def temporary_blocks(groups: Iterable[Group]) -> list[tuple[Group, ...]]:
    """The temporaries that need memory of their own, those together that take each other's over.

    Args:
      groups: in the order of the schedule, so that lenders come first.
    """
    block_of: dict[Position, list[Group]] = {}
    blocks: list[list[Group]] = []
    for group in groups:
        if group.kind != "temporary" or group.hosted:
            continue
        block = [] if group.taken_from is None else block_of[group.taken_from]
        if not block:
            blocks.append(block)
        block.append(group)
        block_of[group.values[0]] = block
    return [tuple(block) for block in blocks]


def block_of_groups(groups: Sequence[Group]) -> Block:
    """The block that some groups take turns in."""
    return Block(max(g.bytes for g in groups), tuple(span for g in groups for span in g.spans), len(groups) > 1)


def best_fit(blocks: Sequence[Block], alignment: int = ALIGNMENT) -> Heap:
    """The heap that XLA would make of these blocks."""
    heap = best_fit_within(blocks, None, alignment)
    assert heap is not None
    return heap


def best_fit_within(blocks: Sequence[Block], limit: int | None, alignment: int = ALIGNMENT) -> Heap | None:
    """The same, or None where it would be larger than the limit: that often shows before all of it is laid out."""
    clocked = _clocked(blocks)
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-clocked[i].bytes, clocked[i].spans[0][0] - clocked[i].spans[0][1], i),
        lambda i: (clocked[i].spans[0][0] - max(end for _, end in clocked[i].spans), -clocked[i].bytes, i),
    )
    heaps = [_placed(clocked, sorted(range(len(clocked)), key=key), limit, alignment) for key in orders]
    return min((heap for heap in heaps if heap is not None), key=lambda heap: heap.bytes, default=None)


def alive_from(blocks: Iterable[Block]) -> dict[int, int]:
    """The bytes of the blocks alive, by the steps at which they change, in order; no heap is smaller than the most."""
    change: collections.Counter[int] = collections.Counter()
    for block in blocks:
        until = -1
        for start, end in sorted(block.spans):
            if end > until:
                change[max(start, until + 1)] += block.bytes
                change[end + 1] -= block.bytes
                until = end
    steps = sorted(change)
    return dict(zip(steps, itertools.accumulate(change[step] for step in steps), strict=True))


def _clocked(blocks: Sequence[Block]) -> list[Block]:
    """The same with XLA's clock, which ticks with each allocation and each free.

    In a step allocations come first; what is written over is freed right before what takes its place. Among events of
    one kind those come first whose buffers started first, and then ended first.
    """
    events = sorted(event for i, block in enumerate(blocks) for event in _events(i, block))
    times = {which: tick for tick, (*_, which) in enumerate(events)}
    return [
        dataclasses.replace(block, spans=tuple((times[i, k, 0], times[i, k, 1]) for k in range(len(block.spans))))
        for i, block in enumerate(blocks)
    ]


def _events(number: int, block: Block) -> Iterator[tuple[int, int, tuple[int, ...], int, tuple[int, int, int]]]:
    """(step, allocation or free, its turn in that, and again, (block, span, start or end)) for each start and end."""
    taken_over = [start for start, _ in block.spans[1:]] if block.lent else []
    ends = [*taken_over, *(end for _, end in block.spans[len(taken_over) :])]
    turns = [(start, end, number, k) for k, ((start, _), end) in enumerate(zip(block.spans, ends, strict=True))]
    for k, turn in enumerate(turns):
        yield turn[0], 0, turn, 1, (number, k, 0)
        if k < len(taken_over):
            yield ends[k], 0, turns[k + 1], 0, (number, k, 1)
        else:
            yield ends[k], 1, turn, 0, (number, k, 1)


def _placed(blocks: Sequence[Block], order: Iterable[int], limit: int | None, alignment: int) -> Heap | None:
    count = sum(len(block.spans) for block in blocks)
    starts, ends, lows, highs = (np.zeros(count, np.int64) for _ in range(4))
    placed, top = 0, 0
    offsets = [0] * len(blocks)
    for i in order:
        block = blocks[i]
        beside = np.zeros(placed, bool)
        for start, end in block.spans:
            beside |= (starts[:placed] <= end) & (ends[:placed] >= start)
        offset = _smallest_gap(block.bytes, lows[:placed][beside], highs[:placed][beside], alignment)
        for start, end in block.spans:
            starts[placed], ends[placed], lows[placed], highs[placed] = start, end, offset, offset + block.bytes
            placed += 1
        offsets[i], top = offset, max(top, offset + block.bytes)
        if limit is not None and top > limit:
            return None
    return Heap(top, tuple(offsets))


def _smallest_gap(size: int, lows: np.ndarray, highs: np.ndarray, alignment: int) -> int:
    """The offset of the smallest gap between these ranges that holds `size` bytes; above them where none does."""
    by_low = np.argsort(lows, kind="stable")
    ends = -(-highs[by_low] // alignment) * alignment
    free_from = np.concatenate([[0], np.maximum.accumulate(ends)])
    room = lows[by_low] - free_from[:-1]
    fits = room >= size
    return int(free_from[np.where(fits, room, room.max(initial=0) + 1).argmin()] if fits.any() else free_from[-1])
