"""Products and reductions inside loops, written so that XLA CPU copies less: the values stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from memscope.stream.dots import multiply
from memscope.stream.reductions import in_blocks


def draw(*shape: int, dtype: str = "float32") -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


def eqn_of(fn: Callable[..., Any], *args: Any, name: str) -> Any:
    return next(eqn for eqn in jax.make_jaxpr(fn)(*args).eqns if eqn.primitive.name == name)


@pytest.mark.parametrize(
    ("lhs", "rhs", "numbers", "turned"),
    [
        ((1, 600, 4), (1, 7, 600), (((1,), (2,)), ((0,), (0,))), True),  # values times probabilities
        ((600, 1, 4), (7, 600, 1), (((0,), (1,)), ((1,), (2,))), True),
        ((1, 5, 60, 3), (1, 5, 70, 60), (((2, 1), (3, 1)), ((0,), (0,))), False),  # copied either way
        ((1, 7, 600), (1, 600, 4), (((2,), (1,)), ((0,), (0,))), False),
        ((1, 1, 7, 600), (1, 1, 600, 4), (((3,), (2,)), ((0, 1), (0, 1))), False),
        ((2, 600, 4), (2, 7, 600), (((1,), (2,)), ((0,), (0,))), False),  # two matrices
        ((600, 4), (7, 600), (((0,), (1,)), ((), ())), False),  # XLA reads a lone matrix either way round
        ((1, 0, 4), (1, 7, 0), (((1,), (2,)), ((0,), (0,))), False),
    ],
)
def test_a_product_is_turned_round_where_that_copies_less(
    lhs: tuple[int, ...], rhs: tuple[int, ...], numbers: Any, turned: bool
) -> None:
    a, b = draw(*lhs), draw(*rhs, dtype="bfloat16").astype("float32")

    def dot(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.dot_general(a, b, numbers, precision=("highest", "default"), preferred_element_type="float32")

    eqn = eqn_of(dot, a, b, name="dot_general")
    again = jax.make_jaxpr(lambda a, b: multiply(eqn, [a, b], None))(a, b)
    assert ("transpose" in {e.primitive.name for e in again.eqns}) is turned
    (value,) = multiply(eqn, [a, b], None)
    np.testing.assert_allclose(value, dot(a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "axes"), [((1, 13, 700), (2,)), ((13, 1, 700), (2,)), ((1, 1, 13, 700), (2, 3)), ((1, 700), (0, 1))]
)
@pytest.mark.parametrize("reduce", [jnp.sum, jnp.max, jnp.prod])
def test_a_reduction_does_without_axes_of_size_one(
    shape: tuple[int, ...], axes: tuple[int, ...], reduce: Callable[..., jax.Array]
) -> None:
    x = draw(*shape)
    eqn = next(e for e in jax.make_jaxpr(lambda x: reduce(x, axes))(x).eqns if e.primitive.name.startswith("reduce_"))
    value = in_blocks(eqn, x, None)
    assert value.shape == reduce(x, axes).shape
    np.testing.assert_allclose(value, reduce(x, axes), rtol=1e-5)


def test_a_sum_of_halves_that_is_turned_round_is_carried_in_float32() -> None:
    values, probabilities = draw(1, 600, 4, dtype="bfloat16"), draw(1, 7, 600, dtype="bfloat16")
    numbers = (((1,), (2,)), ((0,), (0,)))
    eqn = eqn_of(lambda a, b: lax.dot_general(a, b, numbers), values, probabilities, name="dot_general")
    (value,) = multiply(eqn, [values, probabilities], None, preferred_element_type=jnp.dtype("float32"))
    assert value.dtype == jnp.float32
