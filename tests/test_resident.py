"""Rows that a loop keeps for later ones: the same values with less work, in what the limit leaves."""

from __future__ import annotations

import functools
import pathlib
import runpy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import memscope
from memscope.cost import estimate
from memscope.machine import CPU
from memscope.program import Program
from memscope.search.resident import options
from memscope.stream import Closure, Resident, Streaming, rewrite
from memscope.stream.reductions import Form
from memscope.stream.resident import readers_of, slices_of
from memscope.trace import trace, trace_flat
from memscope_jupyter.rewrite import rewrite_html

from .test_random_programs import run


def contrast(a: Any, b: Any) -> Any:
    """The gradient of a loss over the rows and the columns of a matrix, as of a contrastive one."""

    def loss(a: Any, b: Any) -> Any:
        scores = a @ b.T
        rows, columns = jax.nn.logsumexp(scores, 1), jax.nn.logsumexp(scores, 0)
        return jnp.mean(rows) + jnp.mean(columns) - jnp.mean(jnp.diagonal(scores))

    return jax.value_and_grad(loss, (0, 1))(a, b)


def normalised(a: Any, b: Any) -> Any:
    """A matrix over its sum, of two others that both take work."""
    first, second = jnp.sin(a) @ b.T, jnp.cos(a) @ b.T
    weights = first * first + second
    return (weights / jnp.sum(weights * weights)).sum(0), (first / jnp.max(jnp.abs(second))).sum(1)


def matrices(rows: int, columns: int, dtype: Any = jnp.float32) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=(n, 5)), dtype) for n in (rows, columns))


@functools.cache
def rows_of(fn: Callable[..., Any], shape: tuple[int, int], dtype: Any = jnp.float32) -> tuple[Program, Streaming]:
    """The loops over the rows of all arrays of that shape."""
    program = trace(fn, matrices(*shape, dtype))
    closure = Closure(program)
    largest = next(v for eqn in program.eqns for v in eqn.outvars if v.aval.shape == shape)
    reach = closure.axes.reach((largest, 0))
    return program, closure.build(reach, reach, one_way=True)


def best_rows(streaming: Streaming) -> Resident:
    return max(options(streaming, CPU), key=lambda option: option.work).resident


def agree(got: Any, want: Any, within: float) -> None:
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(np.asarray(g, np.float64), np.asarray(w, np.float64), rtol=within, atol=within)


@pytest.mark.parametrize("form", [Form.BLOCKS, Form.LANES])
@pytest.mark.parametrize("fn", [contrast, normalised])
@pytest.mark.parametrize(("chunk", "steps"), [(1, 1), (4, 6), (5, 13), (13, 3), (3, 12)])
def test_values_stay(fn: Callable[..., Any], chunk: int, steps: int, form: Form) -> None:
    _, streaming = rows_of(fn, (13, 9))
    resident = best_rows(streaming)
    chunks = dict.fromkeys(streaming.loops, chunk)
    chunks[resident.maker] = max(1, chunk - 1)
    kept = Resident(resident.maker, resident.readers, resident.values, steps)
    args = matrices(13, 9)
    agree(run(rewrite(streaming, chunks, form, kept), args), fn(*args), 1e-5)


@pytest.mark.parametrize("steps", [1, 7, 11])
def test_narrow_types_stay_what_they_are(steps: int) -> None:
    _, streaming = rows_of(normalised, (11, 6), jnp.bfloat16)
    resident = best_rows(streaming)
    args = matrices(11, 6, jnp.bfloat16)
    chunks = dict.fromkeys(streaming.loops, 3)
    kept = Resident(resident.maker, resident.readers, resident.values, steps)
    agree(
        run(rewrite(streaming, chunks, Form.BLOCKS, kept), args), run(rewrite(streaming, chunks, Form.BLOCKS), args), 0
    )


def test_work_falls_with_each_row_that_is_kept() -> None:
    program, streaming = rows_of(normalised, (48, 40))
    assert len(streaming.loops) == 2
    resident = best_rows(streaming)
    chunks = dict.fromkeys(streaming.loops, 4)

    def work(steps: int) -> float:
        kept = Resident(resident.maker, resident.readers, resident.values, steps) if steps else None
        return estimate(trace_flat(rewrite(streaming, chunks, Form.BLOCKS, kept), program, "cpu")).work

    works = [work(steps) for steps in (0, 12, 24, 48)]
    quarter = (works[0] - works[3]) / 4
    assert [works[0] - work for work in works[1:3]] == pytest.approx([quarter, 2 * quarter], rel=1e-2)
    assert works[3] < 1.05 * estimate(program.closed).work < 0.9 * works[0]


