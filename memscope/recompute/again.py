"""A program in which some values are computed again, late, and not shared with the first time.

XLA finds that two instructions compute the same and keeps one of them; and it may start the second as early as the
first. So the second reads an operand that depends on a late value. On a GPU an `optimization_barrier` does that, as
it does in `jax.checkpoint`. XLA CPU drops barriers before it orders instructions, so there the operand is
selected by a condition that is always true, but that takes the late value to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from .._jax_private import at_source
from ..evaluate import TAG, bind
from ..program import Program, aval_of, is_var, nbytes
from .kept import Cut

Var = jex_core.Var
Env = dict[Var, Any]

LOOK_BACK = 8
"""Eqns before the one that reads a value, where a late value to wait for is looked for."""


def run_again(program: Program, choice: Cut, platform: str) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, with what the late eqns read of `choice.again` made again."""

    def run(*args: Any) -> list[Any]:
        env: Env = dict(zip(program.jaxpr.constvars, program.closed.consts, strict=True))
        env.update(zip(program.jaxpr.invars, args, strict=True))
        second = _Second(program, choice, env, platform)
        for i, eqn in enumerate(program.eqns):
            if i >= choice.late:
                second.make_for(i)
            values = [second.made.get(a, env[a]) if is_var(a) else a.val for a in eqn.invars]
            env.update(zip(eqn.outvars, bind(eqn, values, f"{TAG}{i}"), strict=True))
        return [env[a] if is_var(a) else a.val for a in program.jaxpr.outvars]

    run.__name__ = program.name
    return run


class _Second:
    """What was computed again so far.

    Attributes:
      made: by the var that it is in place of.
    """

    def __init__(self, program: Program, choice: Cut, env: Mapping[Var, Any], platform: str) -> None:
        self.made: Env = {}
        self._program, self._choice, self._env, self._platform = program, choice, env, platform
        self._conditions: Env = {}

    def make_for(self, index: int) -> None:
        """Makes what a late eqn reads and was not kept, in the order in which it was made the first time."""
        cone = self._cone(index)
        late = self._late(index) if cone else None
        for each in cone:
            eqn = self._program.eqns[each]
            values = self._behind(late, eqn)
            self.made.update(zip(eqn.outvars, bind(eqn, values, f"{TAG}{each}"), strict=True))

    def _cone(self, index: int) -> list[int]:
        cone: set[int] = set()
        pending = [index]
        while pending:
            for a in self._program.eqns[pending.pop()].invars:
                if is_var(a) and a in self._choice.again and a not in self.made:
                    maker = self._program.producer[a]
                    if maker not in cone:
                        cone.add(maker)
                        pending.append(maker)
        return sorted(cone)

    def _late(self, index: int) -> Var | None:
        """A value that the eqn has to wait for anyhow, made as late as can be."""
        producer, eqns = self._program.producer, self._program.eqns
        own = [a for a in eqns[index].invars if is_var(a) and producer.get(a, -1) >= self._choice.late]
        before = [v for eqn in eqns[max(0, index - LOOK_BACK) : index] for v in eqn.outvars]
        candidates = [v for v in (*before, *sorted(own, key=producer.__getitem__)) if _is_array(v)]
        return candidates[-1] if candidates else None

    def _behind(self, late: Var | None, eqn: jex_core.JaxprEqn) -> list[Any]:
        """The operands of an eqn; where all of them were kept, the smallest one waits for the value `late`."""
        values = [self.made.get(a, self._env[a]) if is_var(a) else a.val for a in eqn.invars]
        kept = [i for i, a in enumerate(eqn.invars) if is_var(a) and _is_array(a)]
        if late is not None and kept and not any(is_var(a) and a in self.made for a in eqn.invars):
            smallest = min(kept, key=lambda i: nbytes(eqn.invars[i]))
            with at_source(eqn.source_info):
                values[smallest] = self._waiting(values[smallest], late)
        return values

    def _waiting(self, value: Any, late: Var) -> Any:
        if self._platform != "cpu":
            return jax.lax.optimization_barrier((value, self._env[late]))[0]
        if late not in self._conditions:
            self._conditions[late] = _always_true(self._env[late])
        return jnp.where(self._conditions[late], value, jnp.zeros_like(value))


def _always_true(late: Any) -> Any:
    """A condition that XLA can't see through: NaN is not equal to itself."""
    one = jax.lax.slice(late, [0] * late.ndim, [1] * late.ndim).reshape(())
    number = (one.real if jnp.iscomplexobj(one) else one).astype(jnp.float32)
    return (number == number) | (number != number)


def _is_array(var: Var) -> bool:
    aval = aval_of(var)
    return not jnp.issubdtype(aval.dtype, jax.dtypes.extended) and math.prod(aval.shape) > 0
