"""Factors that are only known at the end: when a sum is scaled in place of its terms, and that this changes nothing."""

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
    assert [s.op for s in plan.scaled] == ["dot_general"]
    assert "scaled after they are summed up" in str(plan)
    for g, v in zip(plan.fn(x, w), fn(x, w), strict=True):
        np.testing.assert_allclose(g, v, rtol=1e-4, atol=1e-4 * np.max(np.abs(v)))
