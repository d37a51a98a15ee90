"""Intermediates computed again: as few bytes kept as can be, the same values, and never in vain."""

from __future__ import annotations

import functools
import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memscope
from memscope.compile import Build, compile_program
from memscope.program import Program, nbytes
from memscope.recompute import recomputations
from memscope.recompute.again import run_again
from memscope.recompute.kept import cut, widest
from memscope.recompute.prices import Level
from memscope.target import resolve
from memscope.trace import trace, trace_flat
from memscope_jupyter.rewrite import rewrite_html

CPU = resolve("cpu")
KEY = jax.random.key(0)


def normed(weights: Any, x: Any) -> Any:
    """Layers with a mean over the whole array in each: loops have to make all layers before again and again."""
    for weight in weights:
        x = x @ weight
        x = x - x.mean()
        x = jax.nn.gelu(x / jnp.sqrt((x * x).mean() + 1e-5))
    return (x * x).mean()


def dropped(x: Any, key: Any) -> Any:
    """Sorts between layers that each hold a random mask."""
    for k in jax.random.split(key, 4):
        x = jnp.sort(jnp.where(jax.random.bernoulli(k, 0.5, x.shape), jnp.tanh(x), jnp.sin(x) * x))
        x = jnp.exp(-x * x) * jnp.cos(x)
    return (x * x).sum()


def sorted_layers(x: Any, printing: bool) -> Any:
    for _ in range(3):
        y = jnp.tanh(jnp.sort(jnp.sin(x)))
        if printing:
            jax.debug.print("{}", y.sum())
        x = jnp.exp(-y * y) * jnp.cos(y)
    return (x * x).sum()


def normal(*shape: int) -> Any:
    return jax.random.normal(KEY, shape)


NORMED = jax.value_and_grad(normed), (tuple(normal(32, 32) / 6 for _ in range(2)), normal(256, 32))
DROPPED = jax.value_and_grad(dropped), (normal(1 << 14), KEY)


def temporaries(program: Program) -> int:
    return compile_program(program, Build.REFERENCE, CPU).temp_bytes


def results(program: Program, args: Any) -> list[Any]:
    return [np.asarray(r) for r in compile_program(program, Build.REFERENCE, CPU).call(*jax.tree.leaves(args))]


def primitives(program: Program) -> Counter[str]:
    return Counter(eqn.primitive.name for eqn in program.eqns)


@pytest.fixture(scope="module")
def plan() -> memscope.Plan:
    fn, args = NORMED
    return memscope.plan(fn, *args, limit="62%")


def test_a_plan_computes_some_of_it_twice_where_loops_take_many_times_as_long(plan: memscope.Plan) -> None:
    assert plan.fits
    assert plan.peak_bytes <= plan.limit_bytes
    assert plan.recomputed
    assert not plan.reordered
    assert not plan.loops
    assert 1 < plan.extra_work < 2
    assert "made twice" in plan.explain()
    assert "dropped after its early readers" in rewrite_html(plan)


def test_a_plan_gives_the_values_and_gradients_of_the_function(plan: memscope.Plan) -> None:
    assert plan.check(*NORMED[1]).ok


def test_the_saved_source_gives_the_same_values_at_the_same_peak(plan: memscope.Plan, tmp_path: Path) -> None:
    portable = plan.portable
    assert portable.recomputed
    assert portable.peak_bytes <= plan.limit_bytes
    scope: dict[str, Any] = {}
    exec(plan.save(tmp_path / "safe.py").read_text(), scope)
    safe = scope["normed_safe"]
    for made, wanted in zip(jax.tree.leaves(safe(*NORMED[1])), jax.tree.leaves(portable.fn(*NORMED[1])), strict=True):
        np.testing.assert_array_equal(made, wanted)
    again = jax.jit(safe, compiler_options=portable.build.options)
    stats = again.trace(*NORMED[1]).lower().compile().memory_analysis()
    assert stats.temp_size_in_bytes == portable.compiled.temp_bytes


@pytest.mark.parametrize(("fn", "args"), [NORMED, DROPPED])
def test_each_choice_takes_more_work_and_less_memory_than_the_one_before(fn: Any, args: Any) -> None:
    program = trace(fn, args)
    found = recomputations(program, CPU)
    works = [r.estimate.work for r in found]
    assert works == sorted(works)
    assert temporaries(found[0].program) < temporaries(program)
    assert temporaries(found[-1].program) <= temporaries(found[0].program)


@pytest.mark.parametrize(("fn", "args"), [NORMED, DROPPED])
def test_values_and_gradients_are_right_for_the_lowest_choice(fn: Any, args: Any) -> None:
    program = trace(fn, args)
    lowest = recomputations(program, CPU)[-1].program
    for made, wanted in zip(results(lowest, args), results(program, args), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=1e-6)


