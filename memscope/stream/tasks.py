"""What one iteration of a loop computes: an eqn on a window of one of its factors."""

from __future__ import annotations

import dataclasses
import functools

from jax.extend import core as jex_core

from ..axes import At, Blocked, Extent, Factor, Misaligned, Share, Window
from ..axes.factor import onto, through
from ..axes.linear import linear_factors
from ..axes.table import reason
from ..axes.windows import WINDOWS
from ..program import Atom, Program
from .diagonal import writes_counted_rows
from .reach import axis_map

Read = tuple[Atom, Extent]
"""An operand and how much of it is needed."""

SUMS = frozenset({"add", "dot"})
"""Folds whose partial results add up: they are shares of the whole."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Eqn `eqn` of the program for a part of its results.

    That is steps `[scale*start + shift, ...)` of `factor`, with `extra` more, or a window of one result
    (`placed`: which, and where) of a primitive that shifts rows, or, where neither is given, all of it.
    """

    eqn: int
    factor: Factor | None = None
    scale: int = 1
    shift: int = 0
    extra: int = 0
    placed: tuple[int, Window] | None = None

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.eqn, self.factor, self.scale, self.shift, self.extra, self.placed))

    def __hash__(self) -> int:  # kept, as a search asks for it millions of times
        return self._hash

    def reads(self, program: Program) -> list[Read]:
        """What it needs of each operand. A scatter's table is where its fold starts, not an operand of it."""
        eqn = program.eqns[self.eqn]
        invars = eqn.invars
        if self.placed is not None:
            return list(zip(invars, WINDOWS[eqn.primitive.name](eqn, *self.placed), strict=True))
        if self.factor is None:
            return [(atom, None) for atom in invars]
        reads = [(atom, self._extent(at)) for atom, at in zip(invars, self.factor.ins, strict=True)]
        return reads[1:] if self.factor.fold == "scatter" else reads

    def results(self, program: Program) -> list[tuple[jex_core.Var, Extent]]:
        """The results that it computes, and how much of each."""
        outvars = program.eqns[self.eqn].outvars
        if self.placed is not None:
            return [(outvars[self.placed[0]], self.placed[1])]
        if self.factor is None:
            return [(var, None) for var in outvars]
        if self.factor.fold in SUMS:
            return [(var, Share(self.steps)) for var in outvars]
        return [(var, self._extent(at)) for var, at in zip(outvars, self.factor.outs, strict=True)]

    @property
    def steps(self) -> int:
        """Steps of the loop that runs through all of its factor."""
        assert self.factor is not None
        return self.factor.size // self.scale

    def _extent(self, at: At | Share | None) -> Extent:
        if isinstance(at, Share):
            return Share(at.steps // self.scale)
        return None if at is None else onto(at, self.scale, self.shift, self.extra)


def tasks_for(program: Program, var: jex_core.Var, extent: Extent) -> list[Task]:
    """The tasks that compute so much of an intermediate: any one of them will do, the first is the best.

    Raises:
      Blocked: the eqn can't compute its result so.
    """
    index = program.producer[var]
    if extent is None:
        return [Task(index)]
    if isinstance(extent, Share):
        return _share_tasks(program, var, extent)
    return [_window_task(program, var, extent)]


def _window_task(program: Program, var: jex_core.Var, window: Window) -> Task:
    index = program.producer[var]
    eqn = program.eqns[index]
    out = eqn.outvars.index(var)
    factor = axis_map(program).find(index, out, window.axis)
    if factor is None:
        if eqn.primitive.name not in WINDOWS or eqn.effects:
            raise Blocked(reason(eqn))
        task = Task(index, placed=(out, window))
        task.reads(program)
        return task
    at = factor.outs[out]
    assert isinstance(at, At)
    scale, shift, extra = through(at, window)
    if factor.carried and (scale, shift, extra) != (1, 0, 0):
        raise Blocked("its steps run one after the other, so that none can be taken out of turn")
    if (shift or extra) and writes_counted_rows(eqn, factor):
        raise Blocked("it writes each of these rows once, where it counts")
    if (shift or extra) and any(isinstance(at, Share) for at in (*factor.ins, *factor.outs)):
        raise Blocked("it sums over these rows, so that each has to be taken once")
    return Task(index, factor, scale, shift, extra)


def _share_tasks(program: Program, var: jex_core.Var, share: Share) -> list[Task]:
    """A partial sum over a factor of as many steps, else what linearity makes of shares of the operands."""
    index = program.producer[var]
    eqn = program.eqns[index]
    out = eqn.outvars.index(var)
    summed = [
        Task(index, factor, factor.size // share.steps)
        for factor in axis_map(program).factors(index)
        if factor.size % share.steps == 0 and (factor.fold in SUMS or isinstance(factor.outs[out], Share))
    ]
    return [*summed, *(Task(index, factor) for factor in linear_factors(eqn, share.steps)), Task(index)]


def fold_task(index: int, factor: Factor, scale: int = 1) -> Task:
    """The task that feeds a fold `scale` steps of the factor at a time.

    Raises:
      Misaligned: the factor's size is no multiple of `scale`.
    """
    if factor.size % scale:
        raise Misaligned(scale)
    return Task(index, factor, scale)
