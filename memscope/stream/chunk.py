"""One iteration of a loop: the values of its tasks on one chunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core
from jax.extend import source_info_util

from .._jax_private import at_source
from ..axes import Window
from ..axes.table import RESIZE
from ..axes.windows import AT
from ..evaluate import TAG, bind
from ..program import Atom, Program, is_var
from .diagonal import local_indices
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
      steps: of the whole loop.
      lanes: the reductions that the loop makes lane by lane, and `turned`, what they read from outside.
    """

    program: Program
    env: Env
    steps: int
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
        keys: list[Read] = list(task.results(self.program))
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
        if value.shape == buffer.shape:
            return value
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
            self._values[atom, window] = self._cut(whole, window)
        return self._values[atom, window]

    def _cut(self, whole: Any, window: Window) -> Any:
        """This chunk's rows of a window; those outside the array are its first or last one, or nothing."""
        first, count = self.row(window.scale, window.shift), window.scale * self.steps
        length = whole.shape[window.axis]
        if window.shift >= 0 and window.scale * self.setting.steps + window.shift <= length:
            return rows(whole, window.axis, first, count)
        if length == 0:
            return jnp.zeros([count if a == window.axis else s for a, s in enumerate(whole.shape)], whole.dtype)
        index = lax.convert_element_type(first, np.int32) + lax.iota(np.int32, count)
        return jnp.take(whole, jnp.clip(index, 0, length - 1), window.axis, mode="clip")

    def row(self, scale: int, shift: int) -> Any:
        """The first row of a window in this chunk."""
        first = self.start if scale == 1 else self.start * scale
        return first if shift == 0 else first + shift

    def _bind(self, task: Task, values: Sequence[Any], **params: Any) -> list[Any]:
        eqn, tag = self.program.eqns[task.eqn], f"{TAG}{task.eqn}"
        name = eqn.primitive.name
        if self._depends_on_place(task):
            return self._bind_placed(task, values)
        if task.factor is None:
            return bind(eqn, values, tag, **params)
        if name == "gather":
            first = self.row(task.scale, task.shift)
            values = [values[0], local_indices(eqn, task.factor, values[1], first)]
        if name in RESIZE:
            params = {**RESIZE[name](eqn, task.factor, task.scale * self.steps), **params}
        if self.setting.form is not Form.PLAIN and name in JOINS and fusible_operand(self.program, eqn):
            return [in_blocks(eqn, values[0], tag)]
        return bind(eqn, values, tag, **params)

    def _depends_on_place(self, task: Task) -> bool:
        """True for shifted rows, and for counts and draws along an axis that no operand has."""
        if task.factor is None:
            return task.placed is not None
        return self.program.eqns[task.eqn].primitive.name in AT and not any(task.factor.ins)

    def _bind_placed(self, task: Task, values: Sequence[Any]) -> list[Any]:
        eqn = self.program.eqns[task.eqn]
        ((var, window),) = task.results(self.program)
        assert window is not None
        first = self.row(window.scale, window.shift)
        with at_source(eqn.source_info, source_info_util.current_name_stack().extend(f"{TAG}{task.eqn}")):
            rule = AT[eqn.primitive.name]
            return [rule(eqn, eqn.outvars.index(var), window, values, first, window.scale * self.steps)]

    def _operands(self, task: Task) -> list[Any]:
        return [self.read(atom, window) for atom, window in task.reads(self.program)]


def combiner(sink: Fold) -> Combiner:
    """How the partial results of a fold are joined."""
    assert sink.task.factor is not None
    assert sink.task.factor.fold is not None
    return COMBINERS[sink.task.factor.fold]


def rows(array: Any, axis: int, first: Any, count: int) -> Any:
    """`count` rows of an axis from `first` on; they lie inside the array."""
    if count == array.shape[axis]:
        return array
    sizes = list(array.shape)
    sizes[axis] = count
    return lax.dynamic_slice(array, starts(array.ndim, axis, first), sizes, allow_negative_indices=False)


def starts(rank: int, axis: int, row: Any) -> list[Any]:
    """Start indices that are zero but for one axis."""
    indices: list[Any] = [np.int32(0)] * rank
    indices[axis] = lax.convert_element_type(row, np.int32)
    return indices
