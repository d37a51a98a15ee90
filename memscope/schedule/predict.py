"""What XLA would set aside for temporaries, were a module's instructions in another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from ..hlo.dataflow import Dataflow
from ..hlo.gpu_sharing import may_take_over_on_gpu
from ..hlo.heap import (
    ALIGNMENT,
    GPU_ALIGNMENT,
    Block,
    Heap,
    best_fit,
    best_fit_within,
    block_of_groups,
    temporary_blocks,
)
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
      remade: the instructions that run once for each reader, by name; the order is one of the module after that.
    """

    sequences: Mapping[int, Sequence[str]]
    chained: bool = False
    remade: frozenset[str] = frozenset()

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
class Placed:
    """A module's temporaries in some order.

    Attributes:
      blocks: those that take turns in one place, in the order of the module's text.
      line: the names of all instructions as they run.
    """

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

    def place(self, order: ModuleOrder) -> Placed:
        """What is to be laid out in the heap where the module is in that order."""
        ordered = in_order(self._module, order)
        schedule = flatten(ordered)
        text = text_order(ordered, schedule)
        groups = self._rules.place(schedule, self._ranges.of(schedule), text)
        together = sorted(temporary_blocks(groups), key=lambda block: text(block[0].values))
        return Placed(tuple(map(block_of_groups, together)), tuple(i.name for i in schedule.instructions))

    def heap(self, placed: Placed) -> Heap:
        """The heap that XLA makes of it."""
        return best_fit(placed.blocks, self._alignment)

    def heap_within(self, placed: Placed, limit: int) -> Heap | None:
        """The same, or None where it is larger than the limit: that often shows before all of it is laid out."""
        return best_fit_within(placed.blocks, limit, self._alignment)

    def heap_bytes(self, order: ModuleOrder) -> int:
        """The size of the heap of the module in that order."""
        return self.heap(self.place(order)).bytes


def temporary_heap(module: Module, on_gpu: bool = False) -> tuple[Heap, tuple[Block, ...]]:
    """The heap of a module's temporaries in the order that it has, and the blocks in it."""
    model = HeapModel(module, on_gpu)
    placed = model.place(ModuleOrder({}))
    return model.heap(placed), placed.blocks
