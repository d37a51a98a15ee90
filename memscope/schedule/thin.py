"""No more arrays made again than what an order has need of: each takes time, if little."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from ..hlo.heap import alive_from
from ..hlo.module import Module
from .from_hlo import OrderingProblems
from .predict import HeapModel, ModuleOrder
from .remade import readers_of

THRIFT = 0.003
"""By what share more an order may need where fewer instructions run."""

Remake = Callable[[frozenset[str]], Module]
"""The module in which some instructions run once for each reader."""


def thinned(remake: Remake, order: ModuleOrder, heap_bytes: int) -> tuple[ModuleOrder, int]:
    """An order without those arrays made again that would fit if they were kept, and the bytes of its heap.

    Args:
      heap_bytes: of the order that is given; it comes back where the other's heap is larger.
    """
    plain = remake(frozenset())
    limit = int((1 + THRIFT) * heap_bytes)
    names = _needed(remake(order.remade), readers_of(plain, order.remade), order, limit)
    if names == order.remade:
        return order, heap_bytes
    module = remake(names)
    entry = OrderingProblems(module).problem(module.entry, {})
    nodes = entry.order_of(_line(order.sequences[module.entry_id], order.remade - names))
    if nodes is None or not entry.problem.is_order(nodes):
        return order, heap_bytes
    fewer = dataclasses.replace(order.with_sequence(module.entry_id, entry.sequence(nodes)), remade=names)
    found = HeapModel(module).heap_bytes(fewer)
    return (fewer, found) if found <= limit else (order, heap_bytes)


def _needed(module: Module, readers: Mapping[str, Sequence[str]], order: ModuleOrder, limit: int) -> frozenset[str]:
    """Those of the remade instructions whose results would not fit where they are kept for all their readers."""
    placed = HeapModel(module).place(order)
    time = {name: step for step, name in enumerate(placed.line)}
    held = _by_step(alive_from(placed.blocks), len(placed.line))
    size = {i.name: i.shape.bytes for i in module.entry.instructions}
    needed: set[str] = set()
    for name in sorted(order.remade, key=lambda name: (size[name] * len(readers[name]), name), reverse=True):
        made = sorted(time[n] for n in (name, *(f"{name}.for.{reader}" for reader in readers[name])) if n in time)
        between = range(made[0], max(time[reader] for reader in readers[name]) + 1)
        if all(held[step] + size[name] <= limit for step in between):
            for step in between:
                held[step] += size[name]
        else:
            needed.add(name)
    return frozenset(needed)


def _by_step(alive: Mapping[int, int], steps: int) -> list[int]:
    held, now = [], 0
    for step in range(steps):
        now = alive.get(step, now)
        held.append(now)
    return held


def _line(sequence: Sequence[str], kept: frozenset[str]) -> list[str]:
    """The names with those that are kept where they were first made."""
    found: dict[str, None] = {}
    for name in sequence:
        maker, _, reader = name.partition(".for.")
        found[maker if reader and maker in kept else name] = None
    return list(found)
