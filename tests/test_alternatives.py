"""Other axes and chunks than a plan's own: offered as predictions, confirmed one by one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memscope


def nearest(q: jax.Array, x: jax.Array) -> Any:
    d = jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)
    return jax.lax.top_k(-d, 3)


rng = np.random.default_rng(0)
ARGS = tuple(rng.normal(size=(n, 8)).astype(np.float32) for n in (200, 2000))


@pytest.fixture(scope="module")
def plan() -> memscope.Plan:
    return memscope.plan(nearest, *ARGS, limit=300_000)


def test_they_cut_along_different_axes_and_in_different_chunks(plan: memscope.Plan) -> None:
    offered = plan.alternatives()
    assert {a.loops[0].streams[0].axis for a in offered} == {0, 1}
    assert len({(a.loops[0].size, a.loops[0].chunk) for a in offered}) == len(offered)
    assert all(a.predicted_peak_bytes < plan.original_peak_bytes for a in offered)
    assert all(a.predicted_slowdown > 0 for a in offered)


def test_one_of_them_is_confirmed_under_the_same_limit(plan: memscope.Plan) -> None:
    along = plan.loops[0].streams[0].axis
    other = next(a for a in plan.alternatives() if a.loops[0].streams[0].axis != along and a.loops[0].chunk > 16)
    chosen = plan.instead(other)
    assert chosen.limit_bytes == plan.limit_bytes
    assert chosen.loops == other.loops
    assert chosen.slowdown == other.predicted_slowdown
    assert chosen.fits == (chosen.peak_bytes <= plan.limit_bytes)
    assert 0.3 < chosen.peak_bytes / other.predicted_peak_bytes < 3
    for got, want in zip(chosen.fn(*ARGS), nearest(*ARGS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def test_one_that_does_not_fit_says_so(plan: memscope.Plan) -> None:
    largest = max(plan.alternatives(), key=lambda a: a.predicted_peak_bytes)
    assert largest.predicted_peak_bytes > plan.limit_bytes
    assert not plan.instead(largest).fits


def test_a_function_as_written_has_none() -> None:
    assert memscope.plan(nearest, *ARGS).alternatives() == ()
