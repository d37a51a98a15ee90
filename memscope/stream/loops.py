"""From sinks to loops: those of one level that share work together, and the order of everything."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from jax.extend import core as jex_core

from ..program import Program, is_var
from .folds import least_rows
from .needs import Demand, Needs
from .online import FOLDS, Online
from .structure import Carried, Fold, Joined, LoopPlan, Obstacle, Same, Sink, Stack, Streaming, sink_steps, sink_vars
from .tasks import Task

Var = jex_core.Var


def arrange(
    program: Program,
    sinks: list[Sink],
    online: Mapping[int, Online],
    needs: Needs,
    streamed: frozenset[Var],
    remade: frozenset[Var],
    obstacles: tuple[Obstacle, ...],
    one_way: bool,
) -> Streaming:
    """The loops that leave these sinks behind, in an order in which each finds what it needs."""
    arrangement = _Arrangement(program, sinks, online, needs, streamed, remade)
    loops = arrangement.loops()
    return Streaming(
        program=program,
        streamed=streamed,
        remade=remade,
        loops=tuple(loops),
        order=arrangement.order(loops),
        obstacles=obstacles,
        one_way=one_way,
        tied=_tied(loops),
    )


class _Arrangement:
    def __init__(
        self,
        program: Program,
        sinks: list[Sink],
        online: Mapping[int, Online],
        needs: Needs,
        streamed: frozenset[Var],
        remade: frozenset[Var],
    ) -> None:
        self.program = program
        self.sinks = sinks
        self.needs = needs
        self.streamed = streamed
        self.remade = remade
        self.bodies = {sink: self._body(sink) for sink in sinks}
        self.leaves = {sink: self._leaves(body) for sink, body in self.bodies.items()}
        self.owners = {sink.task: sink for sink in sinks if isinstance(sink, Carried)}
        self.joinable: dict[Sink, Joined] = {joined.total: joined for joined in _joinable(online, sinks)}
        self.joined: dict[Sink, Joined] = {}
        self.later: dict[Sink, int] = {}
        self.levels, self._available = self._levels()
        while self._put_off():
            self.levels, self._available = self._levels()

    def _body(self, sink: Sink) -> dict[Task, None]:
        """Every task that one iteration needs for this sink."""
        return {sink.task: None, **dict.fromkeys(self.needs.closure(self.needs.of(sink.task)))}

    def _leaves(self, body: Iterable[Task]) -> set[Demand]:
        return {(a, e) for task in body for a, e in self.needs.all_of(task) if not self.needs.inside(a)} | {
            (table, None)
            for task in body
            if task.factor is not None and task.factor.fold == "scatter" and is_var(table := self._table(task))
        }

    def _table(self, task: Task) -> jex_core.Var | jex_core.Literal:
        return self.program.eqns[task.eqn].invars[0]

    # Levels: a loop needs what the loops of lower levels leave behind.

    def _levels(self) -> tuple[dict[Sink, int], dict[int, int]]:
        """The level of each sink, and for each ordinary eqn the level whose loops come before it."""
        by_eqn: dict[int, list[Sink]] = {}
        for sink in self.sinks:
            by_eqn.setdefault(sink.task.eqn, []).append(sink)
        ready: dict[Var, int] = {}
        at_once: dict[Demand, int] = {}
        levels: dict[Sink, int] = {}
        ordinary: dict[int, int] = {}
        last_effect = 0
        self.joined = {}

        def level_of(sink: Sink, leaves: Iterable[Demand]) -> int:
            level = max((at_once.get(_alike(leaf, at_once), ready.get(leaf[0], 0)) for leaf in leaves), default=0)
            return max(self._in_turn(sink, level, levels), self.later.get(sink, 0))

        for index, eqn in enumerate(self.program.eqns):
            for sink in by_eqn.get(index, ()):
                levels[sink] = level_of(sink, self.leaves[sink])
                joined = self.joinable.get(sink)
                if joined is not None and joined.source in levels:
                    others = {leaf for leaf in self.leaves[sink] if leaf[0] not in joined.online.known}
                    if level_of(sink, others) <= levels[joined.source]:
                        levels[sink] = levels[joined.source]
                        self.joined[sink] = joined
                ready.update(dict.fromkeys(sink_vars(sink), levels[sink] + 1))
                if (own := _at_once(sink)) is not None:
                    at_once[own] = levels[sink]
            if self._is_ordinary(index, by_eqn):
                level = max((ready.get(a, 0) for a in eqn.invars if is_var(a)), default=0)
                if eqn.effects:
                    level = last_effect = max(level, last_effect)
                ordinary[index] = level
                ready.update(dict.fromkeys(eqn.outvars, level))
        return levels, ordinary

    def _in_turn(self, sink: Sink, level: int, levels: Mapping[Sink, int]) -> int:
        """The level at which a sink finds its carried tasks: running in the same loop, or with their states kept.

        Two of them that run in opposite directions don't go into one loop.
        """
        carried = [task for task in self.bodies[sink] if task in self.owners and task is not sink.task]
        owned = [(levels[self.owners[task]], task) for task in carried if self.owners[task] in levels]
        level = max([level, *(at for at, _ in owned)])
        directions = {_direction(task) for at, task in owned if at == level} | {_direction(sink.task)}
        return level + 1 if len(directions - {None}) > 1 else level

    def _put_off(self) -> bool:
        """Moves sinks to a later level that read what another loop of their level leaves; whether there are any."""
        before = dict(self.later)
        for level, group in self.grouped():
            outside = [s for s in self.sinks if self.levels[s] == level and s not in group]
            left = {_at_once(s) for s in outside} - {_at_once(s) for s in group}
            for sink in group:
                replays = (task for task in self._replays(group) if task in self.bodies[sink])
                apart = sink in self.joined and self.joined[sink].source not in group
                if (
                    apart
                    or any(_alike(leaf, left) in left for leaf in self.leaves[sink])
                    or any(self.levels[self.owners[task]] == level for task in replays)
                ):
                    self.later[sink] = level + 1
        return self.later != before

    def _is_ordinary(self, index: int, by_eqn: Mapping[int, object]) -> bool:
        eqn = self.program.eqns[index]
        return index not in by_eqn and (bool(eqn.effects) or not any(v in self.streamed for v in eqn.outvars))

    # Loops.

    def grouped(self) -> list[tuple[int, list[Sink]]]:
        """The sinks of each loop, with its level."""
        return [
            (level, group)
            for level in sorted(set(self.levels.values()))
            for group in self._groups([s for s in self.sinks if self.levels[s] == level])
        ]

    def loops(self) -> list[LoopPlan]:
        """The loops, level by level."""
        groups = self.grouped()
        replayed = {task for _, group in groups for task in self._replays(group)}
        return [self._loop(group, level, replayed) for level, group in groups]

    def _groups(self, sinks: list[Sink]) -> list[list[Sink]]:
        """Sinks of one level that share work, or read each other's slices, and take as many steps in one direction."""
        groups: list[tuple[int, set[str], set[Task], list[Sink]]] = []
        for sink in sinks:
            steps, tasks, members = sink_steps(sink), set(self._weighty(self.bodies[sink])), [sink]
            leaves = self.leaves[sink]
            tasks |= {s.task for s in sinks if any(_alike(leaf, {_at_once(s)}) == _at_once(s) for leaf in leaves)}
            tasks |= {sink.task, *((self.joined[sink].source.task,) if sink in self.joined else ())}
            directions = self._directions(sink)
            apart = []
            for group in groups:
                if group[0] == steps and len(directions | group[1]) < 2 and not group[2].isdisjoint(tasks):
                    directions = directions | group[1]
                    tasks |= group[2]
                    members = [*group[3], *members]
                else:
                    apart.append(group)
            groups = [*apart, (steps, directions, tasks, members)]
        return [members for _, _, _, members in groups]

    def _directions(self, sink: Sink) -> set[str]:
        """The direction that a sink's loop has to have: its own, or of what runs in the same loop."""
        level = self.levels[sink]
        owned = [t for t in self.bodies[sink] if t in self.owners and self.levels[self.owners[t]] == level]
        return {d for task in (sink.task, *owned) if (d := _direction(task)) is not None}

    def _weighty(self, body: Iterable[Task]) -> Iterable[Task]:
        """Tasks worth sharing a loop for: a mask that anyone can make again is not."""
        return (t for t in body if not all(v in self.remade for v in self.program.eqns[t.eqn].outvars))

    def _replays(self, group: list[Sink]) -> list[Task]:
        """Carried tasks that a loop needs and another one runs in turn."""
        own = {sink.task for sink in group}
        body = dict.fromkeys(task for sink in group for task in self.bodies[sink])
        return [task for task in body if task in self.owners and task not in own]

    def _loop(self, sinks: list[Sink], level: int, replayed: set[Task]) -> LoopPlan:
        body = {task: None for sink in sinks for task in self.bodies[sink]}
        own = [sink.task for sink in sinks if isinstance(sink, Carried)]
        return LoopPlan(
            steps=sink_steps(sinks[0]),
            sinks=tuple(sinks),
            body=tuple(sorted(body, key=lambda task: task.eqn)),
            level=level,
            least=max(self._least(sink) for sink in sinks),
            reverse=any(_direction(task) == "reverse" for task in own),
            saves=tuple(task for task in own if task in replayed),
            replays=tuple(self._replays(sinks)),
            joined=tuple(self.joined[sink] for sink in sinks if sink in self.joined),
        )

    def _least(self, sink: Sink) -> int:
        task = sink.task
        fold = None if task.factor is None else task.factor.fold
        return -(-least_rows(self.program.eqns[task.eqn], fold) // task.scale)

    def order(self, loops: list[LoopPlan]) -> tuple[int | LoopPlan, ...]:
        """Ordinary eqns and loops, level by level."""
        keyed: list[tuple[tuple[int, int, int], int | LoopPlan]] = [
            *(((level, 0, index), index) for index, level in self._available.items()),
            *(((loop.level, 1, i), loop) for i, loop in enumerate(loops)),
        ]
        return tuple(item for _, item in sorted(keyed, key=lambda pair: pair[0]))


def _at_once(sink: Sink) -> Demand | None:
    """What an iteration may read that has just computed it: its slice, or what is the same in all of them."""
    if isinstance(sink, Stack):
        return sink.var, sink.window
    return (sink.var, None) if isinstance(sink, Same) else None


def _alike(leaf: Demand, among: Container[Demand | None]) -> Demand:
    """A demand, or that for all of the array where only that is there."""
    return leaf if leaf in among else (leaf[0], None)


def _joinable(sums: Mapping[int, Online], sinks: Iterable[Sink]) -> Iterable[Joined]:
    """The sums that could go with what they are about: both over the same streamed axis of x."""
    folds = {sink.task.eqn: sink for sink in sinks if isinstance(sink, Fold)}
    for index, online in sums.items():
        total, source = folds.get(index), folds.get(online.source)
        if total is None or source is None or (total.task.factor is None or source.task.factor is None):
            continue
        same_axis = total.task.factor.ins == source.task.factor.ins and total.task.scale == source.task.scale
        if same_axis and (total.task.factor.fold, source.task.factor.fold) == ("add", FOLDS[online.kind][1]):
            yield Joined(total, source, online)


def _direction(task: Task) -> str | None:
    """The direction that a task's steps have to run in; the first of equal values comes first."""
    if task.factor is None:
        return None
    return "forward" if task.factor.fold in ("argmax", "argmin", "top_k") else task.factor.carried


def _tied(loops: list[LoopPlan]) -> tuple[tuple[LoopPlan, ...], ...]:
    """Loops joined by what one keeps the states of and another replays."""
    ties: list[set[LoopPlan]] = []
    for loop in loops:
        joined = {loop, *(other for other in loops if set(other.saves) & set(loop.replays))}
        apart = [tie for tie in ties if tie.isdisjoint(joined)]
        for tie in ties:
            if not tie.isdisjoint(joined):
                joined |= tie
        ties = [*apart, joined]
    return tuple(tuple(loop for loop in loops if loop in tie) for tie in ties if len(tie) > 1)
