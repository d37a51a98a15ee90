"""The result of deciding what to stream: loops, their sinks, and the order of everything."""

from __future__ import annotations

import dataclasses

from jax.extend import core as jex_core

from ..axes import Window
from ..program import Program
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


Sink = Stack | Fold


@dataclasses.dataclass(frozen=True)
class LoopPlan:
    """One loop over `steps` steps.

    Attributes:
      sinks: what it leaves behind.
      body: the tasks of one iteration, in the program's order.
      level: loops of a level depend on those of lower levels only.
    """

    steps: int
    sinks: tuple[Sink, ...]
    body: tuple[Task, ...]
    level: int


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """Why `var` can't be streamed: eqn `eqn` needs all of it, because `reason`."""

    var: jex_core.Var
    eqn: int
    reason: str


@dataclasses.dataclass(frozen=True, eq=False)
class Streaming:
    """A program with some intermediates streamed.

    Attributes:
      streamed: the intermediates that never exist whole.
      remade: those that any loop computes for itself.
      order: ordinary eqns (by index) and loops, as they run.
      obstacles: why the others that were asked for are not streamed.
    """

    program: Program
    streamed: frozenset[jex_core.Var]
    remade: frozenset[jex_core.Var]
    loops: tuple[LoopPlan, ...]
    order: tuple[int | LoopPlan, ...]
    obstacles: tuple[Obstacle, ...]


def sink_vars(sink: Sink) -> tuple[jex_core.Var, ...]:
    """The vars a sink materialises."""
    return (sink.var,) if isinstance(sink, Stack) else sink.outvars
