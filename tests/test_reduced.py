"""Smaller arguments of the same kind."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import memscope
from memscope.reduced import reduced_arguments


def attend(q: jax.Array, kv: dict[str, jax.Array]) -> jax.Array:
    return jax.nn.softmax(q @ kv["k"].T) @ kv["v"]


def test_the_axes_that_are_cut_become_short() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(n, 8)).astype(np.float32) for n in (400, 300, 300))
    args = q, {"k": k, "v": v}
    plan = memscope.plan(attend, *args, limit="25%")
    (loop,) = plan.loops
    reduced = reduced_arguments(plan, args, plan.original_peak_bytes // 8)
    assert reduced is not None
    shapes = [leaf.shape[0] for leaf in jax.tree.leaves(reduced)]
    assert shapes == [loop.size // 8 if n == loop.size else n for n in (400, 300, 300)]
    check = plan.check(*args, reduced=reduced)
    assert check.ok
    assert check.max_rel_err is not None


def test_where_no_argument_has_the_axis_there_are_none() -> None:
    def table(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(jnp.arange(20_000.0)[:, None] * x), 0)

    x = np.ones(50, np.float32)
    assert reduced_arguments(memscope.plan(table, x, limit="50%"), (x,), 1000) is None
    assert reduced_arguments(memscope.plan(table, x), (x,), 1000) is None