def test_sorts_are_made_once_and_random_bits_from_the_same_key() -> None:
    fn, args = DROPPED
    program = trace(fn, args)
    for each in recomputations(program, CPU):
        assert primitives(each.program)["sort"] == primitives(program)["sort"]
        assert primitives(each.program)["random_seed"] == primitives(program)["random_seed"]


def test_effects_happen_once() -> None:
    program = trace(jax.grad(functools.partial(sorted_layers, printing=True)), (normal(1 << 12),))
    found = recomputations(program, CPU)
    assert found
    for each in (program, found[-1].program):
        assert primitives(each)["debug_print"] == 3


def test_nothing_is_chosen_where_nothing_helps() -> None:
    assert recomputations(trace(lambda x: jnp.sort(jnp.sin(x)).sum(), (normal(4096),)), CPU) == ()
    assert recomputations(trace(lambda x: x, (normal(4),)), CPU) == ()


def test_of_two_values_that_give_all_the_rest_the_smaller_one_is_kept() -> None:
    def fn(x: Any) -> Any:
        small = jnp.sort(x)
        wide = jnp.outer(jnp.sin(small), jnp.cos(small))
        return jnp.sort(jnp.sort(wide.ravel()) + jnp.tanh(wide).ravel()).sum() + (wide * wide).sum()

    program = trace(fn, (normal(64),))
    choice = cut(program, widest(program), 1, Level.CHEAP)
    kept = {v for v in program.producer if v not in choice.again}
    assert any(nbytes(v) == 64 * 64 * 4 for v in choice.instead)
    assert program.eqns[0].outvars[0] in kept


def test_a_value_that_costs_much_is_kept_unless_asked_for_more() -> None:
    program = trace(NORMED[0], NORMED[1])
    late = widest(program)
    dots = {v for eqn in program.eqns if eqn.primitive.name == "dot_general" for v in eqn.outvars}
    assert not dots & cut(program, late, 1, Level.CHEAP).again
    assert dots & cut(program, late, 1, Level.COSTLY).again


def test_more_segments_make_less_of_a_long_chain_at_once() -> None:
    def chain(x: Any) -> Any:
        for _ in range(12):
            x = jnp.cos(x.T) * jnp.tanh(x)
        return (x * x).sum()

    program = trace(jax.grad(chain), (normal(64, 64),))
    late = widest(program)
    again = [len(cut(program, late, k, Level.CHEAP).again) for k in (1, 4)]
    assert again[0] > again[1] > 0
    assert temporaries(recomputations(program, CPU)[-1].program) < 0.6 * temporaries(program)


def test_on_a_gpu_a_barrier_holds_back_what_is_computed_again() -> None:
    fn, args = NORMED
    program = trace(fn, args, platform="cuda")
    choice = cut(program, widest(program), 1, Level.CHEAP)
    rewritten = program.rewritten(trace_flat(run_again(program, choice, "cuda"), program, "cuda"))
    assert primitives(rewritten)["optimization_barrier"] > 0
    for made, wanted in zip(results(rewritten, args), results(program, args), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="XLA's GPU compiler is not installed (extra gpu)",
)
class TestOnAnA100:
    shapes = ((jax.ShapeDtypeStruct((64, 64), "float32"),) * 3, jax.ShapeDtypeStruct((8192, 64), "float32"))

    def test_what_is_dropped_is_not_held(self) -> None:
        a100 = resolve("a100-40gb")
        program = trace(NORMED[0], self.shapes, platform="cuda")
        lowest = recomputations(program, a100)[-1].program
        before, after = (compile_program(p, Build.PLAIN, a100).temp_bytes for p in (program, lowest))
        assert after < 0.7 * before

    def test_a_plan_computes_some_of_it_twice(self) -> None:
        profile = memscope.profile(NORMED[0], *self.shapes, target="a100-40gb")
        limit = profile.peak_bytes - profile.temp_bytes // 4
        plan = memscope.plan(NORMED[0], *self.shapes, limit=limit, target="a100-40gb")
        assert plan.fits
        assert plan.recomputed
        assert plan.temp_bytes <= 0.75 * profile.temp_bytes
        assert plan.extra_work < 2
        assert "optimization_barrier" in plan.source()
        assert "made twice" in plan.explain()


def test_a_lower_limit_never_gives_a_higher_peak(plan: memscope.Plan) -> None:
    limits = [int(share * plan.original_peak_bytes) for share in (0.75, 0.62, 0.55)]
    peaks = [plan.request.plan(limit, best_effort=True).peak_bytes for limit in limits]
    assert peaks == sorted(peaks, reverse=True)
    assert all(peak <= limit for peak, limit in zip(peaks, limits, strict=True))
