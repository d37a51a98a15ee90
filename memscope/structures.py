"""Which intermediates go together: grown from the largest ones, along each of their axes, by the axis rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax.extend import core as jex_core

from .axes.factor import shape_of
from .program import LARGE, Program, is_var, nbytes
from .stream import Closure, Obstacle, Streaming
from .stream.structure import sink_vars

Var = jex_core.Var
Hints = dict[Var, list[int]]

SEEDS = 6

WORTH_SHARING = 1 / 4
"""An intermediate of at most this fraction of the seed is kept rather than computed in two loops."""


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """Loops without chunks: what is streamed, grown seed by seed."""

    streaming: Streaming
    wanted: frozenset[Var]
    hints: Mapping[Var, Sequence[int]]


class Structures:
    """The structures of one program, each set of them grown once.

    Attributes:
      obstacles: what was in the way of an intermediate, so far as they have been grown.
    """

    def __init__(self, program: Program, live: Sequence[Var], progress: Callable[[str], None]) -> None:
        self.obstacles: dict[Var, Obstacle] = {}
        self._program = program
        self._live = live
        self._progress = progress
        self._closure = Closure(program)
        self._grown: dict[Structure | None, list[Structure]] = {}

    def grow(self, state: Structure | None) -> list[Structure]:
        """The structures one seed beyond `state`."""
        if state not in self._grown:
            self._grown[state] = list(self._grow(state))
        return self._grown[state]

    def _grow(self, state: Structure | None) -> Iterator[Structure]:
        self._progress("following the largest intermediates along their axes")
        seen: set[tuple[frozenset[Var], tuple[Any, ...]]] = set()
        covered: set[tuple[Var, int]] = set()
        for var in self._seed_vars(state):
            for axis, size in enumerate(shape_of(var)):
                if size < 2 or (var, axis) in covered:
                    continue
                reached = self._closure.axes.reach((var, axis))
                covered.update((v, a) for v, axes in reached.items() for a in axes)
                for structure in self._variants(state, var, reached):
                    key = (structure.streaming.streamed, structure.streaming.loops)
                    if structure.streaming.loops and key not in seen:
                        seen.add(key)
                        yield structure

    def _variants(self, state: Structure | None, seed: Var, reached: Hints) -> Iterator[Structure]:
        """What a seed reaches, each large array cut one way where that is a choice; then less of it."""
        wanted = frozenset(reached) | (state.wanted if state else frozenset())
        hints = _joined(state.hints if state else {}, reached)
        first = self._structure(wanted, hints, one_way=True)
        choices = [first]
        if any(obstacle.across for obstacle in first.streaming.obstacles):
            choices.append(self._structure(wanted, hints, one_way=False))
        for structure in choices:
            yield structure
            at_most = int(nbytes(seed) * WORTH_SHARING)
            for kept in (awaited_sources(structure.streaming, at_most), shared_boundary(structure.streaming, at_most)):
                if kept:
                    yield self._structure(wanted - kept, hints, structure.streaming.one_way)
        if len(first.streaming.loops) > 1:
            large = large_vars(wanted & first.streaming.streamed)
            yield self._structure(large, hints, one_way=True)

    def _structure(self, wanted: frozenset[Var], hints: Hints, one_way: bool) -> Structure:
        streaming = self._closure.build(wanted, hints, one_way)
        for obstacle in streaming.obstacles:
            self.obstacles.setdefault(obstacle.var, obstacle)
        return Structure(streaming, wanted, hints)

    def _seed_vars(self, state: Structure | None) -> list[Var]:
        """The largest intermediates that still exist whole: those alive at the peak first."""
        streamed = state.streaming.streamed if state else frozenset()
        gone = streamed | self._closure.generated | self._program.outputs
        by_size = sorted((v for eqn in self._program.eqns for v in eqn.outvars), key=nbytes, reverse=True)
        return [v for v in dict.fromkeys([*self._live[:SEEDS], *by_size[: 4 * SEEDS]]) if v not in gone][: 2 * SEEDS]


def shared_boundary(streaming: Streaming, at_most: int) -> set[Var]:
    """Small streamed intermediates that a later loop reads and an earlier one computes, or could compute.

    Keeping them whole costs their bytes and saves computing all that leads to them again.
    """
    program, levels = streaming.program, _levels(streaming)
    made: set[Var] = set()
    boundary: set[Var] = set()
    for loop in sorted(streaming.loops, key=lambda loop: loop.level):
        for task in loop.body:
            eqn = program.eqns[task.eqn]
            small = [a for a in eqn.invars if is_var(a) and a in streaming.streamed and nbytes(a) <= at_most]
            if max((levels.get(a, 0) for a in eqn.invars if is_var(a)), default=0) == loop.level:
                boundary.update(a for a in small if levels[a] < loop.level)
            elif not any(v in made for v in eqn.outvars):
                boundary.update(a for a in small if a in made)
        made |= {v for task in loop.body for v in program.eqns[task.eqn].outvars} & streaming.streamed
    return boundary


def _levels(streaming: Streaming) -> dict[Var, int]:
    """For each intermediate the level of loops from which on it can be had: one more than that which leaves it."""
    left = {v: loop.level + 1 for loop in streaming.loops for sink in loop.sinks for v in sink_vars(sink)}
    levels: dict[Var, int] = {}
    for eqn in streaming.program.eqns:
        level = max((levels.get(a, 0) for a in eqn.invars if is_var(a)), default=0)
        levels.update((v, left.get(v, level)) for v in eqn.outvars)
    return levels


def awaited_sources(streaming: Streaming, at_most: int) -> set[Var]:
    """Small streamed intermediates that lead, without large ones, to what an early loop leaves for later ones.

    Such as the weights that a loss is divided by the sum of: taken before all loops, nothing has to wait for it.
    """
    program, streamed = streaming.program, streaming.streamed
    last = max((loop.level for loop in streaming.loops), default=0)
    early = [sink for loop in streaming.loops if loop.level < last for sink in loop.sinks]
    sources: set[Var] = set()
    for sink in early:
        leading: set[Var] = set()
        waiting = [a for a in program.eqns[sink.task.eqn].invars if is_var(a) and a in streamed]
        while waiting:
            var = waiting.pop()
            if var not in leading:
                leading.add(var)
                eqn = program.eqns[program.producer[var]]
                waiting += [a for a in eqn.invars if is_var(a) and a in streamed]
        if all(nbytes(var) <= at_most for var in leading):
            sources |= leading
    return sources


def large_vars(streamed: frozenset[Var]) -> frozenset[Var]:
    """The large ones among these: what is made from them is kept, rather than computed in each loop that reads it."""
    least = LARGE * max((nbytes(v) for v in streamed), default=0)
    return frozenset(v for v in streamed if nbytes(v) >= least)


def _joined(old: Mapping[Var, Iterable[int]], new: Mapping[Var, Iterable[int]]) -> Hints:
    joined: Hints = {v: list(axes) for v, axes in old.items()}
    for v, axes in new.items():
        known = joined.setdefault(v, [])
        known += [axis for axis in axes if axis not in known]
    return joined
