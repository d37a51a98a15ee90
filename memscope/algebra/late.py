"""Factors that are only known at the end: a sum is scaled, in place of each of the many terms that it is a sum of.

The gradient of `sqrt(mean(f(x) ** 2))` multiplies every term by a number that depends on all of them. As written, what
makes the terms has to run twice: for that number, then for the gradient. But all that follows is linear in the number
until the terms are summed up, so that it may as well scale the sums, and one loop does for both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core

from ..axes.factor import shape_of
from ..axes.linear import linear_operands
from ..evaluate import Env, bind, run_program
from ..program import Atom, Program, aval_of, is_var, nbytes
from ..target import Target
from ..trace import trace_flat
from .along import Eqn
from .cheaper import Compute
from .selection import is_zero

Var = jex_core.Var
Scales = tuple[tuple[Var, str], ...]
"""Numbers, and whether each is to be a factor ("mul") or a divisor ("div"), in turn."""


def scale_late(program: Program, target: Target) -> tuple[Program, tuple[int, ...]]:
    """The program with late factors applied as late as can be, and the eqns whose results are scaled then.

    The program itself, and none, where there are no late factors.
    """
    delay = _Delay(program)
    if not delay.scales:
        return program, ()
    flat = trace_flat(run_program(program, delay.instead()), program, target.platform)
    return program.rewritten(flat), delay.scaled


class _Delay:
    """What is computed without its late factors, and where they come in at last.

    Attributes:
      scales: of each intermediate that is computed without some; its own value is needed nowhere.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._at_least = program.large_bytes
        self._sources = {v for v in self._late_vars() if not shape_of(v)}
        self.scales = self._settled()
        worth = {source for v, scales in self.scales.items() if nbytes(v) >= self._at_least for source, _ in scales}
        if worth != self._sources:
            self._sources = worth
            self.scales = self._settled() if worth else {}

    def _late_vars(self) -> set[Var]:
        """Those that depend on a large intermediate."""
        late: set[Var] = set()
        for eqn in self._program.eqns:
            operands = [a for a in eqn.invars if is_var(a)]
            if any(a in late or (a in self._program.producer and nbytes(a) >= self._at_least) for a in operands):
                late.update(eqn.outvars)
        return late

    def _settled(self) -> dict[Var, Scales]:
        """The scales that can be put off: what anything needs as it is, is scaled where it is made."""
        whole = set(self._program.outputs)
        while True:
            scales = self._put_off(whole)
            needed = {
                a
                for eqn in self._program.eqns
                if self._taken(eqn, scales) is None
                for a in eqn.invars
                if is_var(a) and a in scales
            }
            if not needed:
                return scales
            whole |= needed

    def _put_off(self, whole: set[Var]) -> dict[Var, Scales]:
        scales: dict[Var, Scales] = {}
        for eqn in self._program.eqns:
            taken = self._taken(eqn, scales)
            if taken is not None and whole.isdisjoint(eqn.outvars):
                scales.update(dict.fromkeys(eqn.outvars, taken))
        return scales

    def _taken(self, eqn: Eqn, scales: Mapping[Var, Scales]) -> Scales | None:
        """The scales of an eqn's results, where it can be computed without them; None where it has none, or can't."""
        if not all(_scales_exactly(v) for v in eqn.outvars):
            return None
        held = _held(eqn, scales)
        own = self._own_scale(eqn, held)
        if not held:
            return own
        given = {scales[eqn.invars[i]] for i in held}  # type: ignore[index]
        if len(given) > 1 or (_takes_parts(eqn) and any(_is_complex(number) for number, _ in next(iter(given)))):
            return None
        for operands in linear_operands(eqn):
            rest = set(operands) - held
            if held <= set(operands) and all(is_zero(self._program, eqn.invars[i]) for i in rest):
                return (*given.pop(), *(own or ()))
        return None

    def _own_scale(self, eqn: Eqn, held: set[int]) -> Scales | None:
        """The late number that an eqn scales its other operand by, or spreads over an array."""
        name, operands = eqn.primitive.name, eqn.invars
        if name == "broadcast_in_dim" and self._is_source(operands[0]):
            return ((operands[0], "mul"),) if 0 not in held else None  # type: ignore[return-value]
        if name in ("mul", "div"):
            for i in (1, 0)[: 2 if name == "mul" else 1]:
                if i not in held and self._is_source(operands[i]) and shape_of(operands[1 - i]):
                    return ((operands[i], name),)  # type: ignore[return-value]
        return None

    def _is_source(self, atom: Atom) -> bool:
        return is_var(atom) and atom in self._sources

    # The program without them.

    def instead(self) -> dict[int, Compute]:
        """By the index of each eqn that is computed otherwise, how."""
        found: dict[int, Compute] = {}
        for index, eqn in enumerate(self._program.eqns):
            taken = self._taken(eqn, self.scales)
            if taken is None:
                continue
            own = self._own_scale(eqn, _held(eqn, self.scales))
            applied = () if self.scales.keys() >= {*eqn.outvars} else taken
            if own or applied:
                found[index] = functools.partial(_compute, eqn, own, applied)
        return found

    @property
    def scaled(self) -> tuple[int, ...]:
        """The eqns whose results are scaled at last."""
        eqns = enumerate(self._program.eqns)
        return tuple(i for i, eqn in eqns if self._taken(eqn, self.scales) and not self.scales.keys() >= {*eqn.outvars})


def _held(eqn: Eqn, scales: Mapping[Var, Scales]) -> set[int]:
    """The numbers of the operands that are computed without some factor."""
    return {i for i, a in enumerate(eqn.invars) if is_var(a) and a in scales}


def _scales_exactly(atom: Atom) -> bool:
    """True for types whose range is wide enough to leave a factor out for a while."""
    dtype = aval_of(atom).dtype
    return bool(jnp.issubdtype(dtype, jnp.inexact)) and jnp.finfo(dtype).maxexp >= jnp.finfo(jnp.float32).maxexp


def _is_complex(atom: Atom) -> bool:
    return bool(jnp.issubdtype(aval_of(atom).dtype, jnp.complexfloating))


def _takes_parts(eqn: Eqn) -> bool:
    """True for what is linear in real factors only."""
    return eqn.primitive.name == "conj" or not all(map(_is_complex, eqn.outvars))


def _compute(eqn: Eqn, own: Scales | None, applied: Scales, env: Env, values: Sequence[Any]) -> Sequence[Any]:
    """The results of an eqn without its own late number, then scaled by those that are due."""
    outs = bind(eqn, values) if own is None else [_without(eqn, own[0][0], values)]
    for number, how in applied:
        scale = lax.mul if how == "mul" else lax.div
        outs = [scale(out, lax.convert_element_type(env[number], out.dtype)) for out in outs]
    return outs


def _without(eqn: Eqn, number: Var, values: Sequence[Any]) -> Any:
    """What an eqn makes of its other operand, had the late number been one."""
    aval = aval_of(eqn.outvars[0])
    if eqn.primitive.name == "broadcast_in_dim":
        return lax.full(aval.shape, 1, aval.dtype)
    return values[1 - [a is number for a in eqn.invars].index(True)]
