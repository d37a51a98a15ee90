"""One iteration of a loop: the values of its tasks on one chunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core
from jax.extend import source_info_util

from .._jax_private import at_source
from ..axes import Extent, Share, Window
from ..axes.convolution import convolve
from ..axes.table import RESIZE
from ..axes.windows import AT
from ..evaluate import TAG, bind
from ..program import Atom, Program, is_var
from .carried import SEQUENTIAL, State
from .control import FRAMES, is_over_time, run_flow
from .diagonal import local_indices
from .dots import multiply
from .folds import COMBINERS, Combiner, Part
from .lanes import Lanes, reduce_lanes
from .reductions import JOINS, Form, fusible_operand, in_blocks
from .structure import Fold
from .tasks import Read, Task

Env = dict[jex_core.Var, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """What all iterations of a loop share.

    Attributes:
      env: every value that exists outside the loop.
      steps: of the whole loop.
      lanes: the reductions that the loop makes lane by lane, and `turned`, what they read from outside.
      tagged: whether eqns are tagged with their index; not inside the body of another eqn.
    """

    program: Program
    env: Env
    steps: int
    form: Form
    lanes: Lanes = dataclasses.field(default_factory=Lanes)
    turned: Mapping[jex_core.Var, Any] = dataclasses.field(default_factory=dict)
    tagged: bool = True

    def tag(self, index: int) -> str | None:
        """The name of an eqn in the compiled HLO."""
        return f"{TAG}{index}" if self.tagged else None


class Chunk:
    """The values of one iteration, by var and extent.

    Attributes:
      states: for each carried task its state before this chunk; after `run`, that after it.
    """

    def __init__(self, setting: Setting, start: Any, steps: int, states: Mapping[Task, State] | None = None) -> None:
        self.setting = setting
        self.program = setting.program
        self.start = start
        self.steps = steps
        self.states = dict(states or {})
        self.made_by: dict[Read, Task] = {}
        self._values: dict[Read, Any] = {}
        self._assumed: set[jex_core.Var] = set()

    def run(self, task: Task) -> None:
        """Computes a task and remembers its results."""
        keys: list[Read] = list(task.results(self.program))
        self.made_by.update((key, task) for key in keys)
        if task in self.setting.lanes.inner or all(var in self._assumed for var, _ in keys):
            return
        if task in self.setting.lanes.reductions:
            outs = [reduce_lanes(self, task)]
        elif task in self.states:
            outs = self._step(task)
        else:
            outs = self._bind(task, self._operands(task))
        self._values.update(zip(keys, outs, strict=True))

    def _step(self, task: Task) -> list[Any]:
        """The results of a carried task on this chunk."""
        eqn = self.program.eqns[task.eqn]
        step = SEQUENTIAL[eqn.primitive.name].step
        tag = self.setting.tag(task.eqn)
        outs, self.states[task] = step(eqn, task, self._operands(task), self.states[task], self.steps, tag)
        return outs

    def inside(self, body: Program, steps: int, task: Task) -> Chunk:
        """This chunk as the body of one of its eqns sees it: in steps of the factor that goes through the body."""
        env: Env = dict(zip(body.jaxpr.constvars, body.closed.consts, strict=True))
        setting = Setting(body, env, steps, self.setting.form, tagged=False)
        return Chunk(setting, self.row(task.scale, task.shift), self._steps_of(task))

    def take(self, given: Iterable[tuple[jex_core.Var, Extent, Any]]) -> None:
        """Takes values from outside: whole ones, and what there is of others."""
        for var, extent, value in given:
            if extent is None:
                self.setting.env[var] = value
            else:
                self._values[var, extent] = value

    def assume(self, values: Env) -> None:
        """Takes whole values for those that are not known before the loop ends."""
        self._assumed |= values.keys()
        self._values.update(((var, None), value) for var, value in values.items())

    def value(self, var: jex_core.Var, extent: Extent) -> Any:
        """What this iteration has computed of a var."""
        return self._values[var, extent]

    def fold(self, sink: Fold, carry: Any) -> Any:
        """The carry after this chunk."""
        task, eqn = sink.task, self.program.eqns[sink.task.eqn]
        assert task.factor is not None
        first = self.row(task.scale, task.shift)
        part = Part(
            eqn, task.factor, self._operands(task), first, lambda values, **params: self._bind(task, values, **params)
        )
        return combiner(sink).step(part, carry)

    def write(self, var: jex_core.Var, window: Window, buffer: Any, step: Any) -> Any:
        """The buffer with this chunk's rows written in place, as those of the buffer's steps from `step` on."""
        value = self._values[var, window]
        if value.shape == buffer.shape:
            return value
        at = starts(buffer.ndim, window.axis, row(step, window.scale))
        return lax.dynamic_update_slice(buffer, value, at, allow_negative_indices=False)

    def rows_of(self, buffer: Any, window: Window, step: Any) -> Any:
        """As many rows as this chunk has, of a buffer's steps from `step` on."""
        return rows(buffer, window.axis, row(step, window.scale), self._rows_of(window))

    def read(self, atom: Atom, extent: Extent) -> Any:
        """So much of an operand: computed in this iteration, or taken from what exists whole."""
        if not is_var(atom):
            return self._share(atom.val) if isinstance(extent, Share) else atom.val
        if (atom, extent) not in self._values:
            whole = self._values[atom, None] if (atom, None) in self._values else self.setting.env[atom]
            if extent is None:
                return whole
            self._values[atom, extent] = self._share(whole) if isinstance(extent, Share) else self._cut(whole, extent)
        return self._values[atom, extent]

    def _share(self, whole: Any) -> Any:
        """The share of something that exists whole: all of it for the first steps, nothing for the others."""
        return jnp.where(self.start == 0, whole, jnp.zeros_like(whole))

    def _cut(self, whole: Any, window: Window) -> Any:
        """This chunk's rows of a window; those outside the array are its first or last one, or nothing."""
        first, count = self.row(window.scale, window.shift), self._rows_of(window)
        length = whole.shape[window.axis]
        if window.shift >= 0 and window.scale * self.setting.steps + window.shift + window.extra <= length:
            return rows(whole, window.axis, first, count)
        if length == 0:
            return jnp.zeros([count if a == window.axis else s for a, s in enumerate(whole.shape)], whole.dtype)
        index = lax.convert_element_type(first, np.int32) + lax.iota(np.int32, count)
        return jnp.take(whole, jnp.clip(index, 0, length - 1), window.axis, mode="clip")

    def _rows_of(self, window: Window) -> int:
        return window.scale * self.steps + window.extra

    def _steps_of(self, task: Task) -> int:
        """Steps of its factor that a task takes in this chunk."""
        return task.scale * self.steps + task.extra

    def row(self, scale: int, shift: int) -> Any:
        """The first row of a window in this chunk."""
        return row(self.start, scale, shift)

    def _bind(self, task: Task, values: Sequence[Any], **params: Any) -> list[Any]:
        eqn, tag = self.program.eqns[task.eqn], self.setting.tag(task.eqn)
        name = eqn.primitive.name
        if self._depends_on_place(task):
            return self._bind_placed(task, values)
        if task.factor is None or (any(isinstance(at, Share) for at in task.factor.ins) and name not in FRAMES):
            return self._bind_plain(task, values, params)
        if name in FRAMES:
            return self._through(task, values)
        if name == "gather" or name.startswith("scatter"):
            first = self.row(task.scale, task.shift)
            values = [values[0], local_indices(eqn, task.factor, values[1], first), *values[2:]]
        if name in RESIZE:
            params = {**RESIZE[name](eqn, task.factor, self._steps_of(task)), **params}
        if name == "dot_general":
            return multiply(eqn, values, tag, **params)
        if self.setting.form is not Form.PLAIN and name in JOINS and fusible_operand(self.program, eqn):
            return [in_blocks(eqn, values[0], tag)]
        return self._bind_plain(task, values, params)

    def _bind_plain(self, task: Task, values: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
        eqn, tag = self.program.eqns[task.eqn], self.setting.tag(task.eqn)
        if eqn.primitive.name != "conv_general_dilated":
            return bind(eqn, values, tag, **params)

        def convolution(lhs: Any, rhs: Any, dims: lax.ConvDimensionNumbers) -> Any:
            return bind(eqn, [lhs, rhs], tag, **params, dimension_numbers=dims)[0]

        lhs, rhs = values
        with self._at(task):
            return [convolve(eqn, lhs, rhs, convolution)]

    def _through(self, task: Task, values: Sequence[Any]) -> list[Any]:
        """The results of a loop or branch: of a part of its steps, or of a part of what its steps compute."""
        eqn = self.program.eqns[task.eqn]
        assert task.factor is not None
        if is_over_time(eqn, task.factor):
            return bind(eqn, values, self.setting.tag(task.eqn), length=self._steps_of(task))
        with self._at(task):
            return run_flow(self, task, values)

    def _at(self, task: Task) -> Any:
        """The source line and the name that a task's eqns carry."""
        stack = source_info_util.current_name_stack()
        tag = self.setting.tag(task.eqn)
        return at_source(self.program.eqns[task.eqn].source_info, stack if tag is None else stack.extend(tag))

    def _depends_on_place(self, task: Task) -> bool:
        """True for shifted rows, and for counts and draws along an axis that no operand has."""
        if task.factor is None:
            return task.placed is not None
        return self.program.eqns[task.eqn].primitive.name in AT and not any(task.factor.ins)

    def _bind_placed(self, task: Task, values: Sequence[Any]) -> list[Any]:
        eqn = self.program.eqns[task.eqn]
        ((var, window),) = task.results(self.program)
        assert isinstance(window, Window)
        first = self.row(window.scale, window.shift)
        with self._at(task):
            rule = AT[eqn.primitive.name]
            return [rule(eqn, eqn.outvars.index(var), window, values, first, self._rows_of(window))]

    def _operands(self, task: Task) -> list[Any]:
        return [self.read(atom, window) for atom, window in task.reads(self.program)]


def combiner(sink: Fold) -> Combiner:
    """How the partial results of a fold are joined."""
    assert sink.task.factor is not None
    assert sink.task.factor.fold is not None
    return COMBINERS[sink.task.factor.fold]


def row(step: Any, scale: int, shift: int = 0) -> Any:
    """The first row of a window at a step."""
    first = step if scale == 1 else step * scale
    return first if shift == 0 else first + shift


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
