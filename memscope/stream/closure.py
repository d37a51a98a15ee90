"""Which loops a set of streamed intermediates asks for, or what stands in the way.

This is the static half of streaming: it only follows the rules, nothing is traced. The set says *what*
is streamed, not along which axis: each sink picks its own, so that `x` may feed both the rows and the
columns of a Gram matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from jax.extend import core as jex_core

from ..axes import At, Blocked, Extent, Factor, Misaligned, Share, Window
from ..axes.factor import onto, shape_of
from ..axes.table import reason
from ..axes.windows import WINDOWS
from ..program import LARGE, Program, is_var, nbytes
from .carried import SEQUENTIAL
from .free import generated_vars, relayout_vars
from .loops import arrange
from .needs import Demand, Needs
from .online import online_sums
from .reach import axis_map
from .structure import Carried, Fold, Obstacle, Same, Sink, Stack, Streaming, sink_steps
from .tasks import Task, fold_task, tasks_for

Var = jex_core.Var
Option = Sequence[Sink]
"""Sinks that together leave behind all that an eqn has to: one way to compute them."""

IN_STEP = "its steps run one after the other, and not all of them are taken"
IN_TURN = "its steps run one after the other, so that its last state takes all of them"


class Closure:
    """Decides the loops for sets of streamed intermediates of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.axes = axis_map(program)
        self.generated = generated_vars(program)
        self.relayouts = relayout_vars(program)
        self.online = online_sums(program)
        self.guards = {v for online in self.online.values() for v in online.guards}

    def build(self, streamed: Iterable[Var], hints: Mapping[Var, Collection[int]], one_way: bool = False) -> Streaming:
        """Loops that stream as many of `streamed` as can be; none where that is no intermediate at all.

        Args:
          streamed: the intermediates to stream; those that are needed whole somewhere are given up,
            and named in the result's `obstacles`.
          hints: for each var the axes along which it should be sliced where a sink has a choice, the best first.
          one_way: cut each large array along the first hinted axis only: what is made from it across that axis
            is kept whole, if it is smaller, rather than computed from the large one a second time.
        """
        current = {v for v in streamed if self._may_stream(v)}
        given_up: dict[Var, Obstacle] = {}
        while True:
            attempt = _Attempt(self, frozenset(current), hints, one_way)
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

    def __init__(
        self, closure: Closure, streamed: frozenset[Var], hints: Mapping[Var, Collection[int]], one_way: bool
    ) -> None:
        self.closure = closure
        self.program = closure.program
        self.streamed = streamed
        self.hints = hints
        self.one_way = one_way
        self.large = LARGE * max((nbytes(v) for v in streamed), default=0)
        relayouts = {v for v in closure.relayouts - streamed if self._operand(v) not in streamed}
        self.remade = closure.generated | relayouts | (closure.guards - streamed)
        self.sinks: list[Sink] = []
        self.needs = Needs(self.program, lambda v: v in self.streamed or v in self.remade, self._refusal)

    def _operand(self, relayout: Var) -> object:
        return self.program.eqns[self.program.producer[relayout]].invars[0]

    # Choosing how each sink is computed.

    def choose(self) -> list[Obstacle]:
        """Picks an option for every eqn that leaves something behind; the obstacles of those that have none."""
        obstacles: list[Obstacle] = []
        for index, eqn in enumerate(self.program.eqns):
            left = [v for v in eqn.outvars if v not in self.streamed and self._is_read(v)]
            held = [a for a in (*eqn.invars, *eqn.outvars) if is_var(a) and a in self.streamed]
            if not held:
                continue
            if eqn.effects:
                obstacles += [Obstacle(a, index, reason(eqn)) for a in held]
            elif left:
                obstacles += self._choose_for(index, left)
        return obstacles or self._own_carried()

    def _is_read(self, var: Var) -> bool:
        return var in self.program.outputs or var in self.program.consumers

    def _own_carried(self) -> list[Obstacle]:
        """A sink for every carried task that some loop needs and none runs in turn yet."""
        if not any(f.carried for index in self._producers() for f in self.closure.axes.factors(index)):
            return []
        obstacles: dict[Var, Obstacle] = {}
        owned = {sink.task for sink in self.sinks if isinstance(sink, Carried)}
        for sink in self.sinks:  # grows on the way: what one carried task needs may be carried itself
            for task in (sink.task, *self.needs.closure(self.needs.of(sink.task))):
                if task.factor is None or not task.factor.carried:
                    continue
                if task.steps != sink_steps(sink):
                    held = (v for v in self.program.eqns[task.eqn].outvars if v in self.streamed)
                    obstacles.update((v, Obstacle(v, sink.task.eqn, IN_STEP)) for v in held)
                elif task not in owned:
                    owned.add(task)
                    self.sinks.append(Carried((), task))
        return list(obstacles.values())

    def _producers(self) -> set[int]:
        return {self.program.producer[v] for v in self.streamed}

    def _choose_for(self, index: int, left: list[Var]) -> list[Obstacle]:
        options, blocked = self._options(index, left)
        if self.program.eqns[index].primitive.name in WINDOWS:
            options += self._placed_option(index, left, blocked)
        if options:
            best: Option = max(options, key=self._preference)
            self.sinks += best
        elif blocked:
            return [self._given_up(index, min(blocked, key=lambda o: self._loss(o.var)))]
        return []

    def _preference(self, option: Option) -> tuple[tuple[int, int, int], bool]:
        """How much of what is streamed goes along the hinted axes; results kept along the axis before sums."""
        agreement = min(self._agreement(sink.task) for sink in option)
        return agreement, not any(isinstance(sink, Fold) for sink in option)

    def _agreement(self, task: Task) -> tuple[int, int, int]:
        """How many bytes of streamed intermediates are sliced along the axis that the hints name first.

        Then along another that they name, and along none of them. One axis for all large arrays is what lets
        one loop compute them all.
        """
        first = named = other = 0
        for atom, extent in (*task.reads(self.program), *task.results(self.program)):
            if isinstance(extent, Window) and is_var(atom) and atom in self.streamed:
                axes = self.hints.get(atom, ())
                if extent.axis == next(iter(axes), None):
                    first += nbytes(atom)
                elif extent.axis in axes:
                    named += nbytes(atom)
                else:
                    other += nbytes(atom)
        return first, named, -other

    def _loss(self, var: Var) -> int:
        """Bytes that giving up a streamed intermediate costs; none for a layout that a loop may make for itself."""
        free = var in self.closure.relayouts and self._operand(var) not in self.streamed
        return 0 if free else nbytes(var)

    def _given_up(self, index: int, obstacle: Obstacle) -> Obstacle:
        """The obstacle in terms of a streamed intermediate: one in something remade stands in the way of its reader."""
        if obstacle.var in self.streamed:
            return obstacle
        return self._held_obstacle(index, obstacle.reason)

    def _options(self, index: int, left: list[Var]) -> tuple[list[Option], list[Obstacle]]:
        """The factors along which an eqn can be computed so that it leaves `left` and nothing else."""
        options: list[Option] = []
        blocked: list[Obstacle] = []
        for factor in self.closure.axes.factors(index):
            obstacle = self._unfit(index, factor, left)
            if obstacle is not None:
                blocked.append(obstacle)
            elif factor.size >= 2:
                verdict, task = self._aligned(functools.partial(fold_task, index, factor), index)
                if task is not None:
                    options.append(self._sinks_of(index, task, left))
                elif verdict is not None:
                    blocked.append(verdict)
        if not options and not blocked:
            blocked.append(self._held_obstacle(index, reason(self.program.eqns[index])))
        return [option for option in options if option], blocked

    def _unfit(self, index: int, factor: Factor, left: list[Var]) -> Obstacle | None:
        """Why a factor can't leave `left` and no more: what is streamed would have to exist whole."""
        eqn = self.program.eqns[index]
        if factor.fold == "scatter" and is_var(eqn.invars[0]) and eqn.invars[0] in self.streamed:
            return Obstacle(eqn.invars[0], index, "the scatter accumulates into it")
        for var, at in zip(eqn.outvars, factor.outs, strict=True):
            if var in self.streamed and not isinstance(at, At):
                why = IN_TURN if factor.carried else f"{eqn.primitive.name} sums it up over the steps of the loop"
                return Obstacle(var, index, why)
        return None

    def _sinks_of(self, index: int, task: Task, left: list[Var]) -> Option:
        eqn, factor = self.program.eqns[index], task.factor
        assert factor is not None
        if factor.fold is not None:
            return [Fold(tuple(eqn.outvars), task)]
        sinks: list[Sink] = []
        if factor.carried:
            finals = SEQUENTIAL[eqn.primitive.name].finals(eqn)
            kept = [(i, eqn.outvars[out]) for i, out in enumerate(finals) if out is not None]
            sinks.append(Carried(tuple((i, v) for i, v in kept if v in left), task))
        for var, at in zip(eqn.outvars, factor.outs, strict=True):
            if var not in left:
                continue
            if isinstance(at, At):
                sinks.append(Stack(var, onto(at, task.scale, 0), task))
            elif isinstance(at, Share):
                sinks.append(Fold((var,), task))
            elif not factor.carried:
                sinks.append(Same(var, task))
        return sinks

    def _placed_option(self, index: int, left: list[Var], blocked: list[Obstacle]) -> list[Option]:
        """Each result stacked by itself, along an axis that the eqn only shifts; none where one can't be."""
        sinks: list[Sink] = []
        for var in left:
            options = [s for axis in range(len(shape_of(var))) if (s := self._stack(index, var, axis, blocked))]
            if not options:
                return []
            sinks.append(max(options, key=lambda sink: self._agreement(sink.task)))
        return [sinks]

    def _stack(self, index: int, var: Var, axis: int, blocked: list[Obstacle]) -> Stack | None:
        size = shape_of(var)[axis]
        if size < 2:
            return None

        def task_at(scale: int) -> Task:
            if size % scale:
                raise Misaligned(scale)
            return tasks_for(self.program, var, Window(axis, scale))[0]

        verdict, task = self._aligned(task_at, index)
        if task is not None:
            window = dict(task.results(self.program))[var]
            assert isinstance(window, Window)
            return Stack(var, window, task)
        if verdict is not None:
            blocked.append(verdict)
        return None

    def _aligned(self, task_at: Callable[[int], Task], index: int) -> tuple[Obstacle | None, Task | None]:
        """The task at the smallest scale that every window divides by, or what stands in its way."""
        scale = 1
        for _ in range(8):
            try:
                task = task_at(scale)
            except Misaligned as misaligned:
                scale *= misaligned.unit
                continue
            except Blocked as blocked:
                return self._held_obstacle(index, blocked.reason), None
            verdict = self.needs.hindrance(task)
            if verdict is None:
                return None, task
            if isinstance(verdict, Obstacle):
                return verdict, None
            if task.factor is not None and task.factor.carried:
                return self._held_obstacle(index, IN_TURN), None
            scale *= verdict.unit
        return self._held_obstacle(index, f"rows are only separable in groups of {scale}"), None

    def _held_obstacle(self, index: int, why: str) -> Obstacle:
        eqn = self.program.eqns[index]
        held = [a for a in eqn.invars if is_var(a) and a in self.streamed]
        return Obstacle(min(held or [v for v in eqn.outvars if v in self.streamed], key=nbytes), index, why)

    # What may not be had.

    def _refusal(self, demand: Demand) -> Obstacle | None:
        var, extent = demand
        if var not in self.streamed:
            return None
        if extent is not None:
            return self._across(var, extent)
        readers = self.program.consumers.get(var, ())
        for index in readers:
            eqn = self.program.eqns[index]
            if not any(f.ins[eqn.invars.index(var)] is not None for f in self.closure.axes.factors(index)):
                return Obstacle(var, index, reason(eqn))
        index = readers[-1] if readers else self.program.producer[var]
        name = self.program.eqns[index].primitive.name
        return Obstacle(var, index, f"{name} reads all of it for each part of its result")

    def _across(self, var: Var, extent: Extent) -> Obstacle | None:
        axes = self.hints.get(var)
        if not (self.one_way and axes and isinstance(extent, Window)) or nbytes(var) < self.large:
            return None
        first = next(iter(axes))
        if extent.axis == first:
            return None
        return Obstacle(var, self.program.producer[var], f"it is cut along axis {first}", across=True)

    def streaming(self, obstacles: tuple[Obstacle, ...]) -> Streaming:
        """The loops of the sinks chosen."""
        given = self.sinks, self.closure.online, self.needs, self.streamed, self.remade
        return arrange(self.program, *given, obstacles, self.one_way)
