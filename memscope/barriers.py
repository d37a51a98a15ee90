"""An order of the eqns that XLA keeps: `optimization_barrier`s between the stretches that hold large values.

XLA's GPU compiler takes its own order of independent computations, and may start all of several branches before it
ends one. A barrier that everything still needed passes through makes whatever comes after it wait for all before it.
On the CPU barriers are gone before the instructions are ordered, so they steer nothing there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from .evaluate import TAG, bind, values_of
from .program import Program, is_var, nbytes

Var = jex_core.Var
Order = tuple[int, ...]

LARGE = 1 / 8
"""Of the largest intermediate: what is at least as large is worth a stretch of its own."""

MOST_BARRIERS = 64


@dataclasses.dataclass(frozen=True)
class Ordering:
    """The eqns of a program, by index, in stretches with a barrier between each two."""

    stretches: tuple[Order, ...]

    @property
    def order(self) -> Order:
        return tuple(index for stretch in self.stretches for index in stretch)


def depth_first(program: Program) -> Order:
    """The eqns in the order in which the results ask for them: one branch is done before the next one starts.

    Of an eqn's operands the one that takes most to make comes first, so that less is kept while it is made
    (Sethi and Ullman, "The Generation of Optimal Code for Arithmetic Expressions", for trees).
    """
    weight = _weights(program)
    done: dict[int, None] = {}
    wanted = [program.producer[v] for v in program.jaxpr.outvars if is_var(v) and v in program.producer]
    effects = [i for i, eqn in enumerate(program.eqns) if eqn.effects]
    pending = [(index, False) for index in reversed([*effects, *wanted])]
    while pending:
        index, ready = pending.pop()
        if index in done:
            continue
        if ready:
            done[index] = None
            continue
        pending.append((index, True))
        pending += [(i, False) for i in sorted(_makers(program, index), key=weight.__getitem__) if i not in done]
    return tuple(done)


def ordering(program: Program, order: Order) -> Ordering | None:
    """Stretches of an order, each ending where a large value is read for the last time; None where it is all one."""
    largest = max((nbytes(v) for v in program.producer if v not in program.outputs), default=0)
    large = {v for v in program.producer if v not in program.outputs and nbytes(v) >= max(1, LARGE * largest)}
    left = {v: len(program.consumers.get(v, ())) for v in large}
    stretches: list[Order] = []
    current: list[int] = []
    for index in order:
        current.append(index)
        dies = False
        for v in {a for a in program.eqns[index].invars if is_var(a) and a in left}:
            left[v] -= 1
            dies |= left[v] == 0
        if dies and not any(v in large for v in program.eqns[index].outvars):
            stretches.append(tuple(current))
            current = []
    if current:
        stretches.append(tuple(current))
    return Ordering(_fewer(stretches)) if len(stretches) > 1 else None


def run_in_order(program: Program, order: Ordering) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, its stretches kept apart by barriers; eqns are tagged."""

    def run(*args: Any) -> list[Any]:
        env: dict[Var, Any] = dict(zip(program.jaxpr.constvars, program.closed.consts, strict=True))
        env.update(zip(program.jaxpr.invars, args, strict=True))
        for number, stretch in enumerate(order.stretches):
            if number:
                _keep_apart(env, _needed(program, order.stretches[number:]), order.stretches[number - 1], program)
            for index in stretch:
                eqn = program.eqns[index]
                outs = bind(eqn, values_of(env, eqn), f"{TAG}{index}")
                env.update(zip(eqn.outvars, outs, strict=True))
        return [env[a] if is_var(a) else a.val for a in program.jaxpr.outvars]

    run.__name__ = program.name
    return run


def _keep_apart(env: dict[Var, Any], needed: Sequence[Var], before: Order, program: Program) -> None:
    """Makes what the rest needs wait for the last stretch; what it needs of that, or a result of it, goes along."""
    made = [v for index in before for v in program.eqns[index].outvars]
    through = dict.fromkeys(v for v in (*needed, *(v for v in made if v in program.outputs)) if v in env)
    arrays = [v for v in through if not jnp.issubdtype(env[v].dtype, jax.dtypes.extended)]
    for var, value in zip(arrays, jax.lax.optimization_barrier([env[v] for v in arrays]), strict=True):
        env[var] = value


def _needed(program: Program, stretches: Sequence[Order]) -> list[Var]:
    eqns = (program.eqns[index] for stretch in stretches for index in stretch)
    return list(dict.fromkeys(a for eqn in eqns for a in eqn.invars if is_var(a)))


def _fewer(stretches: Sequence[Order]) -> tuple[Order, ...]:
    """Neighbours joined, so that there are no more than `MOST_BARRIERS` between them."""
    size = -(-len(stretches) // (MOST_BARRIERS + 1))
    groups = (stretches[i : i + size] for i in range(0, len(stretches), size))
    return tuple(tuple(index for stretch in group for index in stretch) for group in groups)


def _makers(program: Program, index: int) -> list[int]:
    return [program.producer[a] for a in program.eqns[index].invars if is_var(a) and a in program.producer]


def _weights(program: Program) -> list[int]:
    """Bytes of the largest value on the way to each eqn's results."""
    weights: list[int] = []
    for index, eqn in enumerate(program.eqns):
        own = sum(nbytes(v) for v in eqn.outvars)
        weights.append(max([own, *(weights[i] for i in _makers(program, index))]))
    return weights
