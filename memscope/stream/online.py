"""Sums about something that is itself only known in the end, in the same pass as that.

A softmax or a logsumexp along the streamed axis would take two loops, the second of which computes x again. Here the
sum of exp(x - max(x)) is kept below the maximum so far, and is scaled down when that rises (Milakov and Gimelshein,
"Online normalizer calculation for softmax", arXiv 1805.02867, section 3). A variance, the sum of (x - mean(x))**2, is
kept about the mean so far, and made up for as that moves (Chan, Golub and LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances", 1979).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core

from ..axes.elementwise import ELEMENTWISE
from ..axes.factor import shape_of
from ..evaluate import bind
from ..program import Atom, Program, aval_of, is_var

Var = jex_core.Var
Eqn = jex_core.JaxprEqn
Kind = Literal["exp", "square"]

FOLDS: dict[Kind, tuple[str, str]] = {"exp": ("reduce_max", "max"), "square": ("reduce_sum", "add")}
"""For sums of each kind, the primitive that what they are about is made by, and how its partial results are joined."""

_VIEWS = frozenset({"broadcast_in_dim", "reshape", "squeeze", "expand_dims"})


@dataclasses.dataclass(frozen=True)
class Online:
    """A sum of exp(x - m) or of (x - m)**2, where m is made of the maximum of x, or of its sum.

    Attributes:
      source: the eqn of that maximum or sum, and `result`, its result.
      shift: what is subtracted from x: m, or that where it is finite.
      views: the same under other shapes, down to `shift`.
      cone: the eqns that make all of these of the result.
      known: the result and the results of the cone.
      count: how many terms each sum has.
    """

    kind: Kind
    source: int
    result: Var
    shift: Var
    views: tuple[Var, ...]
    cone: tuple[int, ...]
    known: frozenset[Var]
    count: int

    @property
    def guards(self) -> frozenset[Var]:
        """What an iteration may make of the result for itself: all that is known but that."""
        return self.known - {self.result}


def online_sums(program: Program) -> dict[int, Online]:
    """All such sums of a program, by their eqns."""
    found = {}
    for index, eqn in enumerate(program.eqns):
        if eqn.primitive.name == "reduce_sum" and (online := _online(program, eqn)) is not None:
            found[index] = online
    return found


def _online(program: Program, total: Eqn) -> Online | None:
    kind, difference = _about(program, total)
    if difference is None:
        return None
    x, *views = difference.invars[0], *_views(program, difference)
    if not views or not is_var(x):
        return None
    for index in program.consumers[x]:
        eqn = program.eqns[index]
        if eqn.primitive.name == FOLDS[kind][0] and eqn.params["axes"] == total.params["axes"]:
            result = eqn.outvars[0]
            cone = _cone(program, views[0], result)
            if cone is not None:
                known = frozenset((result, *(v for i in cone for v in program.eqns[i].outvars)))
                count = math.prod(shape_of(x)[axis] for axis in total.params["axes"])
                return Online(kind, index, result, views[-1], tuple(views), cone, known, count)
    return None


def _about(program: Program, total: Eqn) -> tuple[Kind, Eqn | None]:
    """What a sum is taken of: the kind, and the eqn of the difference in it."""
    widened = _maker(program, total.invars[0], "convert_element_type")
    term = total.invars[0] if widened is None else widened.invars[0]
    exponential = _maker(program, term, "exp")
    if exponential is not None:
        return "exp", _maker(program, exponential.invars[0], "sub")
    squared = _square_of(program, term)
    is_real = jnp.issubdtype(aval_of(term).dtype, jnp.floating)
    return "square", _maker(program, squared, "sub") if squared is not None and is_real else None


def _square_of(program: Program, atom: Atom) -> Atom | None:
    """What `atom` is the square of."""
    index = program.producer.get(atom) if is_var(atom) else None
    if index is None:
        return None
    eqn = program.eqns[index]
    match eqn.primitive.name:
        case "square":
            return eqn.invars[0]
        case "integer_pow":
            return eqn.invars[0] if eqn.params["y"] == 2 else None
        case "mul":
            return eqn.invars[0] if eqn.invars[0] is eqn.invars[1] else None
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


def _cone(program: Program, shift: Var, result: Var) -> tuple[int, ...] | None:
    """The eqns between them, each element by itself; None where `shift` is made of anything else."""
    cone: set[int] = set()
    pending = [shift]
    while pending:
        var = pending.pop()
        if var is result:
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


def known_values(program: Program, online: Online, result: Any) -> dict[Var, Any]:
    """What the maximum or sum so far stands for, and the shift with it."""
    env: dict[Var, Any] = {online.result: result}
    for index in online.cone:
        eqn = program.eqns[index]
        env.update(zip(eqn.outvars, bind(eqn, [env[a] if is_var(a) else a.val for a in eqn.invars]), strict=True))
    return env


def running_values(program: Program, online: Online, result: Any, rows: Any, of: int) -> dict[Var, Any]:
    """The same for use meanwhile.

    Args:
      result: the maximum, or the sum, of the first `rows` of all `of` rows.
    """
    result = lax.convert_element_type(result, aval_of(online.result).dtype)
    if online.kind == "square":  # what the sum would be, were all rows like these; of none it is 0
        share = of / lax.convert_element_type(jnp.maximum(rows, 1), result.dtype)
        return known_values(program, online, result * share)
    env = known_values(program, online, result)
    for view in online.views:  # where all so far is minus infinity, differences from it would be NaN
        env[view] = jnp.where(jnp.isneginf(env[view]), jnp.zeros_like(env[view]), env[view])
    return env


def moved(online: Online, total: Any, result: Any, before: Any, after: Any, rows: Any, of: int) -> Any:
    """A sum about one running shift, of the first `rows` of all, as that about the next one.

    Args:
      result: the maximum, or the sum, of these rows.
    """
    distance = lax.convert_element_type(before - after, total.dtype).reshape(total.shape)
    if online.kind == "exp":  # nothing stays nothing, however far the two are apart, and so does its gradient
        nothing = total == 0
        return jnp.where(nothing, total, total * jnp.exp(jnp.where(nothing, 0, distance)))
    count = lax.convert_element_type(rows, total.dtype) * (online.count / of)
    about = lax.convert_element_type(before, total.dtype).reshape(total.shape)
    off = lax.convert_element_type(result, total.dtype).reshape(total.shape) - count * about  # none about the mean
    return total + distance * (2 * off + count * distance)


def finished(online: Online, total: Any, shift: Any) -> Any:
    """The whole sum; of exponentials NaN where all of x is minus infinity, and so is what is subtracted from it."""
    if online.kind == "square":
        return total
    return jnp.where(jnp.isneginf(shift).reshape(total.shape), jnp.asarray(jnp.nan, total.dtype), total)
