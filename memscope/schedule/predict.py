"""What XLA would set aside for temporaries, were a module's instructions in another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..hlo.dataflow import Dataflow
from ..hlo.gpu_sharing import may_take_over_on_gpu
from ..hlo.heap import ALIGNMENT, GPU_ALIGNMENT, Block, Heap, best_fit_within, block_of_groups, temporary_blocks
from ..hlo.module import Computation, Module
from ..hlo.place import Rules
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


class HeapModel:
    """The heap of a module's temporaries in any order, by the rules of XLA's CPU or GPU compiler.

    Args:
      module: in any order.
    """

    def __init__(self, module: Module, on_gpu: bool = False) -> None:
        self._rules = Rules(Dataflow(module), may_take_over_on_gpu if on_gpu else None)
        self._alignment = GPU_ALIGNMENT if on_gpu else ALIGNMENT

    def lay_out(self, ordered: Module, limit: int | None = None) -> tuple[Heap, tuple[Block, ...]] | None:
        """The heap of the same module in an order, and the blocks in it; None where it is larger than the limit."""
        schedule = flatten(ordered)
        groups = self._rules.place(schedule, live_ranges(self._rules.flow, schedule))
        together = sorted(temporary_blocks(groups), key=lambda block: self._rules.text_order(block[0]))
        blocks = tuple(map(block_of_groups, together))
        heap = best_fit_within(blocks, limit, self._alignment)
        return None if heap is None else (heap, blocks)


def temporary_heap(module: Module, on_gpu: bool = False) -> tuple[Heap, tuple[Block, ...]]:
    """The heap of a module's temporaries in the order that it has, and the blocks in it."""
    laid_out = HeapModel(module, on_gpu).lay_out(module)
    assert laid_out is not None
    return laid_out