def test_what_spares_most_for_its_bytes_comes_first() -> None:
    program, streaming = rows_of(normalised, (48, 40))
    found = list(options(streaming, CPU))
    assert [len(option.resident.values) for option in found] == list(range(1, len(found) + 1))
    made = [program.eqns[program.producer[var]].primitive.name for var, _ in found[1].resident.values]
    assert made.count("dot_general") + made.count("add") == 2
    few, many = found[0].resident.step_bytes, found[1].resident.step_bytes * 48
    assert max(found, key=lambda option: option.spared(few)) is found[0]
    assert max(found, key=lambda option: option.spared(many)) is not found[0]


def test_terms_about_a_running_maximum_are_not_kept() -> None:
    """The loop that finds the maximum has other values of them than the next one."""
    program, streaming = rows_of(contrast, (13, 9))
    maker, readers = next((maker, readers) for maker, readers in readers_of(streaming) if maker.joined)
    (joined,) = maker.joined
    terms = program.eqns[joined.total.task.eqn].invars[0]
    both = {var for task in maker.body if task in readers[0].body for var, _ in task.results(program)}
    kept = {var for var, _ in slices_of(program, maker)}
    assert terms in both - kept
    assert {program.eqns[program.producer[var]].primitive.name for var in kept} >= {"dot_general", "exp"}


def test_steps_that_depend_on_each_other_are_left_alone() -> None:
    def fn(xs: Any) -> Any:
        def loss(xs: Any) -> Any:
            return jnp.sum(lax.scan(lambda h, x: (jnp.sin(h + x), h), jnp.zeros(3), xs)[1] ** 2)

        return jax.grad(loss)(jnp.exp(xs))

    program = trace(fn, (jnp.ones((13, 3)),))
    closure = Closure(program)
    states = max((v for e in program.eqns for v in e.outvars), key=lambda v: v.aval.size)
    reach = closure.axes.reach((states, 0))
    streaming = closure.build(reach, reach)
    assert len(streaming.loops) > 1
    assert readers_of(streaming) == []


def deep(a: Any, b: Any) -> Any:
    """Two loops over a product that takes most of the work."""
    product = a @ b.T
    return jnp.cos(product / jnp.sqrt(jnp.sum(product * product))).sum(0)


@functools.cache
def plan_of(percent: int) -> memscope.Plan:
    """With room for so much of the product."""
    shapes = [jax.ShapeDtypeStruct((n, 160), jnp.float32) for n in (1500, 1201)]
    fixed = 4 * (1500 * 160 + 1201 * 160 + 1201)
    return memscope.plan(deep, *shapes, limit=fixed + 4 * 1500 * 1201 * percent // 100)


@pytest.mark.parametrize("percent", [20, 80])
def test_a_plan_keeps_what_its_limit_has_room_for(percent: int) -> None:
    plan = plan_of(percent)
    made, taken = (rows for loop in plan.loops for rows in loop.kept)
    assert (made.made, taken.made) == (True, False)
    assert (made.shape, made.rows, made.bytes) == (taken.shape, taken.rows, taken.bytes)
    assert (made.shape, made.op) == ((1500, 1201), "dot_general")
    assert made.bytes == 4 * made.rows * (1201, 1500)[made.axis]
    assert plan.peak_bytes <= plan.limit_bytes
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=(n, 160)), jnp.float32) for n in (1500, 1201))
    agree(plan.fn(a, b), deep(a, b), 1e-3)


def test_a_higher_limit_takes_less_work_in_no_more_time() -> None:
    low, high = plan_of(20), plan_of(80)
    assert 1.0 < high.extra_work < low.extra_work < 1.9
    assert high.slowdown <= low.slowdown


def test_a_plan_says_what_it_keeps() -> None:
    text = plan_of(20).explain()
    assert text.count("float32[1500,1201]  its last ") == 2
    assert "    keeps        float32[1500,1201]  its last " in text
    assert "    takes        float32[1500,1201]  its last " in text
    words = rewrite_html(plan_of(20))
    assert words.index("are kept for a later loop") < words.index("are taken from there, and not computed again")


def test_source_keeps_the_rows_too(tmp_path: pathlib.Path) -> None:
    plan = plan_of(20)
    names = runpy.run_path(str(plan.save(tmp_path / "deep.py")))
    rng = np.random.default_rng(1)
    a, b = (jnp.asarray(rng.normal(size=(n, 160)), jnp.float32) for n in (1500, 1201))
    agree(names["deep_safe"](a, b), plan.fn(a, b), 1e-6)
    rows = plan.loops[0].kept[0].rows
    assert f"jnp.zeros(({rows}, 1201)" in plan.source()
