"""Following one axis of one intermediate through the whole program."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from jax.extend import core as jex_core

from ..axes import At, Factor, factors
from ..axes.windows import shifted_axes
from ..program import Program, is_var

Place = tuple[jex_core.Var, int]
"""An axis of an intermediate."""

REACH_LIMIT = 100_000

SPECIAL: dict[str, Callable[[Program, int], tuple[Factor, ...]]] = {}
"""Factors that it takes more than the eqn's own shapes and params to see: (program, eqn) -> factors."""


def special(*names: str) -> Callable[[_Rule], _Rule]:
    """Registers such factors for the named primitives."""

    def register(rule: _Rule) -> _Rule:
        SPECIAL.update(dict.fromkeys(names, rule))
        return rule

    return register


_Rule = TypeVar("_Rule", bound=Callable[[Program, int], tuple[Factor, ...]])


@functools.lru_cache(maxsize=512)
def axis_map(program: Program) -> AxisMap:
    """The axis map of a program, made once."""
    return AxisMap(program)


class AxisMap:
    """The factors of every eqn of a program, indexed by the axes they join."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._factors: dict[int, tuple[Factor, ...]] = {}
        self._joints: dict[int, tuple[Factor, ...]] = {}
        self._fixed = frozenset((*program.jaxpr.invars, *program.jaxpr.constvars))

    def factors(self, index: int) -> tuple[Factor, ...]:
        """The factors that an eqn can be computed along."""
        if index not in self._factors:
            eqn = self.program.eqns[index]
            rule = SPECIAL.get(eqn.primitive.name)
            beyond = () if rule is None else rule(self.program, index)
            self._factors[index] = (*beyond, *factors(eqn))
            self._joints[index] = (*self._factors[index], *shifted_axes(eqn))
        return self._factors[index]

    def find(self, index: int, out: int, axis: int) -> Factor | None:
        """The factor behind one axis of one result; None where the axis has none."""
        for factor in self.factors(index):
            at = factor.outs[out]
            if isinstance(at, At) and at.axis == axis:
                return factor
        return None

    def _joined(self, index: int) -> tuple[Factor, ...]:
        """These, and the axes that it only shifts."""
        self.factors(index)
        return self._joints[index]

    def reach(self, seed: Place, through: jex_core.Var | None = None) -> dict[jex_core.Var, list[int]]:
        """The axes that one factor after another connects to the seed's; for each var the nearest first.

        Arguments are reached but not passed, other than `through`: two computations that only share an input
        need not be streamed together.
        """
        found: dict[jex_core.Var, list[int]] = {seed[0]: [seed[1]]}
        pending, count = deque([seed]), 0
        while pending and count < REACH_LIMIT:
            count += 1
            place = pending.popleft()
            if place[0] in self._fixed and place[0] is not through:
                continue
            for near in self._neighbours(place):
                axes = found.setdefault(near[0], [])
                if near[1] not in axes:
                    axes.append(near[1])
                    pending.append(near)
        return found

    def _neighbours(self, place: Place) -> list[Place]:
        var, axis = place
        near: list[Place] = []
        touching = self.program.consumers.get(var, ())
        producer = self.program.producer.get(var)
        for index in (*touching, *(() if producer is None else (producer,))):
            eqn = self.program.eqns[index]
            for factor in self._joined(index):
                ends = [*zip(eqn.invars, factor.ins, strict=True), *zip(eqn.outvars, factor.outs, strict=True)]
                if any(atom is var and isinstance(at, At) and at.axis == axis for atom, at in ends):
                    near += [(a, at.axis) for a, at in ends if isinstance(at, At) and is_var(a)]
        return near
