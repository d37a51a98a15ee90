"""From sinks to loops: what may share one, and what has to wait for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core as jex_core

import memscope
from memscope.program import Program
from memscope.stream import Closure, Stack, Streaming, rewrite
from memscope.stream.reductions import Form
from memscope.trace import trace


def streaming_of(fn: Callable[..., Any], args: tuple[Any, ...], streamed: list[int]) -> tuple[Program, Streaming]:
    """The loops that stream the first results of some eqns along their first axes."""
    program = trace(fn, args)
    wanted = [program.eqns[index].outvars[0] for index in streamed]
    return program, Closure(program).build(wanted, {var: [0] for var in wanted})


def check(fn: Callable[..., Any], args: tuple[Any, ...], streaming: Streaming, chunk: int, form: Form) -> None:
    got = jax.jit(rewrite(streaming, {loop: min(chunk, loop.steps) for loop in streaming.loops}, form))(*args)
    for g, w in zip(got, jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 6])
def test_a_loop_of_other_steps_waits_for_what_it_reads(chunk: int) -> None:
    """`pad` takes six steps and reads what a loop of five steps keeps: one after the other, not side by side."""

    def fn(a: Any) -> Any:
        kept = jnp.sin(a) - 1.0
        square = kept * kept
        return jnp.pad(square, ((0, 1), (0, 0))), square * 3.0

    args = (jnp.ones((5, 3)),)
    _, streaming = streaming_of(fn, args, [0, 2])
    assert sorted((loop.level, loop.steps) for loop in streaming.loops) == [(0, 5), (1, 6)]
    check(fn, args, streaming, chunk, Form.BLOCKS)


@pytest.mark.parametrize("form", list(Form))
def test_what_a_chain_leaves_behind_is_not_lost_in_its_reduction(form: Form) -> None:
    def fn(x: Any) -> Any:
        kept = jnp.cos(jnp.sin(x))
        return jnp.sum(kept + 1.0, -1)

    args = (jnp.linspace(0, 1, 78).reshape(6, 1, 13),)
    _, streaming = streaming_of(fn, args, [0, 2])
    assert any(isinstance(sink, Stack) for loop in streaming.loops for sink in loop.sinks)
    check(fn, args, streaming, 2, form)


def test_a_matrix_goes_through_the_loops_one_way() -> None:
    """Statistics of its columns are kept, rather than the matrix computed by columns as well."""

    def fn(x: Any) -> Any:
        scores = jnp.exp(x @ x.T)
        rows, columns = scores.sum(1), scores.sum(0)
        return (scores / rows[:, None] / columns).sum(), jnp.diagonal(scores).sum() + (rows + columns).sum()

    args = (jnp.linspace(-1, 1, 33).reshape(11, 3),)
    program = trace(fn, args)
    closure = Closure(program)
    scores = next(e.outvars[0] for e in program.eqns if e.primitive.name == "exp")
    reach = closure.axes.reach((scores, 0))
    streaming = closure.build(reach, reach, one_way=True)
    cut = {
        extent.axis
        for loop in streaming.loops
        for task in loop.body
        for var, extent in task.results(program)
        if var is scores and extent is not None
    }
    assert cut == {0}
    check(fn, args, streaming, 4, Form.BLOCKS)


@pytest.mark.parametrize("chunk", [1, 3, 5])
def test_both_directions_of_time_find_their_states(chunk: int) -> None:
    def fn(xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.sin(h + x)
            return h, h

        def loss(xs: Any) -> Any:
            last, states = lax.scan(step, jnp.zeros(3), xs)
            return jnp.sum(last) + jnp.sum(jnp.cos(states))

        return jax.value_and_grad(loss)(jnp.exp(xs))

    args = (jnp.linspace(-1, 1, 39).reshape(13, 3),)
    program = trace(fn, args)
    closure = Closure(program)
    states = max((v for e in program.eqns for v in e.outvars), key=lambda v: v.aval.size)
    reach = closure.axes.reach((states, 0))
    streaming = closure.build(reach, reach)
    assert streaming.tied
    assert {loop.reverse for loop in streaming.loops if loop.saves or loop.replays} == {False, True}
    check(fn, args, streaming, chunk, Form.BLOCKS)


@pytest.mark.parametrize("start", [1, 4, 9, -2, -20])
def test_rows_of_a_slice_that_would_reach_out_are_those_that_it_has(start: int) -> None:
    """By itself XLA makes one slice of two, and moves it inside as a whole."""

    def fn(a: Any, start: Any, rows: Any, columns: Any) -> Any:
        some = lax.dynamic_slice(a, (start, 0), (5, 3))
        return some.at[rows, columns].get(mode="promise_in_bounds") * 2.0

    rows, columns = np.array([4, 1, 0, 2, 3]), np.array([2, 0, 1, 1, 0])
    args = (jnp.arange(21.0).reshape(7, 3), np.int32(start), rows, columns)
    gather = next(i for i, eqn in enumerate(trace(fn, args).eqns) if eqn.primitive.name == "gather")
    _, streaming = streaming_of(fn, args, [gather])
    check(fn, args, streaming, 4, Form.BLOCKS)  # and one row more, which XLA takes by a `dynamic_slice`


def test_convolutions_inside_loops_have_their_axes_in_the_order_of_the_fast_kernel() -> None:
    """XLA puts them in it everywhere else, and runs any other order tap by tap."""

    def loss(kernel: Any, images: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        seen = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=dims)
        return jnp.sum(jnp.tanh(seen) ** 2)

    rng = np.random.default_rng(0)
    args = rng.normal(size=(3, 3, 4, 8)), rng.normal(size=(64, 16, 16, 4))
    kernel, images = (a.astype(np.float32) for a in args)
    fn = jax.grad(loss, (0, 1))
    plan = memscope.plan(fn, kernel, images, limit="75%")
    inside = list(eqns_inside(plan.rewritten.jaxpr, "conv_general_dilated"))
    assert len(inside) == 3
    for eqn in inside:
        assert tuple(eqn.params["dimension_numbers"]) == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    for got, want in zip(plan.fn(kernel, images), fn(kernel, images), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def eqns_inside(jaxpr: Any, name: str) -> Iterator[Any]:
    """The eqns of a primitive in the bodies of loops and branches."""
    for eqn in jaxpr.eqns:
        for body in jex_core.jaxprs_in_params(eqn.params):
            yield from (inner for inner in body.eqns if inner.primitive.name == name)
            yield from eqns_inside(body, name)
