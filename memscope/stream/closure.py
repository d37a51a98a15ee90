"""Which loops a set of streamed intermediates asks for, or what stands in the way.

This is the static half of streaming: it only follows the rules, nothing is traced. The set says *what*
is streamed, not along which axis: each sink picks its own, so that `x` may feed both the rows and the
columns of a Gram matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

from jax.extend import core as jex_core

from ..axes import Blocked, Misaligned, Window
from ..axes.factor import shape_of
from ..axes.table import reason
from ..program import Program, is_var, nbytes
from .free import generated_vars, relayout_vars
from .reach import axis_map
from .structure import Fold, LoopPlan, Obstacle, Sink, Stack, Streaming, sink_vars
from .tasks import Task, fold_task, task_for

Var = jex_core.Var
Demand = tuple[Var, Window | None]


class _Obstructed(Exception):
    """A sink can't be computed so."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.reason)
        self.obstacle = obstacle


TOO_MANY = "each of its rows would need too many rows of others, which would be computed again and again"


class Closure:
    """Decides the loops for sets of streamed intermediates of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.axes = axis_map(program)
        self.generated = generated_vars(program)
        self.relayouts = relayout_vars(program)

    def build(self, streamed: Iterable[Var], hints: Mapping[Var, set[int]]) -> Streaming:
        """Loops that stream as many of `streamed` as can be; none where that is no intermediate at all.

        Args:
          streamed: the intermediates to stream; those that are needed whole somewhere are given up,
            and named in the result's `obstacles`.
          hints: for each var the axes along which it should be sliced where a sink has a choice.
        """
        current = {v for v in streamed if self._may_stream(v)}
        given_up: dict[Var, Obstacle] = {}
        while True:
            attempt = _Attempt(self, frozenset(current), hints)
            obstacles = attempt.choose()
            if not obstacles:
                return attempt.streaming(tuple(given_up.values()))
            given_up.update((obstacle.var, obstacle) for obstacle in obstacles)
            current -= given_up.keys()

    def _may_stream(self, var: Var) -> bool:
        index = self.program.producer.get(var)
        return (
            index is not None
            and not self.program.eqns[index].effects
            and var not in self.program.outputs
            and var not in self.generated
        )


class _Attempt:
    """One set of streamed intermediates: its sinks, each with the option chosen for it."""

    def __init__(self, closure: Closure, streamed: frozenset[Var], hints: Mapping[Var, set[int]]) -> None:
        self.closure = closure
        self.program = closure.program
        self.streamed = streamed
        self.hints = hints
        self.remade = closure.generated | {v for v in closure.relayouts - streamed if self._operand(v) not in streamed}
        self.sinks: list[Sink] = []
        self.most_demands = 4 * len(self.program.eqns) + 200
        self._verdicts: dict[Demand, Obstacle | Misaligned | None] = {}

    def _operand(self, relayout: Var) -> object:
        return self.program.eqns[self.program.producer[relayout]].invars[0]

    # Choosing how each sink is computed.

    def choose(self) -> list[Obstacle]:
        """Picks an option for every sink; the obstacles of those that have none."""
        obstacles: list[Obstacle] = []
        for index, eqn in enumerate(self.program.eqns):
            left = [v for v in eqn.outvars if v not in self.streamed and self._is_read(v)]
            if not any(is_var(a) and a in self.streamed for a in eqn.invars):
                if left:  # it runs whole, and so do all its results
                    why = f"{eqn.primitive.name} computes it together with a result that is needed whole"
                    obstacles += [Obstacle(v, index, why) for v in eqn.outvars if v in self.streamed]
                continue
            if eqn.effects:
                obstacles += [Obstacle(a, index, reason(eqn)) for a in eqn.invars if is_var(a) and a in self.streamed]
            elif left:
                obstacles += self._choose_for(index, left)
        return obstacles

    def _is_read(self, var: Var) -> bool:
        return var in self.program.outputs or var in self.program.consumers

    def _choose_for(self, index: int, left: list[Var]) -> list[Obstacle]:
        folds, blocked = self._fold_options(index) if len(left) == len(self.program.eqns[index].outvars) else ([], [])
        stacks: list[list[Stack]] = []
        for var in left:
            options, more = self._stack_options(var)
            stacks.append(options)
            blocked += more
        best_fold = max(folds, key=self._agreement, default=None)
        best_stacks = [max(options, key=self._agreement, default=None) for options in stacks]
        complete = [s for s in best_stacks if s is not None]
        stacked = min(map(self._agreement, complete)) if len(complete) == len(left) else None
        if best_fold is not None and (stacked is None or self._agreement(best_fold) > stacked):
            self.sinks.append(best_fold)
        elif stacked is not None:
            self.sinks += complete
        elif blocked:
            return [self._given_up(index, min(blocked, key=lambda o: self._loss(o.var)))]
        return []

    def _loss(self, var: Var) -> int:
        """Bytes that giving up a streamed intermediate costs; none for a layout that a loop may make for itself."""
        free = var in self.closure.relayouts and self._operand(var) not in self.streamed
        return 0 if free else nbytes(var)

    def _given_up(self, index: int, obstacle: Obstacle) -> Obstacle:
        """The obstacle in terms of a streamed intermediate: one in something remade stands in the way of its reader."""
        if obstacle.var in self.streamed:
            return obstacle
        return self._operand_obstacle(index, obstacle.reason)

    def _fold_options(self, index: int) -> tuple[list[Fold], list[Obstacle]]:
        eqn = self.program.eqns[index]
        options, blocked = [], []
        for factor in self.closure.axes.factors(index):
            if factor.fold is None or factor.size < 2:
                continue
            if factor.fold == "scatter" and is_var(eqn.invars[0]) and eqn.invars[0] in self.streamed:
                blocked.append(Obstacle(eqn.invars[0], index, "the scatter accumulates into it"))
                continue
            verdict, task = self._aligned(functools.partial(fold_task, index, factor), index)
            if task is not None:
                options.append(Fold(tuple(eqn.outvars), task))
            elif verdict is not None:
                blocked.append(verdict)
        return options, blocked

    def _stack_options(self, var: Var) -> tuple[list[Stack], list[Obstacle]]:
        index = self.program.producer[var]
        options, blocked = [], []
        for axis, size in enumerate(shape_of(var)):
            if size < 2:
                continue

            def task_at(scale: int, axis: int = axis, size: int = size) -> Task:
                if size % scale:
                    raise Misaligned(scale)
                return task_for(self.program, var, Window(axis, scale))

            verdict, task = self._aligned(task_at, index)
            if task is not None:
                window = dict(task.results(self.program))[var]
                assert window is not None
                options.append(Stack(var, window, task))
            elif verdict is not None:
                blocked.append(verdict)
        if not options and not blocked:
            eqn = self.program.eqns[index]
            blocked = [Obstacle(a, index, reason(eqn)) for a in eqn.invars if is_var(a) and a in self.streamed]
        return options, blocked

    def _aligned(self, task_at: Callable[[int], Task], index: int) -> tuple[Obstacle | None, Task | None]:
        """The task at the smallest scale that every window divides by, or what stands in its way."""
        scale = 1
        for _ in range(8):
            try:
                task = task_at(scale)
                self._require(task)
                return None, task
            except Misaligned as misaligned:
                scale *= misaligned.unit
            except _Obstructed as obstructed:
                return obstructed.obstacle, None
            except Blocked as blocked:
                return self._operand_obstacle(index, blocked.reason), None
        return self._operand_obstacle(index, f"rows are only separable in groups of {scale}"), None

    def _operand_obstacle(self, index: int, why: str) -> Obstacle:
        held = [a for a in self.program.eqns[index].invars if is_var(a) and a in self.streamed]
        return Obstacle(min(held, key=nbytes), index, why)

    def _agreement(self, sink: Sink) -> tuple[int, int]:
        """How many bytes of streamed operands are sliced along an axis that the hints ask for."""
        agreeing = other = 0
        for atom, window in sink.task.reads(self.program):
            if window is not None and is_var(atom) and atom in self.streamed:
                if window.axis in self.hints.get(atom, ()):
                    agreeing += nbytes(atom)
                else:
                    other += nbytes(atom)
        return agreeing, -other

    # Feasibility: what a task needs, down to what is materialised.

    def _require(self, task: Task) -> None:
        """Raises _Obstructed or Misaligned where some streamed operand can't be had as the task needs it."""
        for demand in self._inner(task):
            verdict = self._verdict(demand)
            if isinstance(verdict, Misaligned):
                raise verdict
            if verdict is not None:
                raise _Obstructed(verdict)

    def _inner(self, task: Task) -> list[Demand]:
        """The demands of a task that a loop computes for itself."""
        return [(a, w) for a, w in task.reads(self.program) if is_var(a) and self._computed_inside(a)]

    def _computed_inside(self, var: Var) -> bool:
        return var in self.streamed or var in self.remade

    def _verdict(self, demand: Demand) -> Obstacle | Misaligned | None:
        """Whether a demand can be met, each demand below it judged once; without recursion, as programs are deep."""
        pending = [demand]
        while pending:
            top = pending[-1]
            if top in self._verdicts:
                pending.pop()
                continue
            if len(self._verdicts) > self.most_demands:
                self._verdicts[top] = Obstacle(top[0], self.program.producer[top[0]], TOO_MANY)
                continue
            task = self._task(top)
            if isinstance(task, Task):
                below = [d for d in self._inner(task) if d not in self._verdicts]
                if below:
                    pending += below
                    continue
                found = [self._verdicts[d] for d in self._inner(task)]
                self._verdicts[top] = next((f for f in found if f is not None), None)
            else:
                self._verdicts[top] = task
            pending.pop()
        return self._verdicts[demand]

    def _task(self, demand: Demand) -> Task | Obstacle | Misaligned:
        var, window = demand
        index = self.program.producer[var]
        if window is None and var in self.streamed:
            return self._whole(var)
        try:
            return task_for(self.program, var, window)
        except Misaligned as misaligned:
            return misaligned
        except Blocked as blocked:
            return Obstacle(var, index, blocked.reason)

    def _whole(self, var: Var) -> Obstacle:
        readers = self.program.consumers.get(var, ())
        for index in readers:
            eqn = self.program.eqns[index]
            if not any(f.ins[eqn.invars.index(var)] is not None for f in self.closure.axes.factors(index)):
                return Obstacle(var, index, reason(eqn))
        index = readers[-1] if readers else self.program.producer[var]
        name = self.program.eqns[index].primitive.name
        return Obstacle(var, index, f"{name} reads all of it for each part of its result")

    # Loops: sinks by level, those that share work together.

    def streaming(self, obstacles: tuple[Obstacle, ...]) -> Streaming:
        bodies = {sink: self._body(sink) for sink in self.sinks}
        levels, available = self._levels(bodies)
        loops = [
            self._loop(group, bodies, level)
            for level in sorted(set(levels.values()))
            for group in self._groups([s for s in self.sinks if levels[s] == level], bodies)
        ]
        return Streaming(
            program=self.program,
            streamed=self.streamed,
            remade=self.remade,
            loops=tuple(loops),
            order=self._order(loops, available),
            obstacles=obstacles,
        )

    def _body(self, sink: Sink) -> dict[Task, None]:
        """Every task that one iteration needs for this sink."""
        body = {sink.task: None}
        pending = [sink.task]
        while pending:
            for var, window in self._inner(pending.pop()):
                task = task_for(self.program, var, window)
                if task not in body:
                    body[task] = None
                    pending.append(task)
        return body

    def _leaves(self, body: Iterable[Task]) -> set[Demand]:
        return {
            (a, w) for task in body for a, w in task.reads(self.program) if is_var(a) and not self._computed_inside(a)
        } | {
            (table, None)
            for task in body
            if task.factor is not None and task.factor.fold == "scatter" and is_var(table := self._table(task))
        }

    def _table(self, task: Task) -> jex_core.Var | jex_core.Literal:
        return self.program.eqns[task.eqn].invars[0]

    def _levels(self, bodies: Mapping[Sink, Iterable[Task]]) -> tuple[dict[Sink, int], dict[int, int]]:
        """The level of each sink, and for each ordinary eqn the level whose loops come before it."""
        by_eqn: dict[int, list[Sink]] = {}
        for sink in self.sinks:
            by_eqn.setdefault(sink.task.eqn, []).append(sink)
        ready: dict[Var, int] = {}
        stacks: dict[Demand, int] = {}
        levels: dict[Sink, int] = {}
        ordinary: dict[int, int] = {}
        last_effect = 0
        for index, eqn in enumerate(self.program.eqns):
            for sink in by_eqn.get(index, ()):
                # A slice that the same iteration has just written may be read at once.
                levels[sink] = max(
                    (stacks.get(leaf, ready.get(leaf[0], 0)) for leaf in self._leaves(bodies[sink])), default=0
                )
                ready.update(dict.fromkeys(sink_vars(sink), levels[sink] + 1))
                if isinstance(sink, Stack):
                    stacks[sink.var, sink.window] = levels[sink]
            if self._is_ordinary(index, by_eqn):
                level = max((ready.get(a, 0) for a in eqn.invars if is_var(a)), default=0)
                if eqn.effects:
                    level = last_effect = max(level, last_effect)
                ordinary[index] = level
                ready.update(dict.fromkeys(eqn.outvars, level))
        return levels, ordinary

    def _is_ordinary(self, index: int, by_eqn: Mapping[int, object]) -> bool:
        eqn = self.program.eqns[index]
        return index not in by_eqn and (bool(eqn.effects) or not any(v in self.streamed for v in eqn.outvars))

    def _groups(self, sinks: list[Sink], bodies: Mapping[Sink, Mapping[Task, None]]) -> list[list[Sink]]:
        """Sinks of one level that share work, or read each other's slices, and take as many steps."""
        groups: list[tuple[int, set[Task], list[Sink]]] = []
        for sink in sinks:
            steps, tasks, members = _steps(sink), set(self._weighty(bodies[sink])), [sink]
            leaves = self._leaves(bodies[sink])
            tasks |= {s.task for s in sinks if isinstance(s, Stack) and (s.var, s.window) in leaves}
            tasks.add(sink.task)
            apart = []
            for group in groups:
                if group[0] == steps and not group[1].isdisjoint(tasks):
                    tasks |= group[1]
                    members = [*group[2], *members]
                else:
                    apart.append(group)
            groups = [*apart, (steps, tasks, members)]
        return [members for _, _, members in groups]

    def _weighty(self, body: Iterable[Task]) -> Iterable[Task]:
        """Tasks worth sharing a loop for: a mask that anyone can make again is not."""
        return (t for t in body if not all(v in self.remade for v in self.program.eqns[t.eqn].outvars))

    def _loop(self, sinks: list[Sink], bodies: Mapping[Sink, Mapping[Task, None]], level: int) -> LoopPlan:
        body = {task: None for sink in sinks for task in bodies[sink]}
        return LoopPlan(
            steps=_steps(sinks[0]),
            sinks=tuple(sinks),
            body=tuple(sorted(body, key=lambda task: task.eqn)),
            level=level,
        )

    def _order(self, loops: list[LoopPlan], ordinary: Mapping[int, int]) -> tuple[int | LoopPlan, ...]:
        keyed: list[tuple[tuple[int, int, int], int | LoopPlan]] = [
            *(((level, 0, index), index) for index, level in ordinary.items()),
            *(((loop.level, 1, i), loop) for i, loop in enumerate(loops)),
        ]
        return tuple(item for _, item in sorted(keyed, key=lambda pair: pair[0]))


def _steps(sink: Sink) -> int:
    if isinstance(sink, Stack):
        return shape_of(sink.var)[sink.window.axis] // sink.window.scale
    factor = sink.task.factor
    assert factor is not None
    return factor.size // sink.task.scale
