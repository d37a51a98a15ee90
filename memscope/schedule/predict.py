"""What XLA would set aside for temporaries, were a module's instructions in another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from ..hlo.dataflow import Dataflow
from ..hlo.gpu_sharing import may_take_over_on_gpu
from ..hlo.heap import ALIGNMENT, GPU_ALIGNMENT, Block, Heap, best_fit_within, block_of_groups, temporary_blocks
from ..hlo.module import Computation, Module
from ..hlo.place import Rules, text_order
from ..hlo.ranges import LiveRanges, flatten


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleOrder:
    """An order for the instructions of a module.

    Attributes:
      sequences: the names of a computation's instructions in order, by computation id; the others keep theirs.
      chained: each instruction is to wait for the one before it as well. When it runs is the same, but XLA writes the
        module's text in that order then, and of values of one size those that stand first get their memory first.
    """

    sequences: Mapping[int, Sequence[str]]
    chained: bool = False

    def with_sequence(self, computation: int, sequence: Sequence[str]) -> ModuleOrder:
        """The same with one of its computations in another order."""
        return dataclasses.replace(self, sequences={**self.sequences, computation: sequence})

    @property
    def names(self) -> Iterator[str]:
        """The instructions of all its computations, one computation after another."""
        return (name for sequence in self.sequences.values() for name in sequence)


def in_order(module: Module, order: ModuleOrder) -> Module:
    """The module with some of its computations in another order."""
    computations = (
        _sorted(c, order.sequences[c.id], order.chained) if c.id in order.sequences else c for c in module.computations
    )
    return dataclasses.replace(module, computations=tuple(computations))


def _sorted(computation: Computation, sequence: Sequence[str], chained: bool) -> Computation:
    by_name = {i.name: i for i in computation.instructions}
    instructions = tuple(by_name[name] for name in sequence)
    text = tuple(i.id for i in instructions) if chained else computation.text
    return dataclasses.replace(computation, instructions=instructions, text=text)


@dataclasses.dataclass(frozen=True, eq=False)
class LaidOut:
    """A module's temporaries in the heap that an order makes.

    Attributes:
      blocks: in the order of the module's text; `heap.offsets` says where each lies.
      line: the names of all instructions as they run.
    """

    heap: Heap
    blocks: tuple[Block, ...]
    line: tuple[str, ...]


class HeapModel:
    """The heap of a module's temporaries in any order, by the rules of XLA's CPU or GPU compiler.

    Args:
      module: in any order.
    """

    def __init__(self, module: Module, on_gpu: bool = False) -> None:
        self._module = module
        flow = Dataflow(module)
        self._rules = Rules(flow, may_take_over_on_gpu if on_gpu else None)
        self._ranges = LiveRanges(flow, flatten(module))
        self._alignment = GPU_ALIGNMENT if on_gpu else ALIGNMENT

    def lay_out(self, order: ModuleOrder) -> LaidOut:
        """The heap of the module in an order."""
        laid_out = self.lay_out_within(order, None)
        assert laid_out is not None
        return laid_out

    def lay_out_within(self, order: ModuleOrder, limit: int | None) -> LaidOut | None:
        """The same, or None where the heap is larger than the limit: that often shows before all of it is laid out."""
        ordered = in_order(self._module, order)
        schedule = flatten(ordered)
        text = text_order(ordered, schedule)
        groups = self._rules.place(schedule, self._ranges.of(schedule), text)
        together = sorted(temporary_blocks(groups), key=lambda block: text(block[0].values))
        blocks = tuple(map(block_of_groups, together))
        heap = best_fit_within(blocks, limit, self._alignment)
        return None if heap is None else LaidOut(heap, blocks, tuple(i.name for i in schedule.instructions))


def temporary_heap(module: Module, on_gpu: bool = False) -> tuple[Heap, tuple[Block, ...]]:
    """The heap of a module's temporaries in the order that it has, and the blocks in it."""
    laid_out = HeapModel(module, on_gpu).lay_out(ModuleOrder({}))
    return laid_out.heap, laid_out.blocks
