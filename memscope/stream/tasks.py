"""What one iteration of a loop computes: an eqn on a window of one of its factors."""

from __future__ import annotations

import dataclasses

from jax.extend import core as jex_core

from ..axes import At, Blocked, Factor, Misaligned, Window
from ..axes.factor import onto, through
from ..axes.table import reason
from ..axes.windows import WINDOWS
from ..program import Atom, Program
from .reach import axis_map

Read = tuple[Atom, Window | None]
"""An operand and the window of it that is needed; None for all of it."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Eqn `eqn` of the program for a part of its results.

    That is steps `[scale*start + shift, ...)` of `factor`, or a window of one result (`placed`: which, and
    where) of a primitive that shifts rows, or, where neither is given, all of it.
    """

    eqn: int
    factor: Factor | None = None
    scale: int = 1
    shift: int = 0
    placed: tuple[int, Window] | None = None

    def reads(self, program: Program) -> list[Read]:
        """What it needs of each operand. A scatter's table is where its fold starts, not an operand of it."""
        eqn = program.eqns[self.eqn]
        invars = eqn.invars
        if self.placed is not None:
            return list(zip(invars, WINDOWS[eqn.primitive.name](eqn, *self.placed), strict=True))
        if self.factor is None:
            return [(atom, None) for atom in invars]
        reads = [(atom, self._window(at)) for atom, at in zip(invars, self.factor.ins, strict=True)]
        return reads[1:] if self.factor.fold == "scatter" else reads

    def results(self, program: Program) -> list[tuple[jex_core.Var, Window | None]]:
        """The results that it computes, each with its window; None for all of it."""
        outvars = program.eqns[self.eqn].outvars
        if self.placed is not None:
            return [(outvars[self.placed[0]], self.placed[1])]
        if self.factor is None:
            return [(var, None) for var in outvars]
        return [(var, self._window(at)) for var, at in zip(outvars, self.factor.outs, strict=True)]

    def _window(self, at: At | None) -> Window | None:
        return None if at is None else onto(at, self.scale, self.shift)


def task_for(program: Program, var: jex_core.Var, window: Window | None) -> Task:
    """The task that computes a window of an intermediate.

    Raises:
      Blocked: the eqn can't compute its result window by window along that axis.
    """
    index = program.producer[var]
    if window is None:
        return Task(index)
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
    assert at is not None
    scale, shift = through(at, window)
    return Task(index, factor, scale, shift)


def fold_task(index: int, factor: Factor, scale: int = 1) -> Task:
    """The task that feeds a fold `scale` steps of the factor at a time.

    Raises:
      Misaligned: the factor's size is no multiple of `scale`.
    """
    if factor.size % scale:
        raise Misaligned(scale)
    return Task(index, factor, scale)
