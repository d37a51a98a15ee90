"""An order that XLA's GPU compiler keeps."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memscope
from memscope.barriers import MOST_BARRIERS, depth_first, ordering, run_in_order
from memscope.program import Program
from memscope.trace import trace

GPU = importlib.util.find_spec("jax_cuda13_plugin") is not None
needs_gpu_compiler = pytest.mark.skipif(not GPU, reason="XLA's GPU compiler is not installed (extra gpu)")

BRANCHES = 8


def branches(x: jax.Array, w: jax.Array) -> jax.Array:
    """Each branch holds one large array; nothing says that all have to be held at once."""
    return sum((jnp.sum(jnp.tanh(x @ w[i])) for i in range(BRANCHES)), jnp.zeros(()))


def shapes(n: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return jax.ShapeDtypeStruct((n, n), "float32"), jax.ShapeDtypeStruct((BRANCHES, n, n), "float32")


def run(program: Program, *args: object) -> list[jax.Array]:
    order = ordering(program, depth_first(program))
    assert order is not None
    return jax.jit(run_in_order(program, order))(*args)


def test_each_branch_is_a_stretch() -> None:
    program = trace(branches, shapes(64))
    order = ordering(program, depth_first(program))
    assert order is not None
    assert len(order.stretches) in (BRANCHES, BRANCHES + 1)
    assert sorted(order.order) == list(range(len(program.eqns)))


def test_operands_come_before_what_reads_them() -> None:
    program = trace(branches, shapes(64))
    place = {index: k for k, index in enumerate(depth_first(program))}
    for index, eqn in enumerate(program.eqns):
        for var in eqn.invars:
            maker = program.producer.get(var) if not hasattr(var, "val") else None
            assert maker is None or place[maker] < place[index]


def test_one_chain_needs_no_order() -> None:
    program = trace(lambda x: jnp.sin(x) + 1, shapes(8)[:1])
    assert ordering(program, depth_first(program)) is None


def test_the_values_are_the_same() -> None:
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.shape).astype(np.float32) for s in shapes(32)]
    (got,) = run(trace(branches, shapes(32)), *args)
    terms = BRANCHES * 32 * 32  # of magnitude one, that cancel each other
    np.testing.assert_allclose(got, branches(*args), rtol=0, atol=terms * float(jnp.finfo(jnp.float32).eps))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=12))
@settings(max_examples=20, deadline=None)
def test_any_graph_gives_the_same_values(edges: list[tuple[int, int]]) -> None:
    def fn(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        values = [x, y]
        for a, b in edges:
            values.append(values[a % len(values)] @ values[b % len(values)] / 8 + len(values))
        return [jnp.max(v) for v in values[2:]]

    rng = np.random.default_rng(1)
    args = [rng.uniform(-1, 1, (8, 8)).astype(np.float32) for _ in range(2)]
    program = trace(fn, args)
    order = ordering(program, depth_first(program))
    if order is not None:
        for got, want in zip(jax.jit(run_in_order(program, order))(*args), fn(*args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4)


def test_keys_and_effects_pass() -> None:
    def draws(key: jax.Array, x: jax.Array) -> jax.Array:
        parts = [jnp.sum(jax.random.normal(k, (100, 100)) @ x) for k in jax.random.split(key, 3)]
        jax.debug.callback(lambda total: None, parts[0])
        return jnp.stack(parts)

    key, x = jax.random.key(0), jnp.ones((100, 100))
    (got,) = run(trace(draws, (key, x)), key, x)
    np.testing.assert_allclose(got, draws(key, x), rtol=1e-4)


def test_a_long_program_gets_a_few_barriers() -> None:
    def many(x: jax.Array) -> jax.Array:
        return jnp.stack([jnp.sum(jnp.sin(x * i) @ x) for i in range(2 * MOST_BARRIERS)])

    program = trace(many, shapes(8)[:1])
    order = ordering(program, depth_first(program))
    assert order is not None
    assert MOST_BARRIERS // 2 < len(order.stretches) <= MOST_BARRIERS + 1


@needs_gpu_compiler
class TestOnAnA100:
    def test_a_plan_holds_two_large_arrays_instead_of_sixteen(self) -> None:
        n = 2048
        large = 4 * n * n
        before = memscope.profile(branches, *shapes(n), target="a100-40gb")
        assert before.temp_bytes >= 16 * large
        plan = memscope.plan(branches, *shapes(n), limit=before.peak_bytes - 13 * large, target="a100-40gb")
        assert plan.fits
        assert plan.changed
        assert plan.temp_bytes <= 2.01 * large
        assert plan.stretches > 1
        assert not plan.loops
        assert "stretches, each done before the next one starts (optimization_barrier)" in plan.explain()
        assert plan.slowdown == 1.0
        source = plan.source()
        assert "optimization_barrier" in source
        names: dict[str, object] = {}
        exec(compile(source, "branches_safe.py", "exec"), names)
        args = [jnp.full(s.shape, 0.01) for s in shapes(n)]
        made = names["branches_safe"]
        assert callable(made)
        np.testing.assert_allclose(made(*args), branches(*args), rtol=1e-4)

    def test_the_order_is_xlas_where_that_fits(self) -> None:
        plan = memscope.plan(branches, *shapes(512), limit="1GiB", target="a100-40gb")
        assert plan.stretches == 1
        assert not plan.changed
