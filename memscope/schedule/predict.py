"""What XLA would set aside for temporaries, were a module's instructions in another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..hlo.dataflow import Dataflow
from ..hlo.gpu_sharing import may_take_over_on_gpu
from ..hlo.heap import ALIGNMENT, GPU_ALIGNMENT, Block, Heap, best_fit, block_of_groups, temporary_blocks
from ..hlo.module import Computation, Module
from ..hlo.place import place, text_order
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


def temporary_heap(module: Module, on_gpu: bool = False) -> tuple[Heap, tuple[Block, ...]]:
    """The heap of a module's temporaries, by the rules of XLA's CPU or GPU compiler, and the blocks in it."""
    flow, schedule = Dataflow(module), flatten(module)
    ranges, order = live_ranges(flow, schedule), text_order(module)
    together = temporary_blocks(place(flow, schedule, ranges, may_take_over_on_gpu if on_gpu else None))
    blocks = tuple(block_of_groups(b) for b in sorted(together, key=lambda block: order(block[0].values)))
    return best_fit(blocks, GPU_ALIGNMENT if on_gpu else ALIGNMENT), blocks
