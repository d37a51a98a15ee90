"""The rule table: primitive name -> its factors, and how its params shrink with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend import core as jex_core

from .factor import At, Factor

Eqn = jex_core.JaxprEqn
FactorRule = Callable[[Eqn], Sequence[Factor]]
ResizeRule = Callable[[Eqn, Factor, int], dict[str, Any]]

FACTORS: dict[str, FactorRule] = {}
"""Every primitive that can be streamed along some axis."""

RESIZE: dict[str, ResizeRule] = {}
"""Params that name a size: (eqn, factor, steps) -> the params of the smaller eqn."""

WHY_BLOCKED: dict[str, str] = {}
"""Why an axis without a factor can't be streamed: the end of a sentence that begins "because"."""


def rule(*names: str, why: str | None = None) -> Callable[[FactorRule], FactorRule]:
    """Registers the factors of the named primitives, and what to say of the axes that have none."""

    def register(factors: FactorRule) -> FactorRule:
        for name in names:
            FACTORS[name] = factors
            if why is not None:
                WHY_BLOCKED[name] = why
        return factors

    return register


def resize(*names: str) -> Callable[[ResizeRule], ResizeRule]:
    """Registers how the params of the named primitives follow the window."""

    def register(params: ResizeRule) -> ResizeRule:
        RESIZE.update(dict.fromkeys(names, params))
        return params

    return register


def blocked(why: str, *names: str) -> None:
    """Registers primitives that no axis can be streamed through, with the reason."""
    WHY_BLOCKED.update(dict.fromkeys(names, why))


def factors(eqn: Eqn) -> Sequence[Factor]:
    """The factors of an eqn; none for a primitive without a rule or with side effects."""
    table_rule = FACTORS.get(eqn.primitive.name)
    return () if table_rule is None or eqn.effects else table_rule(eqn)


def reason(eqn: Eqn) -> str:
    """Why some axis of this eqn has no factor."""
    if eqn.effects:
        return f"{eqn.primitive.name} has side effects, which run once and in order"
    name = eqn.primitive.name
    return WHY_BLOCKED.get(name, f"{name} has no rule for streaming along this axis")


def mapped(size: int, ins: Sequence[int | None], outs: Sequence[int | None]) -> Factor:
    """A factor with one row a step, from plain axis numbers."""
    return Factor(size, tuple(map(_at, ins)), tuple(map(_at, outs)))


def folded(size: int, ins: Sequence[int | None], outs: int, fold: str) -> Factor:
    """A factor that all `outs` results have summed, maximised, ... away."""
    return Factor(size, tuple(map(_at, ins)), (None,) * outs, fold)


def _at(axis: int | None) -> At | None:
    return None if axis is None else At(int(axis))
