"""A program in two: up to where donated arguments are written over, and that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memscope.compile import Build, Compiled, compile_program
from memscope.hlo.arithmetic import Arithmetic, arithmetic
from memscope.hlo.module import parse_module
from memscope.program import Program, nbytes
from memscope.schedule.halves import Halves, halves
from memscope.target import resolve
from memscope.trace import trace

W = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
X = np.linspace(0, 2, 256 * 64, dtype=np.float32).reshape(256, 64)


def loss(w: Any, x: jax.Array) -> jax.Array:
    return (jnp.tanh(jnp.tanh(x @ w) @ w) ** 2).sum()


def sgd(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * gradient, value


def momentum(state: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    gradient = jax.grad(loss)(state["w"], x)
    scale = jnp.minimum(1, 1 / jnp.linalg.norm(gradient))
    m = 0.9 * state["m"] + scale * gradient
    return {"w": state["w"] - 0.1 * m / (1 + m**2), "m": m}


def unchanged(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array, float]:
    """A result that is an argument, one that is a number, and one that is asked for twice."""
    w, value = sgd(w, x)
    return w, x, 1.5, value, value  # type: ignore[return-value]


def compiled(program: Program) -> Compiled:
    return compile_program(program, Build.PLAIN, resolve("cpu"))


def cut(fn: Callable[..., Any], *args: Any) -> tuple[Program, Compiled, Halves | None]:
    program = trace(fn, args, donate_argnums=0).as_traced
    whole = compiled(program)
    return program, whole, next(iter(halves(program, parse_module(whole.module))), None)


@pytest.mark.parametrize(("fn", "state"), [(sgd, W), (momentum, {"w": W, "m": 0 * W}), (unchanged, W)])
def test_both_halves_together_do_the_same_to_the_last_bit(fn: Callable[..., Any], state: Any) -> None:
    program, whole, found = cut(fn, state, X)
    assert found is not None
    first, second = compiled(found.first), compiled(found.second)
    joined = found.joined(first, second, whole)
    assert joined is not None
    assert first.alias_bytes == 0
    assert second.alias_bytes == whole.alias_bytes > 0
    assert joined.peak_bytes == max(first.peak_bytes, second.peak_bytes)
    assert first.argument_bytes == whole.argument_bytes
    assert second.argument_bytes == whole.argument_bytes + found.handed_bytes
    leaves = [jnp.array(leaf) for leaf in jax.tree.leaves((state, X))]
    want = whole.call(*map(jnp.array, leaves))
    got = joined.call(*leaves)
    assert [leaf.is_deleted() for leaf in leaves] == list(program.donated)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_more_is_handed_over_than_the_update_reads_and_the_caller_gets() -> None:
    *_, found = cut(sgd, W, X)
    assert found is not None
    assert sorted(map(nbytes, found.first.jaxpr.outvars)) == [4, W.nbytes]
    assert not {"dot_general", "tanh"} & {eqn.primitive.name for eqn in found.second.eqns}


def test_what_is_of_no_use_in_two_stays_one() -> None:
    def trains(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, w: sgd(w, x)[0], w)

    def writes_first(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return w + 1, loss(w + 1, x)

    def prints(w: jax.Array, x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x.sum())
        return sgd(w, x)[0]

    for fn in (trains, writes_first, prints, lambda w, x: w * 2):
        assert cut(fn, W, X)[2] is None


def test_halves_that_would_round_otherwise_are_not_joined() -> None:
    _, whole, found = cut(sgd, W, X)
    other = trace(lambda w, x: (w - 0.1 * jax.grad(loss)(w, x) - 1, x.sum()), (W, X), donate_argnums=0).as_traced
    assert found is not None
    assert found.joined(compiled(found.first), compiled(other), whole) is None


def test_arithmetic_is_that_of_the_elements_and_of_sums_the_layout_too() -> None:
    def of(fn: Callable[..., Any], *args: Any) -> Arithmetic:
        return arithmetic(compiled(trace(fn, args)).module)

    assert of(lambda x: jnp.sin(x) * 2, X) == of(lambda x: (jnp.sin(x) * 2).T, X) == of(lambda x: jnp.sin(x.T) * 2, X)
    assert of(lambda x: jnp.sin(x) * 2, X) != of(lambda x: jnp.sin(x) * 3, X)
    assert of(lambda x: x.sum(0), X) != of(lambda x: x.sum(1), X)
    assert of(lambda x: x @ x.T, X) != of(lambda x: x.T @ x, X)
    assert of(lambda x, y: x - y, X, X) != of(lambda x, y: y - x, X, X)
    assert of(lambda x: x.T, X) == of(lambda x: x + 0, X)


def test_arithmetic_tells_whether_a_product_is_fused_with_its_sum() -> None:
    product = arithmetic(compiled(trace(lambda x: jnp.sin(x) * x, (X,))).module)
    total = arithmetic(compiled(trace(lambda x, y: y + x, (X, X))).module, product.results)
    fused = arithmetic(compiled(trace(lambda x: jnp.sin(x) * x + x, (X,))).module)
    assert total.results == fused.results
    assert fused.fused
    assert not product.fused | total.fused
