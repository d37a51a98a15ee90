"""Combiners: how partial results over a streamed axis become the whole one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core

from ..axes import At, Factor
from ..axes.indexing import missing_value, wide_indices
from ..program import aval_of

Carry = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Part:
    """What one chunk gives to a fold.

    Attributes:
      slices: the operands of the eqn, so much of them as the chunk has.
      first: the chunk's first row along the factor's axis.
      bind: binds the eqn to slices like these, with params replaced where given.
    """

    eqn: jex_core.JaxprEqn
    factor: Factor
    slices: Sequence[Any]
    first: Any
    bind: Callable[..., list[Any]]


@dataclasses.dataclass(frozen=True)
class Combiner:
    """A fold of one eqn over a streamed factor.

    Attributes:
      init: the carry before the first chunk, from the eqn and its whole first operand (scatter only).
      step: the carry after a chunk, from what the chunk gives and the carry before.
      finish: the eqn's results from the last carry.
    """

    init: Callable[[jex_core.JaxprEqn, Any], Carry]
    step: Callable[[Part, Carry], Carry]
    finish: Callable[[jex_core.JaxprEqn, Carry], list[Any]]


def accumulator(dtype: Any) -> Any:
    """Sums of halves are carried in float32: rounding each chunk's sum to 8 bits would lose the answer."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < np.dtype(np.float32).itemsize
    return np.dtype(np.float32) if narrow else dtype


def _monoid(identity: Callable[[Any], Any], join: Callable[[Any, Any], Any]) -> Combiner:
    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        aval = aval_of(eqn.outvars[0])
        return (lax.full(aval.shape, identity(aval.dtype), aval.dtype),)

    def step(part: Part, carry: Carry) -> Carry:
        return (join(carry[0], part.bind(part.slices)[0]),)

    return Combiner(init, step, lambda eqn, carry: list(carry))


def _sum() -> Combiner:
    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        aval = aval_of(eqn.outvars[0])
        return (lax.full(aval.shape, 0, accumulator(aval.dtype)),)

    def step(part: Part, carry: Carry) -> Carry:
        wide = [lax.convert_element_type(part.slices[0], carry[0].dtype)]
        return (lax.add(carry[0], part.bind(wide)[0]),)

    return Combiner(init, step, _narrow)


def _dot() -> Combiner:
    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        aval = aval_of(eqn.outvars[0])
        return (lax.full(aval.shape, 0, accumulator(aval.dtype)),)

    def step(part: Part, carry: Carry) -> Carry:
        if carry[0].dtype == aval_of(part.eqn.outvars[0]).dtype:
            return (lax.add(carry[0], part.bind(part.slices)[0]),)
        return (lax.add(carry[0], part.bind(part.slices, preferred_element_type=np.dtype(carry[0].dtype))[0]),)

    return Combiner(init, step, _narrow)


def _narrow(eqn: jex_core.JaxprEqn, carry: Carry) -> list[Any]:
    return [lax.convert_element_type(carry[0], aval_of(eqn.outvars[0]).dtype)]


def _scatter() -> Combiner:
    def step(part: Part, carry: Carry) -> Carry:
        return (part.bind([carry[0], *part.slices])[0],)

    return Combiner(lambda eqn, table: (table,), step, lambda eqn, carry: list(carry))


def _gather() -> Combiner:
    """Each index is found in the chunk that holds its row; where none does, the value is what the mode says."""

    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        out = aval_of(eqn.outvars[0])
        fills = eqn.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
        return (lax.full(out.shape, missing_value(eqn) if fills else 0, out.dtype),)

    def step(part: Part, carry: Carry) -> Carry:
        rows, indices = part.slices
        dims, at = part.eqn.params["dimension_numbers"], part.factor.ins[0]
        assert isinstance(at, At)
        column = dims.start_index_map.index(at.axis)
        indices = wide_indices(indices)
        if part.eqn.params["mode"] == lax.GatherScatterMode.CLIP:
            last = lax.convert_element_type(part.factor.size - 1, indices.dtype)
            indices = indices.at[..., column].set(jnp.clip(indices[..., column], 0, last))
        local = indices[..., column] - lax.convert_element_type(part.first, indices.dtype)
        here = (local >= 0) & (local < rows.shape[at.axis])
        found = part.bind([rows, indices], mode=lax.GatherScatterMode.CLIP)[0]
        batch = [a for a in range(found.ndim) if a not in dims.offset_dims]
        return (jnp.where(lax.broadcast_in_dim(here, found.shape, batch), found, carry[0]),)

    return Combiner(init, step, lambda eqn, carry: list(carry))


