"""Schedules: never worse than XLA's own order, bit for bit the same, and confirmed by XLA."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memscope
from benchmarks import networks
from memscope.compile import Build, compile_program
from memscope.schedule import hook
from memscope.target import resolve
from memscope.trace import trace

LARGE = 4 * 1000 * 1000


def branches(x: jax.Array) -> jax.Array:
    """Eight large arrays of which one is needed at a time."""
    total = jnp.float32(0)
    for k in range(8):
        total = total + jnp.sort(jnp.sin(x * (k + 1.0))[:, None] + x, axis=0)[3].sum()
    return total


def looped(x: jax.Array) -> jax.Array:
    """The same in the body of a loop."""

    def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        return carry + branches(x + carry), None

    return jax.lax.scan(step, jnp.float32(0), None, length=2)[0]


def chosen(flag: jax.Array, x: jax.Array) -> jax.Array:
    """The same in a branch, of which the other one needs less."""
    return jax.lax.cond(flag, branches, lambda v: (v[:, None] * v).max(), x)


X = np.linspace(0, 1, 1000, dtype=np.float32)
Programs = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def _network(program: networks.Program) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return program.fn, program.make_args()


@functools.cache
def programs() -> Programs:
    return {
        "branches": (branches, (X,)),
        "loop": (looped, (X,)),
        "cond": (chosen, (np.True_, X)),
        "two results": (lambda x: (branches(x), x[:, None] * x), (X,)),
        "recurrent net": _network(networks.gradient("", networks.recurrent(64, 4, 32))),
        "LSTM": _network(networks.gradient("", networks.lstm(64, 3, 32))),
        "inception": _network(networks.inference("", networks.inception(4, 16, 16, 2))),
        "random-wired net": _network(networks.gradient("", networks.random_wired(2, 8, 16, 8))),
        "graph net": _network(networks.gradient("", networks.graph_net(2, 64, 512, 16, 2))),
    }


@functools.cache
def scheduled(name: str) -> memscope.Schedule:
    fn, args = programs()[name]
    return memscope.schedule(fn, *args, seconds=1)


NAMES = sorted(programs())


def temporaries(fn: Callable[..., Any], *args: Any, **jit_options: Any) -> int:
    return int(jax.jit(fn, **jit_options).lower(*args).compile().memory_analysis().temp_size_in_bytes)


@pytest.mark.parametrize("name", ["branches", "loop", "cond"])
def test_eight_large_buffers_become_one(name: str) -> None:
    found = scheduled(name)
    assert found.default_temp_bytes > 7 * LARGE
    assert found.temp_bytes < 1.01 * LARGE
    assert found.optimal


@pytest.mark.parametrize("name", NAMES)
def test_never_worse_and_confirmed(name: str) -> None:
    fn, args = programs()[name]
    found = scheduled(name)
    assert found.default_temp_bytes == temporaries(fn, *args)
    assert found.lower_bound_bytes <= found.peak_bytes <= found.default_peak_bytes
    assert found.peak_bytes == min(each.peak_bytes for each in found.found.confirmed)
    assert found.peak_bytes == found.profile.peak_bytes


@pytest.mark.parametrize("name", NAMES)
def test_values_are_the_same_bits(name: str) -> None:
    fn, args = programs()[name]
    want, got = jax.jit(fn)(*args), scheduled(name).fn(*args)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_predicted_temporaries_are_those_of_xla(name: str) -> None:
    ours = [each for each in scheduled(name).found.confirmed if each.predicted_temp_bytes is not None]
    for each in ours:
        assert each.predicted_temp_bytes == pytest.approx(each.temp_bytes, rel=0.02)


def test_the_order_is_one_of_the_module() -> None:
    found = scheduled("branches")
    default = found.original_profile
    assert set(found.profile.steps) == set(default.steps) <= set(found.order)
    assert len(found.order) == len(set(found.order))


def test_inside_another_trace_it_is_inlined() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jnp.sin(x).sum() * (x[:, None] * x).max()

    x = X[:20]
    scheduled_fn = memscope.schedule(fn, x, seconds=0).fn
    np.testing.assert_allclose(jax.jit(lambda x: scheduled_fn(x) * 2)(x), 2 * fn(x), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(scheduled_fn)(x), jax.grad(fn)(x), rtol=1e-6)
    batch = np.stack([x, x + 1])
    np.testing.assert_allclose(jax.vmap(scheduled_fn)(batch), jax.vmap(fn)(batch), rtol=1e-6)


@pytest.mark.parametrize("network", [networks.mlp(256, 64, 4), networks.resnet(4, 8, (8,), 2)])
def test_donated_state_stays_donated(network: networks.Network) -> None:
    program = networks.adam("", network)
    args = program.make_args()
    found = memscope.schedule(program.fn, *args, donate_argnums=(0,), seconds=1)
    jitted = jax.jit(program.fn, donate_argnums=(0,))
    plain = jitted.lower(*args).compile().memory_analysis()
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(args[0]))
    for each in found.found.confirmed:
        assert each.compiled.alias_bytes == plain.alias_size_in_bytes >= 0.99 * state_bytes
    assert found.compiled.argument_bytes == plain.argument_size_in_bytes
    assert found.compiled.output_bytes == plain.output_size_in_bytes
    assert found.temp_bytes <= plain.temp_size_in_bytes
    want = jitted(*jax.tree.map(jnp.array, args))
    for each in found.found.confirmed:
        given = jax.tree.leaves(jax.tree.map(jnp.array, args))
        for a, b in zip(jax.tree.leaves(want), each.compiled.call(*given), strict=True):
            np.testing.assert_array_equal(a, b)
    found.fn(*args)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(args[0]))
    assert "x" in {b.name for b in found.profile.buffers if b.kind == "argument"}


def test_an_order_comes_before_donated_state_is_written_over_in_a_second_executable() -> None:
    """A module with an order of our own has forgotten its donations: the update, which has them, is one of its own."""
    program = networks.adam("", networks.random_wired(2, 8, 16, 8))
    args = program.make_args()
    found = memscope.schedule(program.fn, *args, donate_argnums=(0,), seconds=1)
    best, default = found.found.best, found.found.default
    first, second = best.halves
    assert best.peak_bytes == max(first.peak_bytes, second.peak_bytes) < 0.7 * found.default_peak_bytes
    assert best.predicted_temp_bytes == pytest.approx(best.temp_bytes, rel=0.01)
    assert first.compiled.alias_bytes == 0
    assert best.compiled.alias_bytes == second.compiled.alias_bytes == default.compiled.alias_bytes > 0
    assert best.compiled.output_bytes == default.compiled.output_bytes
    assert found.lower_bound_bytes <= found.peak_bytes == found.profile.peak_bytes
    assert len(found.order) > len(found.profile.steps)
    assert "second executable" in str(found)
    want = jax.jit(program.fn)(*args)
    got = found.fn(*args)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(args[0]))
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_donated_argument_that_nothing_reads_stays_as_it_is_and_nobody_is_warned() -> None:
    def fn(state: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return state["used"] + branches(x)

    args = {"used": jnp.array(X), "unused": jnp.ones((3, 4))}, X
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = memscope.schedule(fn, *args, donate_argnums=0, seconds=0.2)
    np.testing.assert_array_equal(found.fn(*args), jax.jit(fn)({**args[0], "used": X}, X))
    assert args[0]["used"].is_deleted()
    assert not args[0]["unused"].is_deleted()


def test_where_most_depends_on_what_is_written_over_donated_state_is_given_back_after_the_call() -> None:
    """There an order is set for all of it: results get memory of their own, and count."""

    gradient = networks.gradient("", networks.random_wired(2, 8, 16, 8))

    def fn(state: jax.Array, weights: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        state = jax.lax.fori_loop(0, 2, lambda _, s: jnp.sin(s), state)
        return state, gradient.fn(weights, x + state.mean())

    args = jnp.array(X), *gradient.make_args()
    found = memscope.schedule(fn, *args, donate_argnums=0, seconds=1)
    assert not found.found.best.halves
    assert found.compiled.alias_bytes == 0 < found.found.default.compiled.alias_bytes
    assert found.peak_bytes < 0.7 * found.default_peak_bytes
    assert "given back" in str(found)
    want, got = jax.jit(fn)(*args), found.fn(*args)
    assert args[0].is_deleted()
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pass_that_fails_leaves_xlas_order_and_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> bytes:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(hook, "reordered", fails)
    fn = programs()["random-wired net"]
    with pytest.warns(RuntimeWarning, match="injected") as caught:
        found = memscope.schedule(fn[0], *fn[1], seconds=0.2)
    assert {warning.filename for warning in caught} == {__file__}
    assert all(each.predicted_temp_bytes is None for each in found.found.confirmed)
    assert found.peak_bytes <= found.default_peak_bytes
    found.fn(*fn[1])


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: x, (X,)),
        (lambda: jnp.float32(1), ()),
        (lambda x: (), (X,)),
        (lambda x: jnp.sort(x) + 1, (np.zeros((0, 3), np.float32),)),
        (lambda x: {"a": x, "b": [x + 1]}, ({"c": X}["c"],)),
    ],
)
def test_programs_with_little_to_order(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    found = memscope.schedule(fn, *args)
    assert found.peak_bytes == found.default_peak_bytes
    assert found.gap >= 0
    assert str(found)
    want, got = fn(*args), found.fn(*args)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(a, b)


def test_static_arguments_keywords_and_shapes() -> None:
    def fn(x: jax.Array, n: int, *, scale: float) -> jax.Array:
        return sum(jnp.sort(x[:, None] * k + x, 0)[0].sum() * scale for k in range(n))  # type: ignore[return-value]

    shape = jax.ShapeDtypeStruct((500,), np.float32)
    found = memscope.schedule(fn, shape, 4, static_argnums=1, scale=2.0, seconds=1)
    assert found.peak_bytes < found.default_peak_bytes
    np.testing.assert_array_equal(found.fn(X[:500], 4, scale=2.0), jax.jit(fn, static_argnums=1)(X[:500], 4, scale=2.0))
    with pytest.raises(TypeError, match="static"):
        found.fn(X[:500], 5, scale=2.0)


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="seconds"):
        memscope.schedule(branches, X, seconds="5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seconds"):
        memscope.schedule(branches, X, seconds=-1)
    with pytest.raises(TypeError, match="function"):
        memscope.schedule(X, X)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no JAX type"):
        memscope.schedule(branches, "x")
    with pytest.raises(memscope.TargetError, match="unknown target"):
        memscope.schedule(branches, X, target="abacus")

    def clashing(x: jax.Array, *, seconds: int) -> jax.Array:
        return x * seconds

    with pytest.raises(TypeError, match=r"functools\.partial"):
        memscope.schedule(clashing, X)
    found = memscope.schedule(branches, jax.ShapeDtypeStruct((1000,), np.float32), seconds=0)
    with pytest.raises(TypeError, match="planned for"):
        found.fn(X[:10])


def test_placement_is_xlas_beside_the_best() -> None:
    found = scheduled("inception")
    placement = found.placement
    assert placement.xla_bytes == found.temp_bytes
    assert placement.bound_bytes <= placement.best_bytes <= placement.xla_bytes
    assert placement.live_bytes <= placement.best_bytes
    assert placement.xla_gaps >= placement.best_gaps >= 0


def test_report_says_how_good_the_order_is() -> None:
    found = scheduled("branches")
    text = str(found)
    assert "30.5 MiB" in text.splitlines()[0]
    assert "3.8" in text.splitlines()[0]
    assert "optimal" in text
    assert "memscope" in found.to_html()
    assert found.to_html().startswith("<!DOCTYPE html>")
    assert "optimal" in found._repr_html_()


def test_progress_is_told() -> None:
    lines: list[str] = []
    memscope.schedule(branches, X, seconds=0.5, progress=lines.append)
    assert lines
    assert "branches" in lines[0]


def test_the_build_is_that_of_plain_jit() -> None:
    program = trace(branches, (X,))
    assert scheduled("branches").default_temp_bytes == compile_program(program, Build.PLAIN, resolve(None)).temp_bytes
