"""Rows that a loop keeps for later loops over the same rows, which would compute them again.

A loop that needs what an earlier one has reduced its rows to computes these rows a second time, whatever memory is
left. Here the earlier loop keeps the last of them, and the later ones take those from there: between keeping all rows
and keeping none, as a rematerialisation plan chooses among whole arrays (Chen et al., "Training Deep Nets with
Sublinear Memory Cost", arXiv 1604.06174), but row by row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from jax.extend import core as jex_core

from ..axes import Extent, Window
from ..axes.factor import shape_of
from ..program import Program, is_var, nbytes
from .structure import Carried, LoopPlan, Streaming, sink_vars
from .tasks import Task

Slice = tuple[jex_core.Var, Window]
"""So many rows of an intermediate for each step of a loop."""


@dataclasses.dataclass(frozen=True)
class Resident:
    """Rows that one loop keeps for later ones.

    Attributes:
      maker: the loop that computes and keeps them.
      readers: loops after it, of as many steps, that take them from there.
      values: what is kept.
      steps: for how many steps, the last ones of all these loops.
    """

    maker: LoopPlan
    readers: tuple[LoopPlan, ...]
    values: tuple[Slice, ...]
    steps: int

    @property
    def step_bytes(self) -> int:
        """Bytes that are kept for one step."""
        return sum(kept_bytes(value, 1) for value in self.values)

    @property
    def bytes(self) -> int:
        """Of all that is kept."""
        return sum(kept_bytes(value, self.steps) for value in self.values)

    @property
    def boundary(self) -> int:
        """The first step whose rows are kept."""
        return self.maker.steps - self.steps


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Consecutive steps of `loop` whose iterations are alike.

    Attributes:
      first, steps: which ones.
      body: the tasks that they run.
      keeps: what they write into buffers of `steps` steps.
      takes: what they take from such buffers.
    """

    loop: LoopPlan
    first: int
    steps: int
    body: tuple[Task, ...]
    keeps: tuple[Slice, ...] = ()
    takes: tuple[Slice, ...] = ()


def parts_of(program: Program, loop: LoopPlan, resident: Resident | None) -> tuple[Part, ...]:
    """A loop up to the rows that are kept and from there on; all of it at once where it has no share in them."""
    if resident is None or loop not in (resident.maker, *resident.readers):
        return (Part(loop, 0, loop.steps, loop.body),)
    before = Part(loop, 0, resident.boundary, loop.body)
    if loop == resident.maker:
        after = Part(loop, resident.boundary, resident.steps, loop.body, keeps=resident.values)
    else:
        body = Body(program, loop).without(resident.values)
        after = Part(loop, resident.boundary, resident.steps, body, takes=resident.values)
    return (before, after) if before.steps else (after,)


def kept_shape(value: Slice, steps: int) -> tuple[int, ...]:
    """The shape of a buffer that keeps `steps` steps of a slice."""
    var, window = value
    return tuple(window.scale * steps if a == window.axis else size for a, size in enumerate(shape_of(var)))


def kept_bytes(value: Slice, steps: int) -> int:
    """Bytes of that buffer."""
    var, window = value
    return nbytes(var) * window.scale * steps // max(1, shape_of(var)[window.axis])


class Body:
    """The tasks of a loop, each with those that it needs."""

    def __init__(self, program: Program, loop: LoopPlan) -> None:
        self.tasks = loop.body
        self._sinks = [sink.task for sink in loop.sinks]
        made_by: dict[tuple[jex_core.Var, Extent], Task] = {}
        for task in loop.body:
            made_by.update(dict.fromkeys(task.results(program), task))
        self._needs: dict[Task, list[tuple[tuple[jex_core.Var, Extent], Task]]] = {}
        for task in loop.body:
            demands = [(atom, extent) for atom, extent in task.reads(program) if is_var(atom)]
            makers = [(demand, made_by.get(demand) or made_by.get((demand[0], None))) for demand in demands]
            self._needs[task] = [(demand, maker) for demand, maker in makers if maker is not None]

    def without(self, given: Collection[Slice]) -> tuple[Task, ...]:
        """The tasks that the loop's sinks still need where some slices are given."""
        found: set[Task] = set()
        pending = [*self._sinks]
        while pending:
            task = pending.pop()
            if task not in found:
                found.add(task)
                pending += [maker for demand, maker in self._needs[task] if demand not in given]
        return tuple(task for task in self.tasks if task in found)


def readers_of(streaming: Streaming) -> list[tuple[LoopPlan, tuple[LoopPlan, ...]]]:
    """Each loop that could keep rows, with the later ones of as many steps that could take them."""
    loops = [loop for loop in streaming.order if isinstance(loop, LoopPlan) and _runs_freely(loop)]
    later = [(loop, tuple(r for r in loops[i:] if r.steps == loop.steps)) for i, loop in enumerate(loops, 1)]
    return [(loop, readers) for loop, readers in later if readers]


def _runs_freely(loop: LoopPlan) -> bool:
    """True where any of its steps may be the first of a chunk."""
    carried = any(isinstance(sink, Carried) for sink in loop.sinks)
    return not (carried or loop.reverse or loop.saves or loop.replays or loop.least > 1)


def slices_of(program: Program, loop: LoopPlan) -> Mapping[Slice, Task]:
    """What each iteration of a loop computes of intermediates row by row, by values that are final.

    A sum that goes with its maximum has terms about the maximum so far: these are others in the next loop.
    """
    passing = {var for joined in loop.joined for var in joined.online.known}
    left = {var for sink in loop.sinks for var in sink_vars(sink)}
    folded = {sink.task for sink in loop.sinks}
    made: dict[Slice, Task] = {}
    for task in loop.body:
        results = task.results(program)
        if any(is_var(atom) and atom in passing for atom, _ in task.reads(program)):
            passing.update(var for var, _ in results)
        elif task not in folded:
            for var, extent in results:
                if isinstance(extent, Window) and extent.shift == extent.extra == 0 and var not in left:
                    made[var, extent] = task
    return {value: task for value, task in made.items() if value[0] not in passing}
