"""Factors that are only known at the end, and rows that are: computed at another point, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memscope
from memscope.algebra import scale_late
from memscope.evaluate import run_program
from memscope.stream.early import pick_early
from memscope.target import resolve
from memscope.trace import trace

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5)).astype(np.float32)
W = RNG.normal(size=(5, 40)).astype(np.float32)


def rmse(x: Any, w: Any) -> Any:
    return jnp.sqrt(jnp.mean(jnp.tanh(x @ w) ** 2))


def masked_mean(x: Any, w: Any) -> Any:
    z = jnp.tanh(x @ w)
    keep = jax.nn.sigmoid(z)
    return jnp.sum(jnp.where(z > 0, z, 0) * keep) / jnp.sum(keep)


def picked(x: Any, w: Any) -> Any:
    z = jnp.exp(x @ w)
    return jnp.log(jnp.mean(z[jnp.arange(60), jnp.arange(60) % 40] ** 2)) + jnp.log(jnp.mean(z[:, 1:7]))


def shares(x: Any, w: Any) -> Any:
    z = jnp.exp(x @ w)
    return (z / jnp.sum(z) * jnp.max(z)).sum(1) @ x


PUT_OFF: dict[str, Callable[[Any, Any], Any]] = {
    "rmse": jax.grad(rmse, (0, 1)),
    "value and gradient": jax.value_and_grad(rmse),
    "masked mean": jax.grad(masked_mean, 1),
    "picked": jax.grad(picked, 1),
    "two factors": shares,
    "negative and summed in parts": lambda x, w: jnp.cumsum(-((z := jnp.sin(x @ w)) / jnp.sum(z))[::-1], 0).sum(0),
    "reshaped and joined": lambda x, w: jnp.concatenate(
        [(z := jnp.sin(x @ w) * jnp.std(jnp.sin(x @ w))).reshape(40, 60).T, z], 0
    ).sum(1),
    "complex": lambda x, w: jnp.sum((z := jnp.exp(1j * (x @ w))) / jnp.sum(z), 0),
}
LEFT: dict[str, Callable[[Any, Any], Any]] = {
    "not linear after it": lambda x, w: jnp.sum(jnp.tanh((z := jnp.exp(x @ w)) / jnp.sum(z))),
    "squared after it": lambda x, w: jnp.sum((z := jnp.exp(x @ w) / jnp.sum(jnp.exp(x @ w))) * z),
    "added to something else": lambda x, w: jnp.sum(jnp.exp((z := x @ w) / jnp.max(z) + w[0])),
    "parts of it": lambda x, w: jnp.sum(jnp.real((z := jnp.exp(1j * (x @ w))) / jnp.sum(z)), 0),
    "conjugate": lambda x, w: jnp.sum(jnp.conj((z := jnp.exp(1j * (x @ w))) / jnp.sum(z)), 0),
    "returned": lambda x, w: (z := jnp.exp(x @ w)) / jnp.sum(z),
    "known early": lambda x, w: jnp.sum(jnp.exp(x @ w) * jnp.sum(x), 0),
    "narrow": lambda x, w: jnp.sum((z := (x @ w).astype(jnp.float16)) / jnp.max(z), 0),
    "a divisor that is an array": lambda x, w: jnp.sum(jnp.exp(x @ w) / (1 + jnp.exp(x @ w).sum(0)), 0),
}


def late(fn: Callable[..., Any]) -> tuple[Any, Any, int]:
    """The results of a program as it is and with its late factors put off, and how many sums are scaled."""
    program = trace(fn, (X, W))
    other, scaled = scale_late(program, resolve(None))
    return run_program(program)(X, W), run_program(other)(X, W), len(scaled)


@pytest.mark.parametrize("name", PUT_OFF)
def test_a_sum_is_scaled_in_place_of_its_terms(name: str) -> None:
    want, got, count = late(PUT_OFF[name])
    assert count > 0
    for w, g in zip(want, got, strict=True):
        assert w.dtype == g.dtype
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5 * np.max(np.abs(w)))


@pytest.mark.parametrize("name", LEFT)
def test_what_needs_its_factor_at_once_is_left_alone(name: str) -> None:
    want, got, _ = late(LEFT[name])
    program = trace(LEFT[name], (X, W))
    other, scaled = scale_late(program, resolve(None))
    assert (other is program) == (not scaled)
    assert not scaled
    for w, g in zip(want, got, strict=True):
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("loss", [rmse, lambda x, w: jnp.log(jnp.mean(jnp.exp(jnp.tanh(x @ w))))])
def test_one_loop_does_for_a_loss_and_its_gradient(loss: Callable[..., Any]) -> None:
    fn = jax.value_and_grad(loss)
    x, w = (RNG.normal(size=s).astype(np.float32) for s in ((3000, 8), (8, 2000)))
    plan = memscope.plan(fn, x, w, limit="10%")
    assert plan.extra_work < 1.05
    assert len(plan.loops) == 1
    assert [r.op for r in plan.rearranged] == ["dot_general"]
    assert "scaled after it is summed up" in str(plan)
    for g, v in zip(plan.fn(x, w), fn(x, w), strict=True):
        np.testing.assert_allclose(g, v, rtol=1e-4, atol=1e-4 * np.max(np.abs(v)))


IDS = RNG.integers(0, 60, (3, 1)).astype(np.int32)

PICKED: dict[str, Callable[[Any, Any], Any]] = {
    "best rows": lambda x, w: (y := jnp.tanh(x @ w))[jax.lax.top_k(jnp.sum(y * y, 1), 3)[1]],
    "the best row": lambda x, w: (y := jnp.tanh(x @ w))[jnp.argmax(jnp.sum(y * y, 1))],
    "columns": lambda x, w: (y := jnp.tanh(x @ w))[:, jnp.argsort(jnp.sum(y, 0))[:2]],
    "two axes of numbers": lambda x, w: jnp.take(jnp.sin(x @ w), IDS, 0, mode="clip"),
    "outside": lambda x, w: jnp.sin(x @ w).at[IDS - 40].get(mode="fill", fill_value=7, wrap_negative_indices=False),
    "slice": lambda x, w: jax.lax.dynamic_slice_in_dim(y := jnp.tanh(x @ w), jnp.argmax(jnp.sum(y, 1)), 3, 0),
    "sorted first": lambda x, w: jnp.sort(x @ w, 1)[jnp.argmax(x[:, 0])],
}
NOT_PICKED: dict[str, Callable[[Any, Any], Any]] = {
    "many rows": lambda x, w: jnp.tanh(x @ w)[jnp.argsort(x[:, 0])],
    "of an argument": lambda x, w: x[jnp.argmax(jnp.sum(jnp.tanh(x @ w), 1))],
    "along a sort": lambda x, w: jnp.sort(x @ w, 0)[jnp.argmax(x[:, 0])],
    "single entries": lambda x, w: jnp.tanh(x @ w)[jnp.argmax(x[:, 0]), jnp.argmax(w[0])],
    "the result itself": lambda x, w: ((y := jnp.tanh(x @ w)), y[jnp.argmax(x[:, 0])]),
}


@pytest.mark.parametrize("name", [*PICKED, *NOT_PICKED])
def test_a_few_rows_are_made_by_themselves(name: str) -> None:
    fn = {**PICKED, **NOT_PICKED}[name]
    program = trace(fn, (X, W))
    other, picks = pick_early(program, resolve(None))
    assert len(picks) == (name in PICKED)
    for w, g in zip(run_program(program)(X, W), run_program(other)(X, W), strict=True):
        assert (w.dtype, w.shape) == (g.dtype, g.shape)
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5)


def test_the_details_of_the_best_take_no_second_loop() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        value, best = jax.lax.top_k(jnp.sum(y * y, 1), 5)
        return value, best, y[best]

    x, w = (RNG.normal(size=s).astype(np.float32) for s in ((3000, 8), (8, 500)))
    plan = memscope.plan(fn, x, w, limit="15%")
    assert len(plan.loops) == 1
    assert plan.extra_work < 1.05
    assert [r.op for r in plan.rearranged] == ["gather"]
    for g, v in zip(plan.fn(x, w), fn(x, w), strict=True):
        np.testing.assert_allclose(g, v, rtol=1e-4)
