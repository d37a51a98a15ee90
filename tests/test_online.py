"""Softmax, logsumexp and variance along the streamed axis: the sum goes with the maximum or the mean, in one loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memscope
from memscope.stream import Closure, Streaming, rewrite
from memscope.stream.online import online_sums
from memscope.trace import trace

logsumexp = jax.nn.logsumexp


def values() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return random.normal(size=(900, 40)).astype(np.float32) * 9, random.normal(size=(40, 30)).astype(np.float32)


def odd() -> np.ndarray[Any, Any]:
    """Columns that begin or end with infinities, are all minus infinity, far apart, or hold a NaN."""
    x = values()[0]
    x[:300, 3] = x[:, 7] = x[500:, 8] = -np.inf
    x[800, 9], x[2, 10], x[450, 11] = np.inf, np.inf, np.nan
    x[:, 12], x[899, 12], x[:, 13], x[0, 13] = -500, 400, -500, 400
    return x


def unguarded(x: Any, *, keepdims: bool = False) -> Any:
    return jnp.sum(jnp.exp(x - jnp.max(x, 0, keepdims=keepdims)), 0)


SUMS: dict[str, Callable[[Any], Any]] = {
    "logsumexp": lambda x: logsumexp(x, axis=0),
    "kept dimensions": lambda x: logsumexp(x, axis=0, keepdims=True),
    "both axes at once": logsumexp,
    "bfloat16": lambda x: logsumexp(x.astype(jnp.bfloat16), axis=0),
    "by hand": unguarded,
    "by hand, kept dimensions": lambda x: unguarded(x, keepdims=True),
    "by rows and by columns": lambda x: (logsumexp(x, axis=0), logsumexp(x, axis=1)),
}


@pytest.mark.parametrize("chunk", [1, 7, 64, 900])
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("given", [values()[0], odd()], ids=["usual", "odd"])
def test_one_loop(name: str, given: Any, chunk: int) -> None:
    def fn(x: Any) -> Any:
        return SUMS[name](2 * x)

    streaming = streamed_by_rows(fn, given)
    (loop,) = streaming.loops
    assert loop.joined
    got = jax.jit(rewrite(streaming, {loop: chunk}))(given)
    agree(got, jax.jit(fn)(given), 2e-2 if name == "bfloat16" else 1e-5)


VARIANCES: dict[str, Callable[[Any], Any]] = {
    "variance": lambda x: jnp.var(x, axis=0),
    "kept dimensions": lambda x: jnp.var(x, axis=0, keepdims=True),
    "deviation of a sample": lambda x: jnp.std(x, axis=0, ddof=1),
    "both axes at once": jnp.var,
    "by hand": lambda x: jnp.sum((x - jnp.sum(x, 0) / x.shape[0]) ** 2, 0),
    "multiplied by itself": lambda x: jnp.mean((d := x - jnp.mean(x, 0)) * d, 0),
    "bfloat16": lambda x: jnp.var(x.astype(jnp.bfloat16), axis=0),
    "about half the mean": lambda x: jnp.sum((x - jnp.mean(x, 0) / 2) ** 2, 0),
}


@pytest.mark.parametrize("chunk", [1, 7, 64, 900])
@pytest.mark.parametrize("name", VARIANCES)
@pytest.mark.parametrize("offset", [0, 1000])
def test_a_variance_takes_one_loop(name: str, offset: float, chunk: int) -> None:
    """Far from zero as well, where the mean of squares less the square of the mean would be noise."""

    def fn(x: Any) -> Any:
        return VARIANCES[name](2 * x)

    given = values()[0] + np.float32(offset)
    streaming = streamed_by_rows(fn, given)
    (loop,) = streaming.loops
    assert loop.joined
    got = jax.jit(rewrite(streaming, {loop: chunk}))(given)
    agree(got, jax.jit(fn)(given), 2e-2 if name == "bfloat16" else 1e-4)


def test_a_variance_in_one_loop_has_a_gradient() -> None:
    """Of the loop itself: before the first chunk there is no mean, which must not make it NaN."""
    x = values()[0]
    streaming = streamed_by_rows(lambda x: jnp.var(2 * x, axis=0), x)
    in_chunks = rewrite(streaming, dict.fromkeys(streaming.loops, 64))
    got = jax.grad(lambda x: jnp.sum(in_chunks(x)[0] ** 2))(x)
    agree(got, jax.grad(lambda x: jnp.sum(jnp.var(2 * x, 0) ** 2))(x), 1e-3)


def test_a_sum_below_a_maximum_has_a_gradient() -> None:
    x = odd()[:, 12:16]
    streaming = streamed_by_rows(lambda x: logsumexp(2 * x, axis=0), x)
    in_chunks = rewrite(streaming, dict.fromkeys(streaming.loops, 64))
    got = jax.grad(lambda x: jnp.sum(in_chunks(x)[0]))(x)
    agree(got, jax.grad(lambda x: jnp.sum(logsumexp(2 * x, axis=0)))(x), 1e-4)


def test_a_variance_of_infinities_is_nan() -> None:
    x = odd()
    streaming = streamed_by_rows(lambda x: jnp.var(2 * x, axis=0), x)
    agree(jax.jit(rewrite(streaming, dict.fromkeys(streaming.loops, 64)))(x), jnp.var(2 * x, axis=0), 1e-4)


def streamed_by_rows(fn: Callable[[Any], Any], x: Any) -> Streaming:
    """The loops that stream all that has as many rows as `x`."""
    program = trace(fn, (x,))
    wanted = [v for eqn in program.eqns for v in eqn.outvars if v.aval.shape[:1] == x.shape[:1]]
    return Closure(program).build(wanted, {var: [0] for var in wanted})


def test_a_softmax_takes_two_loops() -> None:
    streaming = streamed_by_rows(lambda x: jnp.sum(jax.nn.softmax(2 * x, axis=0) * x, 0), odd())
    assert [bool(loop.joined) for loop in streaming.loops] == [True, False]


def test_the_gradient_reads_the_finished_sum() -> None:
    def loss(w: Any, x: Any) -> Any:
        similar = jnp.tanh(x @ w) @ jnp.tanh(x @ w).T
        return jnp.mean(logsumexp(similar, axis=0) + logsumexp(similar, axis=1) - jnp.diagonal(similar))

    x, w = values()
    plan = memscope.plan(jax.grad(loss), w, x, limit="20%")
    assert [len([s for s in loop.sinks if s.kind == "online"]) for loop in plan.loops] == [1, 0]
    assert plan.extra_work < 1.5
    assert "summed up below the running maximum" in plan.explain()
    agree(plan.fn(w, x), jax.grad(loss)(w, x), 1e-4)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.sum(jnp.exp(x - jnp.max(x, 1)[:, None]), 0),
        lambda x: jnp.sum(jnp.exp(x - jnp.max(2 * x, 0)), 0),
        lambda x: jnp.sum(jnp.exp2(x - jnp.max(x, 0)), 0),
        lambda x: jnp.sum(jnp.exp(jnp.max(x, 0) - x), 0),
        lambda x: jnp.sum(jnp.exp(x - jnp.cumsum(jnp.max(x, 0))), 0),
    ],
)
def test_what_is_no_such_sum(fn: Callable[[Any], Any]) -> None:
    assert not online_sums(trace(fn, (values()[0],)))


def agree(got: Any, want: Any, tolerance: float) -> None:
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(g, np.float32), np.asarray(w, np.float32), rtol=tolerance, atol=tolerance)
