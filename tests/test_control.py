"""Loops and branches: axes through their bodies, sums inside them, their steps in turn, and bodies rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import memscope
from memscope.axes.factor import shape_of
from memscope.program import Program
from memscope.stream import Closure, Streaming, rewrite
from memscope.trace import trace

RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def rnn(w: Any, h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(h @ w + x)
        return h, h * 2

    return lax.scan(step, h, xs)


def rnn_loss(w: Any, h: Any, xs: Any) -> Any:
    last, states = rnn(w, h, xs)
    return jnp.mean(last**2) + jnp.mean(jnp.sin(states))


def rnn_gradients(w: Any, h: Any, xs: Any) -> Any:
    return jax.value_and_grad(rnn_loss, argnums=(0, 1, 2))(w, h, xs)


def backwards(h: Any, xs: Any) -> Any:
    return lax.scan(lambda h, x: (0.5 * h + x, h), h, jnp.sin(xs), reverse=True)


def there_and_back(xs: Any) -> Any:
    forward = jnp.cumsum(jnp.sin(xs), axis=0)
    backward = lax.cumsum(jnp.cos(xs), axis=0, reverse=True)
    return (forward * backward).sum(1), forward[-1]


def counted_loop(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, s: jnp.sin(s) + i, x * 2)


def loop_until(x: Any, n: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.cos(s[1])), (0, x * 2))[1]


def rows_that_stop(x: Any, most: Any) -> Any:
    def one(row: Any, most: Any) -> Any:
        return lax.while_loop(lambda s: (s[0] < most) & (s[1].max() > 0.1), lambda s: (s[0] + 1, s[1] * 0.7), (0, row))

    return jax.vmap(one)(jnp.abs(x) * 3, most * 1)


def branches(x: Any, which: Any) -> Any:
    return lax.switch(which, [jnp.sin, lambda v: v[:, ::-1] * 2, lambda v: v - 1], x * 2)


def summing_branch(x: Any, w: Any, p: Any) -> Any:
    return lax.cond(p, lambda x, w: (x @ w).sum(0), lambda x, w: x.sum(0)[:2] * w[0], jnp.sin(x), w)


def nested(h: Any, xs: Any) -> Any:
    def outer(h: Any, x: Any) -> Any:
        h, ys = lax.scan(lambda h, y: (jnp.tanh(h + y), h.sum(0)), h, x)
        return h, ys

    return lax.scan(outer, h, xs)


def mapped(x: Any) -> Any:
    return lax.map(lambda row: jnp.outer(row, row).sum(0), jnp.sin(x))


def gram(x: Any) -> Any:
    """Needs its constant by rows and whole at once."""
    return lax.scan(lambda c, s: (c + (x * s) @ x.T, None), jnp.zeros((x.shape[0],) * 2), jnp.arange(3.0))[0].sum(1)


def counting_sum(x: Any) -> Any:
    """An accumulator that a number is added to in each step: by batch, the first chunk adds it."""

    def step(c: Any, _: Any) -> Any:
        return c + jnp.sin(x).sum(0) + 1.0, None

    return lax.scan(step, jnp.zeros(x.shape[1]), None, length=4)[0]


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rnn": (rnn, (floats(3, 3), floats(6, 3), floats(11, 6, 3))),
    "rnn gradients": (rnn_gradients, (floats(3, 3), floats(6, 3), floats(11, 6, 3))),
    "a scan from the end": (backwards, (floats(4), floats(9, 4))),
    "a scan from the end, odd": (backwards, (floats(4), floats(13, 4))),
    "sums there and back": (there_and_back, (floats(11, 3),)),
    "counted loop": (counted_loop, (floats(7, 3),)),
    "loop until": (loop_until, (floats(7, 3), np.int32(4))),
    "rows that stop": (rows_that_stop, (floats(9, 3), RNG.integers(0, 12, 9).astype(np.int32))),
    "branches": (branches, (floats(7, 3), np.int32(1))),
    "summing branch": (summing_branch, (floats(7, 3), floats(3, 2), np.bool_(True))),
    "counting sum": (counting_sum, (floats(8, 3),)),
    "nested": (nested, (floats(6, 2), floats(3, 5, 6, 2))),
    "map": (mapped, (floats(9, 4),)),
    "map gradient": (lambda x: jax.grad(lambda x: jnp.sum(mapped(x) ** 2))(x), (floats(9, 4),)),
    "gram": (lambda x: gram(jnp.sin(x)), (floats(7, 3),)),
    "cumulative maximum": (lambda x: lax.cummax(jnp.sin(x), axis=0).sum(1), (floats(11, 3),)),
    "cumulative product": (lambda x: lax.cumprod(jnp.sin(x), axis=1, reverse=True).sum(0), (floats(4, 10),)),
    "cumulative logsumexp": (lambda x: lax.cumlogsumexp(jnp.sin(x), axis=0) * 2, (floats(9, 3),)),
    "cumulative integers": (lambda x: jnp.cumsum(x * 2, axis=0) % 7, (RNG.integers(0, 9, (12, 3)).astype(np.int32),)),
}


def prepared(fn: Callable[..., Any], args: tuple[Any, ...]) -> Program:
    """The program of `fn` behind one op an operand, so that each operand is an intermediate to stream."""

    def run(*args: Any) -> Any:
        return fn(*(a if jnp.ndim(a) == 0 else lax.mul(a, jnp.ones((), a.dtype)) for a in args))

    return trace(run, [jnp.asarray(a) for a in args])


def streamings(program: Program) -> list[Streaming]:
    """What every axis of every intermediate leads to."""
    closure = Closure(program)
    found: dict[Any, Streaming] = {}
    for eqn in program.eqns:
        for var in eqn.outvars:
            for axis in range(len(shape_of(var))):
                reach = closure.axes.reach((var, axis))
                streaming = closure.build(reach, reach)
                found.setdefault((streaming.streamed, streaming.loops), streaming)
    return [s for s in found.values() if s.loops]


@pytest.mark.parametrize("chunk", [1, 2, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_axis_in_any_chunks_changes_nothing(name: str, chunk: int) -> None:
    fn, args = PROGRAMS[name]
    program = prepared(fn, args)
    want = jax.tree.leaves(jax.jit(fn)(*args))
    tried = streamings(program)
    assert any(loop.steps > chunk for s in tried for loop in s.loops)
    for streaming in tried:
        chunks = {loop: min(chunk, loop.steps) for loop in streaming.loops}
        got = jax.jit(rewrite(streaming, chunks))(*jax.tree.leaves(args))
        for w, g in zip(want, got, strict=True):
            assert (w.dtype, w.shape) == (g.dtype, g.shape)
            np.testing.assert_allclose(w, g, rtol=2e-5, atol=2e-5)


def large(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_what_is_the_same_in_every_chunk_is_known_inside_each() -> None:
    """The times at which an equation is solved are residuals too, which go along no batch: they make no second loop."""

    def slope(y: Any, t: Any, w: Any) -> Any:
        return jnp.tanh(jnp.concatenate([y, t[None]]) @ w)

    def gradient(w: Any, y: Any, times: Any, target: Any) -> Any:
        def loss(w: Any) -> Any:
            def step(y: Any, at: Any) -> Any:
                t, dt = at
                slopes = jax.vmap(slope, (0, None, None))
                y = y + dt * slopes(y + 0.5 * dt * slopes(y, t, w), t + 0.5 * dt, w)
                return y, y

            _, states = lax.scan(step, y, (times[:-1], jnp.diff(times)))
            return jnp.mean((states - target) ** 2)

        return jax.value_and_grad(loss)(w)

    args = floats(5, 4), floats(300, 4), np.linspace(0, 1, 12, dtype=np.float32), floats(11, 300, 4)
    plan = memscope.plan(gradient, *args, limit="20%")
    assert len(plan.loops) == 1
    assert plan.loops[0].size == 300
    assert plan.extra_work < 1.05
    for got, want in zip(plan.fn(*args), gradient(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_cumulative_halves_round_no_worse_in_chunks() -> None:
    x = (np.abs(floats(400, 3)) + 1).astype(jnp.bfloat16)
    program = prepared(lambda x: jnp.cumsum(x, 0) * 1, (x,))
    (streaming,) = (s for s in streamings(program) if any(loop.steps == 400 for loop in s.loops))
    (got,) = rewrite(streaming, dict.fromkeys(streaming.loops, 7))(x)
    exact = np.cumsum(x.astype(np.float64), 0)
    assert np.max(np.abs(np.asarray(got, np.float64) - exact) / exact) < 2**-8


class TestPlans:
    def test_a_recurrent_gradient_is_split_without_being_told_how(self) -> None:
        args = (large(32, 32), large(64, 32), large(2000, 64, 32))
        made = memscope.plan(lambda w, h, xs: jax.grad(rnn_loss)(w, h, xs), *args, limit="25MiB")
        assert made.fits
        assert made.temp_bytes < 0.2 * made.original_temp_bytes

    def test_by_batch_its_weights_gradient_is_summed_up(self) -> None:
        program = prepared(jax.grad(rnn_loss), PROGRAMS["rnn gradients"][1])
        by_batch = [loop for s in streamings(program) for loop in s.loops if loop.steps == 6]
        assert any(sink.task.factor and sink.task.factor.fold is None for loop in by_batch for sink in loop.sinks)

    def test_by_time_it_is_replayed_from_kept_states(self) -> None:
        program = prepared(jax.grad(rnn_loss), PROGRAMS["rnn gradients"][1])
        loops = [loop for s in streamings(program) for loop in s.loops]
        assert any(loop.saves and not loop.reverse for loop in loops)
        assert any(loop.replays and loop.reverse for loop in loops)

    def test_what_a_loop_only_reads_is_made_inside_it(self) -> None:
        def power_iteration(x: Any, v: Any) -> Any:
            k = jnp.exp(-((x[:, None] - x[None]) ** 2).sum(-1))
            return lax.fori_loop(0, 4, lambda _, v: (u := k @ v) / jnp.linalg.norm(u), v)

        x, v = floats(700, 2), floats(700)
        made = memscope.plan(power_iteration, x, v, limit="500KiB")
        assert made.fits
        assert made.loops
        np.testing.assert_allclose(made.fn(x, v), jax.jit(power_iteration)(x, v), rtol=1e-4, atol=1e-5)

    def test_a_training_loop_streams_the_batch_inside_each_step(self) -> None:
        def train(w: Any, x: Any, y: Any) -> Any:
            def loss(w: Any) -> Any:
                return jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - y) ** 2)

            def step(w: Any, _: Any) -> Any:
                value, slope = jax.value_and_grad(loss)(w)
                return jax.tree.map(lambda a, b: a - 0.1 * b, w, slope), value

            return lax.scan(step, w, None, length=5)

        args = ((floats(8, 64), floats(64)), floats(6001, 8), floats(6001))
        original = memscope.profile(train, *args)
        limit = original.argument_bytes + original.output_bytes + original.temp_bytes // 10
        made = memscope.plan(train, *args, limit=limit)
        got, want = made.fn(*args), jax.jit(train)(*args)
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=2e-4, atol=1e-6), got, want)

    def test_a_row_of_a_matrix_is_made_when_a_loop_asks_for_it(self) -> None:
        def suppress(x: Any) -> Any:
            near = jnp.exp(-jnp.abs(x[:, None] - x[None])) > 0.9
            number = jnp.arange(x.shape[0])
            start = jnp.ones(x.shape[0], bool)
            return lax.fori_loop(
                0, x.shape[0], lambda i, keep: jnp.where(keep[i] & near[i] & (number > i), False, keep), start
            )

        x = floats(2000)
        made = memscope.plan(suppress, x, limit="200KiB")
        assert made.fits
        assert made.extra_work < 1.5
        assert made.moved
        assert "made inside the scan" in made.explain()
        np.testing.assert_array_equal(made.fn(x), jax.jit(suppress)(x))

    def test_what_would_take_many_times_as_long_is_no_plan(self) -> None:
        def mix(x: Any) -> Any:
            k = jnp.sin(x[:, None] * x[None])
            return lax.fori_loop(0, 3000, lambda i, v: jnp.where(v > 0, v, k[(i * v[:2]).astype(int)].sum(0)), x * 0)

        with pytest.raises(memscope.LimitError):
            memscope.plan(mix, floats(3000), limit="1MiB")

    def test_a_shard_map_is_rewritten_inside(self) -> None:
        mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

        @jax.shard_map(mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
        def kernel(x: Any, y: Any) -> Any:
            return jnp.exp(-jnp.abs(x[:, None] - y[None])).sum(1)

        x, y = floats(1200), floats(900)
        made = memscope.plan(kernel, x, y, limit="200KiB")
        assert made.fits
        np.testing.assert_allclose(made.fn(x, y), jax.jit(kernel)(x, y), rtol=1e-4)

    def test_a_shard_map_whose_shards_talk_is_left_alone(self) -> None:
        mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

        @jax.shard_map(mesh=mesh, in_specs=(P("d"), P()), out_specs=P())
        def total(x: Any, y: Any) -> Any:
            return lax.psum(jnp.exp(-jnp.abs(x[:, None] - y[None])).sum(), "d")

        made = memscope.plan(total, floats(1200), floats(900), limit="200KiB", best_effort=True)
        assert not made.fits
        assert not made.loops


@pytest.mark.parametrize("loop", ["scan", "fori"])
def test_a_branch_inside_a_loop_is_cut(loop: str) -> None:
    def step(k: Any, c: Any, b: Any, when: Any) -> Any:
        return lax.cond(k > when, lambda: jnp.sin(c[:, None] * b).mean(1), lambda: c * 2)

    def scan(a: Any, b: Any, when: Any) -> Any:
        return lax.scan(lambda c, k: (step(k, c, b, when), None), a, jnp.arange(4))[0]

    def fori(a: Any, b: Any, when: Any) -> Any:
        return lax.fori_loop(0, 4, lambda k, c: step(k, c, b, when), a)

    fn = {"scan": scan, "fori": fori}[loop]
    args = jnp.linspace(0, 1, 1201), jnp.linspace(0, 3, 1303), jnp.int32(1)
    plan = memscope.plan(fn, *args, limit="30%")
    assert plan.loops
    np.testing.assert_allclose(plan.fn(*args), jax.jit(fn)(*args), rtol=2e-4, atol=1e-6)
