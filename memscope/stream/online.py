"""Sums of exp(x - m), m the maximum of x, in the same pass as that maximum.

A softmax or a logsumexp along the streamed axis would take two loops, the second of which computes x again. Here the
sum is kept below the maximum so far, and is scaled down when that rises (Milakov and Gimelshein, "Online normalizer
calculation for softmax", arXiv 1805.02867, section 3).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core

from ..axes.elementwise import ELEMENTWISE
from ..axes.factor import shape_of
from ..evaluate import bind
from ..program import Atom, Program, is_var

Var = jex_core.Var
Eqn = jex_core.JaxprEqn

_VIEWS = frozenset({"broadcast_in_dim", "reshape", "squeeze", "expand_dims"})


@dataclasses.dataclass(frozen=True)
class Online:
    """A sum that its maximum is found together with.

    Attributes:
      maximum: the eqn of the maximum, and `result`, its result.
      shift: what is subtracted from x: the maximum, or that where it is finite.
      views: the same under other shapes, down to `shift`.
      cone: the eqns that make all of these of the maximum.
      known: the maximum and the results of the cone.
    """

    maximum: int
    result: Var
    shift: Var
    views: tuple[Var, ...]
    cone: tuple[int, ...]
    known: frozenset[Var]

    @property
    def guards(self) -> frozenset[Var]:
        """What an iteration may make of the maximum for itself: all that is known but that."""
        return self.known - {self.result}


def online_sums(program: Program) -> dict[int, Online]:
    """All such sums of a program, by their eqns."""
    found = {}
    for index, eqn in enumerate(program.eqns):
        if eqn.primitive.name == "reduce_sum" and (online := _online(program, eqn)) is not None:
            found[index] = online
    return found


def _online(program: Program, total: Eqn) -> Online | None:
    widened = _maker(program, total.invars[0], "convert_element_type")
    exponential = _maker(program, total.invars[0] if widened is None else widened.invars[0], "exp")
    difference = None if exponential is None else _maker(program, exponential.invars[0], "sub")
    if difference is None:
        return None
    x, *views = difference.invars[0], *_views(program, difference)
    if not views or not is_var(x):
        return None
    for index in program.consumers[x]:
        eqn = program.eqns[index]
        if eqn.primitive.name == "reduce_max" and eqn.params["axes"] == total.params["axes"]:
            cone = _cone(program, views[0], eqn.outvars[0])
            if cone is not None:
                known = frozenset((eqn.outvars[0], *(v for i in cone for v in program.eqns[i].outvars)))
                return Online(index, eqn.outvars[0], views[-1], tuple(views), cone, known)
    return None


def _views(program: Program, difference: Eqn) -> list[Var]:
    """What is subtracted, down to the first of its shapes; that it is repeated along x is not one of them."""
    views: list[Var] = []
    atom = difference.invars[1]
    while is_var(atom):
        if not views or _size(atom) == _size(views[-1]):
            views.append(atom)
        else:
            views = [atom]
        index = program.producer.get(atom)
        if index is None or program.eqns[index].primitive.name not in _VIEWS:
            break
        atom = program.eqns[index].invars[0]
    return views


def _size(atom: Atom) -> int:
    return math.prod(shape_of(atom))


def _maker(program: Program, atom: Atom, name: str) -> Eqn | None:
    """The eqn that makes `atom`, if it is of that primitive."""
    index = program.producer.get(atom) if is_var(atom) else None
    return None if index is None or program.eqns[index].primitive.name != name else program.eqns[index]


def _cone(program: Program, shift: Var, maximum: Var) -> tuple[int, ...] | None:
    """The eqns between them, each element by itself; None where `shift` is made of anything else."""
    cone: set[int] = set()
    pending = [shift]
    while pending:
        var = pending.pop()
        if var is maximum:
            continue
        index = program.producer.get(var)
        if index is None:
            return None
        eqn = program.eqns[index]
        name, operands = eqn.primitive.name, [a for a in eqn.invars if is_var(a)]
        is_view = name in _VIEWS and (not operands or _size(var) == _size(operands[0]))
        if eqn.effects or not (is_view or name in ELEMENTWISE):
            return None
        cone.add(index)
        pending += operands
    return tuple(sorted(cone))


def known_values(program: Program, online: Online, maximum: Any) -> dict[Var, Any]:
    """What the maximum so far stands for, and the shift with it."""
    env: dict[Var, Any] = {online.result: maximum}
    for index in online.cone:
        eqn = program.eqns[index]
        env.update(zip(eqn.outvars, bind(eqn, [env[a] if is_var(a) else a.val for a in eqn.invars]), strict=True))
    return env


def running_values(program: Program, online: Online, maximum: Any) -> dict[Var, Any]:
    """The same for use meanwhile: where all so far is minus infinity, differences from it would be NaN."""
    env = known_values(program, online, maximum)
    for view in online.views:
        env[view] = jnp.where(jnp.isneginf(env[view]), jnp.zeros_like(env[view]), env[view])
    return env


def rescaled(total: Any, before: Any, after: Any) -> Any:
    """A sum below one running shift as that below the next; nothing stays nothing, however far they are apart."""
    factor = jnp.exp(lax.convert_element_type(before - after, total.dtype)).reshape(total.shape)
    return jnp.where(total == 0, total, total * factor)


def finished(total: Any, shift: Any) -> Any:
    """The whole sum: NaN where all of x is minus infinity and so is the shift, as in the difference of the two."""
    return jnp.where(jnp.isneginf(shift).reshape(total.shape), jnp.asarray(jnp.nan, total.dtype), total)
