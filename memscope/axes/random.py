"""Random keys and draws: threefry hashes positions, so that any window of the draws can be made alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p

from .elementwise import elementwise
from .factor import Factor, Window, shape_of
from .table import Eqn, blocked, mapped, rule
from .windows import placed

rule("random_seed", "random_clone", "threefry2x32")(elementwise)
blocked("its generator hands one state from draw to draw", "rng_bit_generator", "rng_uniform")


@rule("random_wrap", "random_unwrap", "to_edtype", "from_edtype", why="the words of a key belong together")
def key_data(eqn: Eqn) -> Sequence[Factor]:
    """Keys and the words they are made of: the axes of the array of keys."""
    keys = min(len(shape_of(eqn.invars[0])), len(shape_of(eqn.outvars[0])))
    return [mapped(size, [axis], [axis]) for axis, size in enumerate(shape_of(eqn.invars[0])[:keys])]


@rule("random_bits", "random_split", why="the generator draws the whole array from one state")
def random_bits(eqn: Eqn) -> Sequence[Factor]:
    """`k -> k n`, with n generated. Other generators than threefry draw for many keys otherwise than for each."""
    keys = shape_of(eqn.invars[0])
    places = [mapped(size, [axis], [axis]) for axis, size in enumerate(keys) if _is_threefry(eqn)]
    if _counts_positions(eqn):
        places += [mapped(size, [None], [len(keys) + axis]) for axis, size in enumerate(eqn.params["shape"])]
    return places


@rule("random_fold_in", why="the generator folds numbers into many keys otherwise than into each")
def random_fold_in(eqn: Eqn) -> Sequence[Factor]:
    """Elementwise, for threefry."""
    return elementwise(eqn) if _is_threefry(eqn) else []


@rule("random_gamma", why="the generator splits one key into a key for each element")
def random_gamma(eqn: Eqn) -> Sequence[Factor]:
    """`k, k n -> k n`, k mapped."""
    keys = shape_of(eqn.invars[0])
    return [mapped(size, [axis, axis], [axis]) for axis, size in enumerate(keys) if _is_threefry(eqn)]


def _is_threefry(eqn: Eqn) -> bool:
    return str(getattr(eqn.invars[0].aval, "dtype", "")) == "key<fry>"


def _counts_positions(eqn: Eqn) -> bool:
    return (
        _is_threefry(eqn)
        and bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
        and math.prod(eqn.params["shape"]) < 2**32
        and eqn.params.get("bit_width", 32) in (8, 16, 32, 64)
    )


@placed("random_bits")
@placed("random_split")
def random_rows(eqn: Eqn, out: int, window: Window, operands: Sequence[Any], first: Any, count: int) -> Any:
    """The bits, or the keys, of a window, bit for bit those of the whole array."""
    (keys,) = operands
    axis = window.axis - keys.ndim

    def draw(key: Any) -> Any:
        high, low = _hashes(jax.random.key_data(key), tuple(eqn.params["shape"]), axis, first, count)
        if eqn.primitive.name == "random_split":
            return jax.random.wrap_key_data(jnp.stack([high, low], -1), impl="threefry2x32")
        return _bits(high, low, eqn.params["bit_width"])

    for _ in range(keys.ndim):
        draw = jax.vmap(draw)
    return draw(keys)


def _hashes(key: Any, shape: tuple[int, ...], axis: int, first: Any, count: int) -> Any:
    """JAX's partitionable threefry: two words from each element's row-major position."""
    local = tuple(count if a == axis else size for a, size in enumerate(shape))
    position = jnp.zeros(local, np.uint32)
    for a in range(len(shape)):
        stride = np.uint32(math.prod(shape[a + 1 :]))
        index = lax.broadcasted_iota(np.uint32, local, a)
        if a == axis:
            index = index + lax.convert_element_type(first, np.uint32)
        position = position + index * stride
    return threefry2x32_p.bind(key[0], key[1], jnp.zeros(local, np.uint32), position)


def _bits(high: Any, low: Any, width: int) -> Any:
    if width == 64:
        wide = [lax.convert_element_type(part, np.uint64) for part in (high, low)]
        return lax.shift_left(wide[0], np.uint64(32)) | wide[1]
    return lax.convert_element_type(high ^ low, f"uint{width}")
