"""The first or last few of a sort: `top_k` finds them without sorting the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..axes.factor import shape_of
from ..evaluate import Env
from ..program import Program, aval_of
from .along import Eqn, counts_from
from .cheaper import Cheaper

FEW = 1 / 8
"""Of a row that may be asked for: XLA's `top_k` sorts as much."""

LONGEST = 1 << 22
"""Elements of a row that a NaN can carry the number of."""

_NAN_BITS = 0x7FC00000
_KEYS = (jnp.float32, jnp.bfloat16, jnp.float16)


def first_of_sort(program: Program, number: int) -> Cheaper | None:
    """A sort by one key of floating point, of whose results nothing but slices of one end are read."""
    eqn = program.eqns[number]
    if eqn.primitive.name != "sort" or eqn.params["num_keys"] != 1 or aval_of(eqn.invars[0]).dtype not in _KEYS:
        return None
    axis = int(eqn.params["dimension"])
    length = shape_of(eqn.invars[0])[axis]
    readers = _slices(program, eqn)
    if not readers or length > LONGEST:
        return None
    first = min(_bound(reader, "start_indices", axis) for reader in readers.values())
    last = max(_bound(reader, "limit_indices", axis) for reader in readers.values())
    from_end = length - last < first
    count = length - first if from_end else last
    if count > FEW * length:
        return None
    shift = length - count if from_end else 0
    sort = functools.partial(_few, program, eqn, count, from_end)
    slices = {at: _shifted(reader, axis, shift) for at, reader in readers.items()}
    end = "last" if from_end else "first"
    why = f"the {end} {count:,} of a sort of {length:,} are its top_k"
    return Cheaper({number: sort, **slices}, eqn.outvars[0], why)


def _slices(program: Program, eqn: Eqn) -> dict[int, Eqn]:
    """The slices that read the results, by index; none where anything else does."""
    readers: dict[int, Eqn] = {}
    for var in eqn.outvars:
        if var in program.outputs:
            return {}
        readers.update((i, program.eqns[i]) for i in program.consumers.get(var, ()))
    return readers if all(r.primitive.name == "slice" for r in readers.values()) else {}


def _bound(reader: Eqn, name: str, axis: int) -> int:
    return int(reader.params[name][axis])


def _shifted(reader: Eqn, axis: int, shift: int) -> Callable[[Env, Sequence[Any]], Sequence[Any]]:
    """The slice of an array that starts `shift` later than the one it was written for."""
    start, limit = (list(reader.params[name]) for name in ("start_indices", "limit_indices"))
    start[axis] -= shift
    limit[axis] -= shift
    return lambda env, values: [lax.slice(values[0], start, limit, reader.params["strides"])]


def _few(program: Program, eqn: Eqn, count: int, from_end: bool, env: Env, values: Sequence[Any]) -> Sequence[Any]:
    """What the sort gives at one end, in its order: equal keys by their place, NaN after all others."""
    axis = int(eqn.params["dimension"])
    keys = jnp.moveaxis(values[0], axis, -1)
    places = lax.top_k(_rank(jnp.flip(keys, -1), 1) if from_end else _rank(keys, -1), count)[1]
    # XLA makes a sort of the two where a slice that does not start at 0 can be merged into the top_k.
    places = lax.optimization_barrier(places)
    if from_end:
        places = keys.shape[-1] - 1 - jnp.flip(places, -1)
    places = jnp.moveaxis(places, -1, axis)
    return [_taken(program, operand, value, places, axis) for operand, value in zip(eqn.invars, values, strict=True)]


def _rank(keys: Any, sign: int) -> Any:
    """What `top_k` puts in the order of the sort (`sign` -1) or the reverse.

    XLA's `top_k` on the CPU compares floats by their bits: so zeros are made alike, and a NaN carries its place in its
    low bits.
    """
    values = keys.astype(jnp.float32)
    place = lax.broadcasted_iota(jnp.uint32, values.shape, values.ndim - 1)
    later = place if sign < 0 else place.shape[-1] - 1 - place
    bits = later | jnp.uint32(_NAN_BITS | (0x80000000 if sign < 0 else 0))
    numbers = jnp.where(values == 0, 0.0, sign * values)
    return jnp.where(values != values, lax.bitcast_convert_type(bits, jnp.float32), numbers)


def _taken(program: Program, operand: Any, value: Any, places: Any, axis: int) -> Any:
    if counts_from(program, operand, axis) == 0:
        return places.astype(value.dtype)
    return jnp.take_along_axis(value, places, axis, mode="promise_in_bounds")
