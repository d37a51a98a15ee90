"""What XLA would set aside for temporaries, were a module's instructions in another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..hlo.assignment import Position
from ..hlo.dataflow import Dataflow
from ..hlo.heap import Block, Heap, best_fit
from ..hlo.module import Computation, Module
from ..hlo.place import Group, place, text_order
from ..hlo.ranges import flatten, live_ranges

Sequences = Mapping[int, Sequence[str]]
"""The names of a computation's instructions in order, by computation id."""


def in_order(module: Module, sequences: Sequences) -> Module:
    """The module with some of its computations in another order."""
    computations = tuple(_sorted(c, sequences[c.id]) if c.id in sequences else c for c in module.computations)
    return dataclasses.replace(module, computations=computations)


def _sorted(computation: Computation, sequence: Sequence[str]) -> Computation:
    by_name = {i.name: i for i in computation.instructions}
    return dataclasses.replace(computation, instructions=tuple(by_name[name] for name in sequence))


def temporary_heap(module: Module) -> tuple[Heap, tuple[Block, ...]]:
    """The heap of a module's temporaries, by XLA's rules, and the blocks in it."""
    blocks = temporary_blocks(module)
    return best_fit(blocks), blocks


def temporary_blocks(module: Module) -> tuple[Block, ...]:
    """The temporaries that need memory of their own; those that take another's over share a block with it."""
    flow, schedule = Dataflow(module), flatten(module)
    order = text_order(module)
    groups = place(flow, schedule, live_ranges(flow, schedule))
    block_of: dict[Position, list[Group]] = {}
    blocks: list[list[Group]] = []
    for group in groups:  # lenders first: they are in the order of the schedule
        if group.kind != "temporary" or group.hosted:
            continue
        block = [] if group.taken_from is None else block_of[group.taken_from]
        if not block:
            blocks.append(block)
        block.append(group)
        block_of[group.values[0]] = block
    return tuple(
        Block(max(g.bytes for g in block), tuple(span for g in block for span in g.spans))
        for block in sorted(blocks, key=lambda block: order(block[0].values))
    )
