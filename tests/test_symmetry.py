"""Transposes of matrices that are symmetric by construction: left out, to the last bit; others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memscope
from memscope.algebra.rules import apply_rules
from memscope.evaluate import run_program
from memscope.target import resolve
from memscope.trace import trace

CPU = resolve(None)
X = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
X[2, 1] = np.inf
Y = X[::-1] + 1
SCALES = np.linspace(0.5, 2, 4).astype(np.float32)


def differences(x: Any, y: Any) -> Any:
    return x[:, None] - y[None]


def distances(x: Any) -> Any:
    return jnp.sum(differences(x, x) ** 2, -1)


def mean_with_transpose(matrix: Any) -> Any:
    return (matrix + jnp.swapaxes(matrix, -1, -2)) / 2


def kernel(x: Any, scale: Any) -> Any:
    return jnp.exp(-0.5 * distances(x) / scale**2) + 0.1 * jnp.eye(len(x))


SYMMETRIC: dict[str, Callable[[Any], Any]] = {
    "squared distances": distances,
    "city block distances": lambda x: jnp.sum(jnp.abs(differences(x, x)), -1),
    "products of differences": lambda x: jnp.max(differences(x, x) * differences(x, x), -1),
    "a kernel with noise": lambda x: kernel(x, 2.0),
    "kernels of many scales": lambda x: jax.vmap(lambda s: kernel(x, s))(SCALES),
    "sums of a row's and a column's": lambda x: x[:, :1] + x[:, :1].T,
    "where the row is the column": lambda x: jnp.where(jnp.eye(7, dtype=bool), distances(x), 1.0),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "of two sets": lambda x: jnp.sum(differences(x, Y) ** 2, -1),
    "differences": lambda x: jnp.sum(differences(x, x), -1),
    "cubes of differences": lambda x: jnp.sum(differences(x, x) ** 3, -1),
    "weighted by the row": lambda x: distances(x) * x[:, :1],
    "a band beside the diagonal": lambda x: distances(x) + jnp.eye(7, k=1),
    "below the diagonal": lambda x: jnp.tril(distances(x)),
    "differences of a row and a column": lambda x: x[:, :1] - x[:, :1].T,
    "an argument": lambda x: x @ jnp.ones((3, 7)),
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_what_is_symmetric_is_not_transposed(name: str) -> None:
    def fn(x: Any) -> Any:
        return mean_with_transpose(SYMMETRIC[name](x))

    simpler, found = apply_rules(trace(fn, (X,)), CPU)
    assert "its own transpose" in found[0].why
    assert found[0].source is not None
    assert found[0].source.startswith("test_symmetry.py:")
    (got,) = jax.jit(run_program(simpler))(X)
    np.testing.assert_array_equal(got, jax.jit(fn)(X))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_symmetric_is_transposed(name: str) -> None:
    _, found = apply_rules(trace(lambda x: mean_with_transpose(OTHERS[name](x)), (X,)), CPU)
    assert not found


def test_only_two_axes_may_be_exchanged() -> None:
    def fn(x: Any) -> Any:
        cube = jnp.sum(differences(x, x) ** 2, -1)[None] * jnp.ones((7, 1, 1))
        return cube + jnp.transpose(cube, (2, 0, 1))

    assert not apply_rules(trace(fn, (X,)), CPU)[1]


def test_a_long_way_back_ends_the_search() -> None:
    """Python's stack does, else."""

    def fn(x: Any) -> Any:
        made = differences(x, x)[..., 0] ** 2
        for _ in range(600):
            made = jnp.sin(made) + 0.5
        return mean_with_transpose(made)

    assert not apply_rules(trace(fn, (X,)), CPU)[1]


def test_many_kernels_are_factored_in_a_loop_without_their_transposes() -> None:
    def fn(x: Any, scales: Any) -> Any:
        return jax.vmap(lambda s: jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(kernel(x, s))))))(scales)

    x, scales = (
        np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32),
        np.linspace(1, 2, 50, dtype=np.float32),
    )
    plan = memscope.plan(fn, x, scales, limit="25%")
    assert plan.fits
    assert any("its own transpose" in each.why for each in plan.simplified)
    assert "transpose[" not in str(jax.make_jaxpr(plan.fn)(x, scales))
    np.testing.assert_allclose(plan.fn(x, scales), fn(x, scales), rtol=1e-5)
