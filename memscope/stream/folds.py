"""Combiners: how partial results over a streamed axis become the whole one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core

from ..program import aval_of

Carry = tuple[Any, ...]
Partial = Callable[..., list[Any]]
"""Binds the eqn to this iteration's slices, with params replaced where given."""


@dataclasses.dataclass(frozen=True)
class Combiner:
    """A fold of one eqn over a streamed factor.

    Attributes:
      init: the carry before the first chunk, from the eqn and its whole first operand (scatter only).
      step: the carry after a chunk, from (eqn, carry, slices, first row of the chunk, partial).
      finish: the eqn's results from the last carry.
    """

    init: Callable[[jex_core.JaxprEqn, Any], Carry]
    step: Callable[[jex_core.JaxprEqn, Carry, Sequence[Any], Any, Partial], Carry]
    finish: Callable[[jex_core.JaxprEqn, Carry], list[Any]]


def _accumulator(dtype: Any) -> Any:
    """Sums of halves are carried in float32: rounding each chunk's sum to 8 bits would lose the answer."""
    return jnp.float32 if dtype in (jnp.float16, jnp.bfloat16) else dtype


def _monoid(identity: Callable[[Any], Any], join: Callable[[Any, Any], Any]) -> Combiner:
    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        aval = aval_of(eqn.outvars[0])
        return (lax.full(aval.shape, identity(aval.dtype), aval.dtype),)

    def step(eqn: jex_core.JaxprEqn, carry: Carry, slices: Sequence[Any], first: Any, partial: Partial) -> Carry:
        return (join(carry[0], partial(slices)[0]),)

    return Combiner(init, step, lambda eqn, carry: list(carry))


def _sum() -> Combiner:
    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        aval = aval_of(eqn.outvars[0])
        return (lax.full(aval.shape, 0, _accumulator(aval.dtype)),)

    def step(eqn: jex_core.JaxprEqn, carry: Carry, slices: Sequence[Any], first: Any, partial: Partial) -> Carry:
        wide = [lax.convert_element_type(slices[0], carry[0].dtype)]
        return (lax.add(carry[0], partial(wide)[0]),)

    return Combiner(init, step, _narrow)


def _dot() -> Combiner:
    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        aval = aval_of(eqn.outvars[0])
        return (lax.full(aval.shape, 0, _accumulator(aval.dtype)),)

    def step(eqn: jex_core.JaxprEqn, carry: Carry, slices: Sequence[Any], first: Any, partial: Partial) -> Carry:
        if carry[0].dtype == aval_of(eqn.outvars[0]).dtype:
            return (lax.add(carry[0], partial(slices)[0]),)
        return (lax.add(carry[0], partial(slices, preferred_element_type=np.dtype(carry[0].dtype))[0]),)

    return Combiner(init, step, _narrow)


def _narrow(eqn: jex_core.JaxprEqn, carry: Carry) -> list[Any]:
    return [lax.convert_element_type(carry[0], aval_of(eqn.outvars[0]).dtype)]


def _scatter() -> Combiner:
    def step(eqn: jex_core.JaxprEqn, carry: Carry, slices: Sequence[Any], first: Any, partial: Partial) -> Carry:
        return (partial([carry[0], *slices])[0],)

    return Combiner(lambda eqn, table: (table,), step, lambda eqn, carry: list(carry))


def _arg(better: Callable[[Any, Any], Any]) -> Combiner:
    """argmax and argmin: the first best row wins, and NaN counts as best, as in XLA."""

    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        out, operand = aval_of(eqn.outvars[0]), aval_of(eqn.invars[0])
        return (lax.full(out.shape, 0, operand.dtype), lax.full(out.shape, -1, out.dtype))

    def step(eqn: jex_core.JaxprEqn, carry: Carry, slices: Sequence[Any], first: Any, partial: Partial) -> Carry:
        best, where = carry
        (axis,) = eqn.params["axes"]
        local = partial(slices)[0]
        value = jnp.squeeze(jnp.take_along_axis(slices[0], jnp.expand_dims(local, axis), axis), axis)
        wins = (where < 0) | ((value != value) & (best == best)) | better(value, best)
        index = lax.add(local, lax.convert_element_type(first, local.dtype))
        return (lax.select(wins, value, best), lax.select(wins, index, where))

    return Combiner(init, step, lambda eqn, carry: [carry[1]])


def _top_k() -> Combiner:
    """The best so far and the best of the chunk, the earlier row first where they are equal, as in XLA.

    A chunk holds at least k rows, so that the first one gives k to begin with; the last one may hold fewer.
    """

    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        return tuple(lax.full(aval_of(v).shape, 0, aval_of(v).dtype) for v in eqn.outvars)

    def step(eqn: jex_core.JaxprEqn, carry: Carry, slices: Sequence[Any], first: Any, partial: Partial) -> Carry:
        axis, k = eqn.params["axis"], eqn.params["k"]
        local, where = partial(slices, k=min(k, slices[0].shape[axis]))
        where = lax.add(where, lax.convert_element_type(first, where.dtype))
        values, places = (lax.concatenate([old, new], axis) for old, new in zip(carry, (local, where), strict=True))
        merged, picked = partial([values])
        places = jnp.take_along_axis(places, picked, axis)
        if local.shape[axis] < k:
            return merged, places
        begins = jnp.equal(first, 0)
        return jnp.where(begins, local, merged), jnp.where(begins, where, places)

    return Combiner(init, step, lambda eqn, carry: list(carry))


def least_rows(eqn: jex_core.JaxprEqn, fold: str | None) -> int:
    """Rows that a chunk must have for a fold to begin with."""
    return int(eqn.params["k"]) if fold == "top_k" else 1


def _lowest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return False
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return True
    return np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


COMBINERS: dict[str, Combiner] = {
    "add": _sum(),
    "dot": _dot(),
    "mul": _monoid(lambda dtype: 1, lax.mul),
    "max": _monoid(_lowest, lax.max),
    "min": _monoid(_highest, lax.min),
    "and": _monoid(lambda dtype: True if dtype == np.bool_ else -1, lax.bitwise_and),
    "or": _monoid(lambda dtype: 0, lax.bitwise_or),
    "xor": _monoid(lambda dtype: 0, lax.bitwise_xor),
    "argmax": _arg(lax.gt),
    "argmin": _arg(lax.lt),
    "scatter": _scatter(),
    "top_k": _top_k(),
}
