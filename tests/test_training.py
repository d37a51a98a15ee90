"""A training step, forward, backward and optimiser in one function: gradient accumulation found by itself."""

from __future__ import annotations

import jax
import numpy as np

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