def _arg(better: Callable[[Any, Any], Any]) -> Combiner:
    """argmax and argmin: the first best row wins, and NaN counts as best, as in XLA."""

    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        out, operand = aval_of(eqn.outvars[0]), aval_of(eqn.invars[0])
        return (lax.full(out.shape, 0, operand.dtype), lax.full(out.shape, 0, out.dtype))

    def step(part: Part, carry: Carry) -> Carry:
        best, where = carry
        (axis,) = part.eqn.params["axes"]
        local = part.bind(part.slices)[0]
        value = jnp.squeeze(jnp.take_along_axis(part.slices[0], jnp.expand_dims(local, axis), axis), axis)
        wins = jnp.equal(part.first, 0) | ((value != value) & (best == best)) | better(value, best)
        index = lax.add(local, lax.convert_element_type(part.first, local.dtype))
        return (lax.select(wins, value, best), lax.select(wins, index, where))

    return Combiner(init, step, lambda eqn, carry: [carry[1]])


def _top_k() -> Combiner:
    """The best so far and the best of the chunk, the earlier row first where they are equal, as in XLA.

    A chunk holds at least k rows, so that the first one gives k to begin with; the last one may hold fewer.
    """

    def init(eqn: jex_core.JaxprEqn, _: Any) -> Carry:
        return tuple(lax.full(aval_of(v).shape, 0, aval_of(v).dtype) for v in eqn.outvars)

    def step(part: Part, carry: Carry) -> Carry:
        axis, k = part.eqn.params["axis"], part.eqn.params["k"]
        local, where = part.bind(part.slices, k=min(k, part.slices[0].shape[axis]))
        where = lax.add(where, lax.convert_element_type(part.first, where.dtype))
        values, places = (lax.concatenate([old, new], axis) for old, new in zip(carry, (local, where), strict=True))
        merged, picked = part.bind([values])
        places = jnp.take_along_axis(places, picked, axis)
        if local.shape[axis] < k:
            return merged, places
        begins = jnp.equal(part.first, 0)
        return jnp.where(begins, local, merged), jnp.where(begins, where, places)

    return Combiner(init, step, lambda eqn, carry: list(carry))


def least_rows(eqn: jex_core.JaxprEqn, fold: str | None) -> int:
    """Rows that a chunk must have for a fold to begin with."""
    return int(eqn.params["k"]) if fold == "top_k" else 1


def lowest(dtype: Any) -> Any:
    """What no value of a type is less than."""
    if dtype == np.bool_:
        return False
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """What no value of a type is greater than."""
    if dtype == np.bool_:
        return True
    return np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


COMBINERS: dict[str, Combiner] = {
    "add": _sum(),
    "dot": _dot(),
    "mul": _monoid(lambda dtype: 1, lax.mul),
    "max": _monoid(lowest, lax.max),
    "min": _monoid(highest, lax.min),
    "and": _monoid(lambda dtype: True if dtype == np.bool_ else -1, lax.bitwise_and),
    "or": _monoid(lambda dtype: 0, lax.bitwise_or),
    "xor": _monoid(lambda dtype: 0, lax.bitwise_xor),
    "argmax": _arg(lax.gt),
    "argmin": _arg(lax.lt),
    "scatter": _scatter(),
    "gather": _gather(),
    "top_k": _top_k(),
}
