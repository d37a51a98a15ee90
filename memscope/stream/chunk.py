"""One iteration of a loop: the values of its tasks on one chunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend import core as jex_core

from ..axes import Window
from ..axes.table import RESIZE
from ..evaluate import TAG, bind
from ..program import Atom, Program, is_var
from .folds import COMBINERS, Combiner
from .lanes import Lanes, reduce_lanes
from .reductions import JOINS, Form, fusible_operand, in_blocks
from .structure import Fold, Stack
from .tasks import Read, Task

Env = dict[jex_core.Var, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """What all iterations of a loop share.

    Attributes:
      env: every value that exists outside the loop.
      lanes: the reductions that the loop makes lane by lane, and `turned`, what they read from outside.
    """

    program: Program
    env: Env
    form: Form
    lanes: Lanes = dataclasses.field(default_factory=Lanes)
    turned: Mapping[jex_core.Var, Any] = dataclasses.field(default_factory=dict)


class Chunk:
    """The values of one iteration, by var and window."""

    def __init__(self, setting: Setting, start: Any, steps: int) -> None:
        self.setting = setting
        self.program = setting.program
        self.start = start
        self.steps = steps
        self.made_by: dict[Read, Task] = {}
        self._values: dict[Read, Any] = {}

    def run(self, task: Task) -> None:
        """Computes a task and remembers its results."""
        eqn = self.program.eqns[task.eqn]
        keys: list[Read] = list(zip(eqn.outvars, task.windows() or [None] * len(eqn.outvars), strict=True))
        self.made_by.update((key, task) for key in keys)
        if task in self.setting.lanes.inner:
            return
        if task in self.setting.lanes.reductions:
            outs = [reduce_lanes(self, task)]
        else:
            outs = self._bind(task, self._operands(task))
        self._values.update(zip(keys, outs, strict=True))

    def fold(self, sink: Fold, carry: Any) -> Any:
        """The carry after this chunk."""
        task, eqn = sink.task, self.program.eqns[sink.task.eqn]
        first = self.row(task.scale, task.shift)
        return combiner(sink).step(
            eqn, carry, self._operands(task), first, lambda values, **params: self._bind(task, values, **params)
        )

    def write(self, sink: Stack, buffer: Any) -> Any:
        """The buffer with this chunk's rows written in place."""
        value = self._values[sink.var, sink.window]
        at = starts(buffer.ndim, sink.window.axis, self.row(sink.window.scale, 0))
        return lax.dynamic_update_slice(buffer, value, at, allow_negative_indices=False)

    def read(self, atom: Atom, window: Window | None) -> Any:
        """A window of an operand: computed in this iteration, or sliced from what exists outside."""
        if not is_var(atom):
            return atom.val
        if (atom, window) not in self._values:
            whole = self.setting.env[atom]
            if window is None:
                return whole
            self._values[atom, window] = rows(
                whole, window.axis, self.row(window.scale, window.shift), window.scale * self.steps
            )
        return self._values[atom, window]

    def row(self, scale: int, shift: int) -> Any:
        """The first row of a window in this chunk."""
        first = self.start if scale == 1 else self.start * scale
        return first if shift == 0 else first + shift

    def _bind(self, task: Task, values: Sequence[Any], **params: Any) -> list[Any]:
        eqn, tag = self.program.eqns[task.eqn], f"{TAG}{task.eqn}"
        if task.factor is None:
            return bind(eqn, values, tag, **params)
        name = eqn.primitive.name
        if name in RESIZE:
            params = {**RESIZE[name](eqn, task.factor, task.scale * self.steps), **params}
        if self.setting.form is not Form.PLAIN and name in JOINS and fusible_operand(self.program, eqn):
            return [in_blocks(eqn, values[0], tag)]
        outs = bind(eqn, values, tag, **params)
        return [self._shifted(task, outs[0])] if name == "iota" else outs

    def _shifted(self, task: Task, counted: Any) -> Any:
        """An iota's window counts from where the window starts."""
        eqn = self.program.eqns[task.eqn]
        (window,) = task.windows()
        if window is None or window.axis != eqn.params["dimension"]:
            return counted
        return lax.add(counted, lax.convert_element_type(self.row(window.scale, window.shift), counted.dtype))

    def _operands(self, task: Task) -> list[Any]:
        return [self.read(atom, window) for atom, window in task.reads(self.program)]


def combiner(sink: Fold) -> Combiner:
    """How the partial results of a fold are joined."""
    assert sink.task.factor is not None
    assert sink.task.factor.fold is not None
    return COMBINERS[sink.task.factor.fold]


def rows(array: Any, axis: int, first: Any, count: int) -> Any:
    """`count` rows of an axis from `first` on; they lie inside the array."""
    sizes = list(array.shape)
    sizes[axis] = count
    return lax.dynamic_slice(array, starts(array.ndim, axis, first), sizes, allow_negative_indices=False)


def starts(rank: int, axis: int, row: Any) -> list[Any]:
    """Start indices that are zero but for one axis."""
    indices: list[Any] = [np.int32(0)] * rank
    indices[axis] = lax.convert_element_type(row, np.int32)
    return indices
