"""Programs that broke a rewriting once, or look as if they could: the values, and that planning ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import memscope

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=601), jnp.float32)
Y = jnp.asarray(RNG.normal(size=403), jnp.float32)
KEY = jax.random.key(7)
EMPTY = jnp.zeros((0, 403))


def waves(x: Any, y: Any) -> Any:
    return jnp.sin(x[:, None] * y[None])


def eye_in_halves(x: Any, y: Any) -> Any:
    rows, columns = (lax.broadcasted_iota(jnp.bfloat16, (601, 403), d) for d in (0, 1))
    return jnp.where(rows == columns, waves(x, y), 0).sum(1)


def own_maximum(x: Any, y: Any) -> Any:
    highest = waves(x, y).max(0)
    return jnp.take_along_axis(highest, jnp.argmax(highest, 0, keepdims=True), 0)


def stencil(x: Any, y: Any) -> Any:
    z = waves(x, y)
    for _ in range(3):
        z = z + 0.1 * (jnp.roll(z, 1, 0) + jnp.roll(z, -1, 0) + jnp.roll(z, 1, 1) + jnp.roll(z, -1, 1) - 4 * z)
    return (z**2).sum(1)


def two_gradients(x: Any, y: Any) -> Any:
    return jax.grad(lambda x, y: jnp.sum(jnp.tanh(waves(x, y)) ** 2), argnums=(0, 1))(x, y)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "masks counted in bfloat16": (eye_in_halves, (X, Y)),
    "edge padding": (lambda x, y: jnp.pad(waves(x, y), ((5, 3), (0, 0)), mode="edge").sum(0), (X, Y)),
    "a maximum's own place": (own_maximum, (X, Y)),
    "joined with nothing": (lambda x, y, e: jnp.concatenate([e, waves(x, y)], 0).sum(1), (X, Y, EMPTY)),
    "padded from nothing": (lambda x, y, e: (jnp.pad(e, ((0, 601), (0, 0))) + waves(x, y)).sum(1), (X, Y, EMPTY)),
    "largest complex": (lambda x, y: jnp.max(waves(x, y) + 1j, 0), (X, Y)),
    "stencil": (stencil, (X, Y)),
    "key as argument": (lambda k, x: (jax.random.normal(k, (601, 403)) * x[:, None]).sum(0), (KEY, X)),
    "keys as results": (lambda k, x: (jax.random.split(k), waves(x, x).sum(0)), (KEY, X)),
    "results that are arguments": (lambda x, y: (x, waves(x, y).sum(0), x, None, 3.0), (X, Y)),
    "gram of an intermediate": (lambda x, y: jnp.tanh(jnp.tanh(waves(x, y)) @ jnp.tanh(waves(x, y)).T).sum(1), (X, Y)),
    "two gradients": (two_gradients, (X, Y)),
    "hessian": (lambda x, y: jax.hessian(lambda v: jnp.sum(jnp.sin(v[:, None] * v) ** 2))(x[:40]), (X, Y)),
    "per-row jacobian": (lambda x, y: jax.jacrev(lambda v: jnp.sin(v * Y[0]).cumsum())(x).sum(0), (X, Y)),
    "scan inside": (lambda x, y: lax.scan(lambda c, row: (c + row.sum(), row * c), 0.0, waves(x, y))[1].sum(0), (X, Y)),
    "cond inside": (lambda x, y: lax.cond(x[0] > 0, jnp.sin, jnp.cos, waves(x, y)).sum(0), (X, Y)),
    "sorted along and across": (lambda x, y: (jnp.sort(waves(x, y), 0)[0], jnp.sort(waves(x, y), 1)[:, 0]), (X, Y)),
    "segments": (lambda x, y: jax.ops.segment_sum(waves(x, y), jnp.arange(601) % 7, 7), (X, Y)),
    "not a number": (lambda x, y: jnp.nanmax(jnp.where(waves(x, y) > 0.9, jnp.nan, waves(x, y)), 0), (X, Y)),
    "checkpointed": (lambda x, y: jax.grad(lambda v: jax.checkpoint(waves)(v, y).sum())(x), (X, Y)),
}


def data(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


@pytest.mark.parametrize("limit", ["1%", "30%"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_stay(name: str, limit: str) -> None:
    fn, args = PROGRAMS[name]
    plan = memscope.plan(fn, *args, limit=limit, best_effort=True)
    want, got = jax.jit(fn)(*args), plan.fn(*args)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for w, g in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        assert w.dtype == g.dtype
        scale = float(np.max(np.abs(data(w)), initial=1.0)) if data(w).dtype.kind in "fc" else 0.0
        np.testing.assert_allclose(data(g), data(w), rtol=0, atol=2e-4 * scale)


def test_what_fits_at_one_limit_fits_at_any_higher_one() -> None:
    places = jnp.asarray(RNG.integers(0, 257, 257))

    def fn(x: Any, i: Any) -> Any:
        return jnp.sum(jax.nn.one_hot(i, 257), 0), jnp.outer(x[:50], x[:60])

    args = X[:257], places
    floor = memscope.plan(fn, *args, limit=1, best_effort=True).peak_bytes
    today = memscope.plan(fn, *args, limit=1, best_effort=True).original_peak_bytes
    for limit in np.linspace(floor, today, 6).astype(int):
        assert memscope.plan(fn, *args, limit=int(limit)).peak_bytes <= limit


def test_long_chains_are_planned_in_seconds() -> None:
    def chain(x: Any) -> Any:
        z = x[:, None] * x[None]
        for _ in range(600):
            z = jnp.sin(z) + 1
        return z.sum(0)

    before = time.monotonic()
    assert memscope.plan(chain, X, limit="20%").loops
    assert time.monotonic() - before < 60


class TestArguments:
    @staticmethod
    def scaled(x: Any, s: Any) -> Any:
        return waves(x, Y).sum(0) * s

    def test_numbers_take_the_planned_type_or_are_refused(self) -> None:
        plan = memscope.plan(self.scaled, X, jax.ShapeDtypeStruct((), "float32"), limit="20%")
        np.testing.assert_allclose(plan.fn(X, 2), self.scaled(X, 2.0), atol=1e-3)
        for wrong in (1j, "a", None):
            with pytest.raises(TypeError, match=r"s is|tree"):
                plan.fn(X, wrong)

    def test_static_values_of_memsafe_are_told_apart(self) -> None:
        safe = memscope.memsafe(lambda x, n: waves(x, Y).sum(0) * n, limit="1MiB", static_argnums=1)
        np.testing.assert_allclose(safe(X, 4), 2 * safe(X, 2), rtol=1e-5)

    def test_names_of_memscopes_own(self) -> None:
        def loss(x: Any, target: Any) -> Any:
            return (waves(x, Y).sum(1) - target).sum()

        np.testing.assert_allclose(memscope.memsafe(loss, limit="1MiB")(X, target=X), loss(X, X), rtol=1e-3)
        with pytest.raises(TypeError, match=r"functools\.partial\(loss, target=\.\.\.\)"):
            memscope.plan(loss, X, target=X, limit="1MiB")

    def test_keywords_of_any_name(self) -> None:
        def loose(x: Any, **options: Any) -> Any:
            return waves(x, Y).sum(0) * options["s"]

        plan = memscope.plan(loose, X, s=3.0, limit="20%")
        np.testing.assert_allclose(plan.fn(x=X, s=3.0), plan.fn(X, s=3.0))
