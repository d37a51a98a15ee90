"""What one iteration needs: for each demand the task that meets it, down to what exists outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from jax.extend import core as jex_core

from ..axes import Blocked, Extent, Misaligned
from ..program import Program, is_var, nbytes
from .structure import Obstacle
from .tasks import Task, tasks_for

Var = jex_core.Var
Demand = tuple[Var, Extent]
Verdict = Obstacle | Misaligned | None
"""What stands in the way of a demand; None where it can be met."""

TOO_MANY = "each of its rows would need too many rows of others, which would be computed again and again"


class Needs:
    """Decides demand after demand of one program, each once.

    Args:
      inside: whether an iteration computes this var for itself.
      refusal: why a demand may not be met whatever its eqn could do; None where it may.
    """

    def __init__(
        self, program: Program, inside: Callable[[Var], bool], refusal: Callable[[Demand], Obstacle | None]
    ) -> None:
        self.program = program
        self.inside = inside
        self.refusal = refusal
        self.most = 4 * len(program.eqns) + 200
        self._verdicts: dict[Demand, Verdict] = {}
        self._tasks: dict[Demand, Task] = {}
        self._demands: dict[Task, list[Demand]] = {}

    def of(self, task: Task) -> list[Demand]:
        """The demands of a task on what is computed inside."""
        return [d for d in self.all_of(task) if self.inside(d[0])]

    def all_of(self, task: Task) -> list[Demand]:
        """The demands of a task."""
        if task not in self._demands:
            self._demands[task] = [(a, e) for a, e in task.reads(self.program) if is_var(a)]
        return self._demands[task]

    def task(self, demand: Demand) -> Task:
        """The task that meets a demand whose verdict is None."""
        return self._tasks[demand]

    def hindrance(self, task: Task) -> Verdict:
        """What stands in the way of a task."""
        return next((v for d in self.all_of(task) if (v := self.verdict(d)) is not None), None)

    def verdict(self, demand: Demand) -> Verdict:
        """Whether a demand can be met; without recursion, as programs are deep."""
        pending = [demand]
        while pending:
            top = pending[-1]
            if top in self._verdicts:
                pending.pop()
                continue
            below = self._judge(top)
            if below:
                pending += below
            else:
                pending.pop()
        return self._verdicts[demand]

    def closure(self, demands: Iterable[Demand]) -> list[Task]:
        """Every task that these demands take, in program order."""
        tasks: dict[Task, None] = {}
        pending = [d for d in demands if self.inside(d[0])]
        seen = set(pending)
        while pending:
            task = self.task(pending.pop())
            if task not in tasks:
                tasks[task] = None
                fresh = [d for d in self.of(task) if d not in seen]
                seen.update(fresh)
                pending += fresh
        return sorted(tasks, key=lambda task: task.eqn)

    def _judge(self, demand: Demand) -> list[Demand]:
        """Settles a demand, or returns those that have to be settled before."""
        var = demand[0]
        refused = self.refusal(demand)
        if refused is not None or not self.inside(var):
            self._verdicts[demand] = refused
            return []
        index = self.program.producer[var]
        if len(self._verdicts) > self.most:
            self._verdicts[demand] = Obstacle(var, index, TOO_MANY)
            return []
        try:
            tasks = tasks_for(self.program, *demand)
        except Misaligned as misaligned:
            self._verdicts[demand] = misaligned
            return []
        except Blocked as blocked:
            self._verdicts[demand] = Obstacle(var, index, blocked.reason)
            return []
        failures: list[Obstacle | Misaligned] = []
        for task in tasks:
            found = [(d, self._verdicts.get(d, _OPEN)) for d in self.all_of(task)]
            failed = next((v for _, v in found if isinstance(v, (Obstacle, Misaligned))), None)
            if failed is not None:
                failures.append(self._blamed(var, failed))
                continue
            missing = [d for d, v in found if v is _OPEN]
            if missing:
                return missing
            self._tasks[demand] = task
            self._verdicts[demand] = None
            return []
        self._verdicts[demand] = next((f for f in failures if isinstance(f, Misaligned)), failures[0])
        return []

    def _blamed(self, var: Var, failed: Obstacle | Misaligned) -> Obstacle | Misaligned:
        """Of an array that may not be cut across and what is made from it, the smaller one need not be streamed."""
        if isinstance(failed, Misaligned) or not failed.across or nbytes(var) >= nbytes(failed.var):
            return failed
        return dataclasses.replace(failed, var=var)


_OPEN = object()
