"""An order of instructions carried back to eqns: the same values, each eqn after what it reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import networks
from memscope.compile import Build, compile_program
from memscope.hlo.module import Module, parse_module
from memscope.program import Program, is_var
from memscope.schedule.from_hlo import ComputationOrder, OrderingProblems
from memscope.schedule.heuristics import depth_first
from memscope.schedule.steps import Step, run_in_steps, steps_of
from memscope.target import resolve
from memscope.trace import trace

from .random_programs import RandomProgram, programs
from .test_random_programs import agree_with, drawn, run


def compiled(program: Program) -> tuple[Module, ComputationOrder]:
    module = parse_module(compile_program(program, Build.REFERENCE, resolve("cpu")).module)
    return module, OrderingProblems(module).problem(module.entry, {})


def random_steps(program: Program, seed: int) -> tuple[Step, ...]:
    module, entry = compiled(program)
    order = depth_first(entry.problem, random.Random(seed))
    return steps_of(program, module, [entry.nodes[n] for n in order])


def check_order(program: Program, steps: tuple[Step, ...]) -> None:
    """Each kept eqn runs once and for all, each fused one where it is read."""
    kept = [eqn for step in steps for eqn in step.kept]
    assert len(kept) == len(set(kept))
    assert {i for i, eqn in enumerate(program.eqns) if not program.outputs.isdisjoint(eqn.outvars)} <= set(kept)
    ready: set[int] = set()
    for step in steps:
        here = ready | set(step.kept) | set(step.fused)
        for eqn in (*step.kept, *step.fused):
            makers = {program.producer[a] for a in program.eqns[eqn].invars if is_var(a) and a in program.producer}
            assert makers <= here
        assert ready.isdisjoint(step.fused)
        ready |= set(step.kept)


NETWORKS = {
    "inception": networks.inference("", networks.inception(2, 8, 8, 2)),
    "random-wired net": networks.gradient("", networks.random_wired(2, 8, 8, 4)),
    "mixer": networks.gradient("", networks.mixer(2, 8, 16, 2)),
    "Adam step": networks.adam("", networks.mlp(8, 8, 3)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_values_are_the_same(name: str) -> None:
    fn, args = NETWORKS[name].fn, NETWORKS[name].make_args()
    program = trace(fn, args)
    steps = random_steps(program, 0)
    assert len(steps) > 5
    check_order(program, steps)
    run = jax.jit(run_in_steps(program, steps))
    for got, want in zip(run(*jax.tree.leaves(args)), jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), min_size=3, max_size=12))
@settings(max_examples=8, deadline=None)
def test_any_graph_in_any_order_gives_the_same_values(edges: list[tuple[int, int, bool]]) -> None:
    def fn(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        values = [x, y]
        for a, b, product in edges:
            left, right = values[a % len(values)], values[b % len(values)]
            values.append(left @ right / 8 if product else jnp.tanh(left) * right + len(values))
        return [jnp.max(v) for v in values[2:]]

    rng = np.random.default_rng(1)
    args = [rng.uniform(-1, 1, (8, 8)).astype(np.float32) for _ in range(2)]
    program = trace(fn, args)
    steps = random_steps(program, len(edges))
    check_order(program, steps)
    for got, want in zip(jax.jit(run_in_steps(program, steps))(*args), fn(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4)


def test_random_programs_in_random_orders_keep_their_values() -> None:
    seen: list[int] = []

    @drawn(0.06)
    @given(programs())
    def check(fn: RandomProgram) -> None:
        with jax.enable_x64(fn.x64):
            program = trace(fn, fn.args)
            steps = random_steps(program, fn.seed)
            check_order(program, steps)
            seen.append(len(steps))
            agree_with(fn, run(run_in_steps(program, steps), fn.args))

    check()
    assert sum(seen) > 2 * len(seen)


def branches(x: jax.Array) -> jax.Array:
    parts = [jnp.sort(x[:, None] * (k + 1.0) + x, axis=0)[3].sum() for k in range(4)]
    return sum(parts, jnp.float32(0))


def barriers(run: Callable[..., Any], *args: Any) -> int:
    return str(jax.make_jaxpr(run)(*args)).count("optimization_barrier")


def test_a_step_that_reads_the_one_before_needs_no_barrier() -> None:
    x = jnp.ones(50)
    program = trace(lambda x: jnp.sort(jnp.sort(x) * 2)[::-1].sum(), (x,))
    assert barriers(run_in_steps(program, random_steps(program, 0)), x) == 0
    program = trace(branches, (x,))
    assert barriers(run_in_steps(program, random_steps(program, 0)), x) >= 3


def test_what_is_fused_is_computed_where_it_is_read() -> None:
    def shared(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        halved = x * 0.5  # XLA computes it again in both
        return jnp.sort(halved + 1), jnp.argsort(halved - 1)

    program = trace(shared, (jnp.ones(50),))
    halving = next(i for i, eqn in enumerate(program.eqns) if eqn.primitive.name == "mul")
    steps = random_steps(program, 0)
    assert sum(halving in step.fused for step in steps) == 2
    assert not any(halving in step.kept for step in steps)


def test_keys_pass_and_effects_keep_their_order() -> None:
    seen: list[int] = []

    def draws(key: jax.Array, x: jax.Array) -> jax.Array:
        parts = []
        for number, k in enumerate(jax.random.split(key, 3)):
            parts.append(jnp.sum(jax.random.normal(k, (20, 20)) @ x))
            jax.debug.callback(lambda _, number=number: seen.append(number), parts[-1], ordered=True)
        return jnp.stack(parts)

    key, x = jax.random.key(0), jnp.ones((20, 20))
    want = draws(key, x)
    jax.effects_barrier()
    seen.clear()
    program = trace(draws, (key, x))
    for seed in range(3):
        (got,) = jax.jit(run_in_steps(program, random_steps(program, seed)))(key, x)
        jax.effects_barrier()
        np.testing.assert_allclose(got, want, rtol=1e-4)
    assert seen == [0, 1, 2] * 3
