"""The result of deciding what to stream: loops, their sinks, and the order of everything."""

from __future__ import annotations

import dataclasses

from jax.extend import core as jex_core

from ..axes import Window
from ..axes.factor import shape_of
from ..program import Program
from .online import Online
from .tasks import Task


@dataclasses.dataclass(frozen=True)
class Stack:
    """A materialised result that keeps the streamed axis: written chunk by chunk."""

    var: jex_core.Var
    window: Window
    task: Task


@dataclasses.dataclass(frozen=True)
class Fold:
    """A result that reduces over the streamed axis: accumulated in the carry."""

    outvars: tuple[jex_core.Var, ...]
    task: Task


@dataclasses.dataclass(frozen=True)
class Same:
    """A result that every iteration computes whole, and all alike: the last one is kept."""

    var: jex_core.Var
    task: Task


@dataclasses.dataclass(frozen=True)
class Carried:
    """A task whose steps depend on each other: its state goes from iteration to iteration.

    Attributes:
      outvars: the parts of the last state that are results, each with its place in the state.
    """

    outvars: tuple[tuple[int, jex_core.Var], ...]
    task: Task


Sink = Stack | Fold | Same | Carried


@dataclasses.dataclass(frozen=True)
class Joined:
    """A sum about a maximum or a mean that is kept about the one so far, rather than in a loop after that finds it."""

    total: Fold
    source: Fold
    online: Online


@dataclasses.dataclass(frozen=True)
class LoopPlan:
    """One loop over `steps` steps.

    Attributes:
      sinks: what it leaves behind.
      body: the tasks of one iteration, in the program's order.
      level: loops of a level depend on those of lower levels only.
      least: steps that a chunk has to have, as a top-k merge begins with k rows.
      reverse: it runs from the last step to the first.
      saves: carried tasks of this loop whose state it keeps at the start of each chunk.
      replays: carried tasks of other loops, run again chunk by chunk from the states kept there.
      joined: sums among its sinks that go with a maximum, or a sum for a mean, among them.
    """

    steps: int
    sinks: tuple[Sink, ...]
    body: tuple[Task, ...]
    level: int
    least: int = 1
    reverse: bool = False
    saves: tuple[Task, ...] = ()
    replays: tuple[Task, ...] = ()
    joined: tuple[Joined, ...] = ()


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """Why `var` can't be streamed: eqn `eqn` needs all of it, because `reason`.

    `across`: it could be, but only by cutting a large array along another axis than its own.
    """

    var: jex_core.Var
    eqn: int
    reason: str
    across: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Streaming:
    """A program with some intermediates streamed.

    Attributes:
      streamed: the intermediates that never exist whole.
      remade: those that any loop computes for itself.
      order: ordinary eqns (by index) and loops, as they run.
      one_way: every large array is cut along one axis only.
      tied: loops that have to take the same chunks, as one replays what another keeps the states of.
      obstacles: why the others that were asked for are not streamed.
    """

    program: Program
    streamed: frozenset[jex_core.Var]
    remade: frozenset[jex_core.Var]
    loops: tuple[LoopPlan, ...]
    order: tuple[int | LoopPlan, ...]
    obstacles: tuple[Obstacle, ...]
    one_way: bool = False
    tied: tuple[tuple[LoopPlan, ...], ...] = ()


def sink_vars(sink: Sink) -> tuple[jex_core.Var, ...]:
    """The vars a sink materialises."""
    if isinstance(sink, Carried):
        return tuple(var for _, var in sink.outvars)
    return sink.outvars if isinstance(sink, Fold) else (sink.var,)


def sink_steps(sink: Sink) -> int:
    """Steps of the loop that a sink needs."""
    if isinstance(sink, Stack):
        return shape_of(sink.var)[sink.window.axis] // sink.window.scale
    return sink.task.steps
