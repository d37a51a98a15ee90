"""A training step, forward, backward and optimiser in one function: gradient accumulation found by itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import memscope
from benchmarks.training import Sizes, arguments, planned, training_step

SMALL = Sizes(layers=2, width=32, heads=4, hidden=64, words=50, batch=12, length=33)


def test_the_batch_is_streamed_and_the_step_stays_the_same() -> None:
    plan = planned(SMALL, lambda line: None)
    assert plan.fits
    assert plan.temp_bytes <= 0.15 * plan.original_temp_bytes
    assert [loop.size for loop in plan.loops] == [SMALL.batch]
    assert plan.extra_work < 1.05
    args = arguments(SMALL)
    got, want = plan.fn(*args), jax.jit(training_step(SMALL))(*args)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-3, atol=2e-5)


def test_a_loss_over_the_sum_of_its_weights_takes_one_loop() -> None:
    """The cotangent waits for that sum alone, which next to nothing leads to: it is taken before the loop."""

    def gradients(w: jax.Array, x: jax.Array, label: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        def loss(w: jax.Array, x: jax.Array) -> jax.Array:
            logp = jax.nn.log_softmax(x @ w)
            own = jnp.take_along_axis(logp, label[:, None], 1)[:, 0]
            counts = label != 0
            return -jnp.sum(own * counts) / jnp.maximum(counts.sum(), 1)

        return jax.value_and_grad(loss, (0, 1))(w, x)

    rng = np.random.default_rng(0)
    args = rng.normal(size=(16, 3000)), rng.normal(size=(300, 16)), rng.integers(0, 3000, 300)
    args = tuple(a.astype(np.float32 if a.dtype.kind == "f" else np.int32) for a in args)
    plan = memscope.plan(gradients, *args, limit="10%")
    assert len(plan.loops) == 1
    assert plan.extra_work < 1.05
    for got, want in zip(jax.tree.leaves(plan.fn(*args)), jax.tree.leaves(gradients(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
