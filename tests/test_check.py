"""The rewritten function against the original, with plans made by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex_core

from memscope import check as module
from memscope.check import Check, check_plan, compare, flat_arguments, tolerance
from memscope.compile import Build
from memscope.errors import TargetError
from memscope.measure import Job, MeasureError, Measurement
from memscope.program import Program
from memscope.target import Target, physical_memory
from memscope.trace import trace

CPU = Target("cpu", "cpu", physical_memory())
Fn = Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class HandPlan:
    """A plan whose rewritten function was written by hand."""

    original: Fn
    by_hand: Fn
    program: Program
    rewritten: jex_core.ClosedJaxpr
    original_peak_bytes: int = 1 << 20
    peak_bytes: int = 1 << 20
    limit_bytes: int | None = 1 << 30
    target: Target = CPU
    build: Build = Build.REFERENCE
    executable: Fn | None = None

    def for_arguments(self, *args: Any, **kwargs: Any) -> HandPlan:
        return hand_plan(self.original, self.by_hand, *args, **kwargs)


def hand_plan(original: Fn, by_hand: Fn, *args: Any, **kwargs: Any) -> HandPlan:
    return HandPlan(original, by_hand, trace(original, args, kwargs), jax.jit(by_hand).trace(*args, **kwargs).jaxpr)


def checked(original: Fn, by_hand: Fn, *args: Any, **kwargs: Any) -> Check:
    return check_plan(hand_plan(original, by_hand, *args, **kwargs), args, kwargs, budget_seconds=0)


def kernel_matvec(x: jax.Array, y: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, -1)) @ v


def in_chunks(x: jax.Array, y: jax.Array, v: jax.Array) -> jax.Array:
    """Fifty rows at a time; rows that fill the last chunk are computed twice."""

    def step(i: jax.Array, out: jax.Array) -> jax.Array:
        start = jnp.minimum(i * 50, len(x) - 50)
        rows = kernel_matvec(jax.lax.dynamic_slice_in_dim(x, start, 50), y, v)
        return jax.lax.dynamic_update_slice_in_dim(out, rows, start, 0)

    return jax.lax.fori_loop(0, -(-len(x) // 50), step, jnp.zeros(len(x)))


def kernel_args(n: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    k = jax.random.split(jax.random.key(0), 3)
    return jax.random.uniform(k[0], (n, 2)), jax.random.uniform(k[1], (n, 2)), jax.random.normal(k[2], (n,))


def test_a_right_rewriting_is_ok() -> None:
    args = kernel_args(5011)
    got = check_plan(hand_plan(kernel_matvec, in_chunks, *args), args)
    assert got.ok, got.how
    assert got.max_abs_err is not None
    assert got.max_rel_err is not None
    assert 0 < got.max_rel_err < 1e-4 < got.max_abs_err * 1e4
    assert got.seconds is not None
    assert got.original_seconds is not None
    assert 0 < got.seconds < got.original_seconds * 5
    assert got.how == (
        "compared the result with the original's on the given arguments, both run in turn in a fresh process."
    )
    if got.measured_peak_bytes is not None:
        assert got.measured_peak_bytes < 20e6  # the original takes 100 MB


def test_a_wrong_value_is_told_by_its_result() -> None:
    def pair(x: jax.Array) -> dict[str, jax.Array]:
        return {"a": x, "b": x * 2}

    def wrong(x: jax.Array) -> dict[str, jax.Array]:
        return {"a": x, "b": x * 2.01}

    got = checked(pair, wrong, jnp.arange(4.0))
    assert not got.ok
    assert "the result['b'] is off by 0.005 of its largest magnitude, over 0.002" in got.how
    assert got.max_abs_err == pytest.approx(0.03, rel=1e-3)
    assert got.max_rel_err == pytest.approx(0.005, rel=1e-3)


def test_keys_and_integers_are_compared_exactly() -> None:
    def draw(key: jax.Array, n: jax.Array) -> Any:
        return jax.random.split(key), n

    key, n = jax.random.key(1), jnp.arange(3)
    assert checked(draw, draw, key, n).ok
    off = checked(draw, lambda key, n: (jax.random.split(key), n + (n == 2)), key, n)
    assert not off.ok
    assert "the result[1] differs in 1 of 3 elements" in off.how
    other = checked(draw, lambda key, n: (jax.random.split(jax.random.fold_in(key, 1)), n), key, n)
    assert not other.ok
    assert "the result[0] differs in" in other.how


def test_numbers_numpy_arrays_and_keywords_are_arguments() -> None:
    def f(x: Any, scale: Any, *, shift: Any) -> Any:
        return x * scale + shift

    x = np.arange(4, dtype=np.float64)
    assert checked(f, f, x, 2, shift=0.5).ok


def test_float64_is_compared_closely() -> None:
    with jax.enable_x64(True):
        x = jnp.arange(1.0, 5.0)
        plan = hand_plan(lambda x: x / 3, lambda x: x / 3 * (1 + 1e-5), x)
    got = check_plan(plan, (x,), budget_seconds=0)
    assert not got.ok
    assert got.max_rel_err == pytest.approx(1e-5, rel=1e-3)


def test_a_peak_over_the_limit_is_not_ok() -> None:
    args = kernel_args(5011)
    plan = dataclasses.replace(hand_plan(kernel_matvec, kernel_matvec, *args), limit_bytes=30_000_000)
    got = check_plan(plan, args, budget_seconds=0)
    if got.measured_peak_bytes is None:
        pytest.skip("peaks need Linux's /proc")
    assert got.measured_peak_bytes == pytest.approx(5011 * 5011 * 4, rel=0.05)
    assert not got.ok
    assert "the measured peak of" in got.how
    assert "exceeds the limit of 28.6 MiB" in got.how


def test_an_original_that_does_not_fit_is_not_run() -> None:
    args = kernel_args(600)
    small = Target("cpu", "cpu", 1 << 20)
    plan = dataclasses.replace(hand_plan(kernel_matvec, in_chunks, *args), original_peak_bytes=1 << 33, target=small)
    got = check_plan(plan, args, budget_seconds=0)
    assert got.ok
    assert (got.max_abs_err, got.max_rel_err, got.original_seconds) == (None, None, None)
    assert got.seconds is not None
    assert "values were not compared: the original needs 8.00 GiB and cpu holds 1.00 MiB" in got.how

    huge = dataclasses.replace(plan, original_peak_bytes=1 << 50, target=Target("cpu", "cpu", 1 << 60))
    assert "of memory are free" in check_plan(huge, args, budget_seconds=0).how


def test_reduced_arguments_stand_in_for_an_original_that_does_not_fit() -> None:
    args, reduced = kernel_args(600), kernel_args(73)
    plan = dataclasses.replace(hand_plan(kernel_matvec, in_chunks, *args), original_peak_bytes=1 << 50)
    got = check_plan(plan, args, reduced=reduced, budget_seconds=0)
    assert got.ok, got.how
    assert got.max_rel_err is not None
    assert got.seconds is not None
    assert got.original_seconds is None
    assert "on reduced arguments only; on the full ones ran the rewritten function alone" in got.how

    without = check_plan(plan, (), reduced=reduced)
    assert without.ok
    assert (without.measured_peak_bytes, without.seconds) == (None, None)
    assert "peak and time were not measured" in without.how


def test_reduced_values_that_differ_are_not_ok() -> None:
    args, reduced = kernel_args(600), kernel_args(73)
    plan = hand_plan(kernel_matvec, lambda x, y, v: in_chunks(x, y, v) * 1.01, *args)
    assert not check_plan(plan, args, reduced=reduced, budget_seconds=0).ok


def test_an_original_that_dies_leaves_the_rewritten_one_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(jobs: list[Job], *args: Any, **keywords: Any) -> tuple[Measurement, ...]:
        if len(jobs) > 1:
            raise MeasureError("it was killed.", -9, "running the original function")
        return (Measurement(1000, 1000, 0.5, [np.float32(0)]),)

    monkeypatch.setattr(module, "measure", die)
    got = checked(lambda x: x, lambda x: x, jnp.float32(0))
    assert got.ok
    assert got.seconds == 0.5
    assert got.measured_peak_bytes == 1004
    assert "values were not compared: it was killed" in got.how


def test_side_effects_are_run_here_once_each(capfd: pytest.CaptureFixture[str]) -> None:
    def loud(x: jax.Array) -> jax.Array:
        jax.debug.print("seen {}", x)
        return x * 2

    got = checked(loud, loud, jnp.float32(4))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("seen 4.0") == 2
    assert got.ok
    assert got.measured_peak_bytes is None
    assert "both run here, peak unknown, since it can't travel" in got.how


def test_a_donated_argument_is_left_alone() -> None:
    x = jnp.ones(1000)
    plan = dataclasses.replace(
        hand_plan(lambda x: x + 1, lambda x: x + 1, x), program=trace(lambda x: x + 1, (x,), donate_argnums=0)
    )
    assert check_plan(plan, (x,), budget_seconds=0).ok
    assert not x.is_deleted()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "was planned for arguments of the tree"),
        (({"x": jnp.ones(3)}, jnp.ones(3)), "was planned for arguments of the tree"),
        ((jnp.ones(4), jnp.ones(3)), r"x is float32\[4\], but f was planned for float32\[3\]: plan again"),
        ((jnp.ones(3), jnp.arange(3)), r"y is int32\[3\], but f was planned for float32\[3\]"),
        ((jnp.ones(3), 2.0), r"y is float32\[\], but f was planned for float32\[3\]"),
        ((jnp.ones(3), np.array(["a"])), "y is a NumPy array of dtype <U1, which is no JAX type"),
        ((jnp.ones(3), object()), "y is of type object, which is no JAX type"),
        ((jnp.ones(3), jax.ShapeDtypeStruct((3,), jnp.float32)), "y is a shape without values"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(args: tuple[Any, ...], message: str) -> None:
    def f(x: jax.Array, y: jax.Array) -> jax.Array:
        return x + y

    plan = hand_plan(f, f, jnp.ones(3), jnp.ones(3))
    with pytest.raises(TypeError, match=message):
        check_plan(plan, args)


def test_a_number_takes_the_dtype_it_was_traced_with() -> None:
    program = trace(lambda x, n: x * n, (1.5, 3))
    leaves = flat_arguments(program, (2, 4), {})
    assert [(a.dtype, a.shape) for a in leaves] == [(np.float32, ()), (np.int32, ())]
    with pytest.raises(TypeError, match=r"n is float32\[\], but .* was planned for int32\[\]"):
        flat_arguments(program, (2, 4.5), {})


def test_a_plan_for_another_device_is_refused() -> None:
    plan = dataclasses.replace(
        hand_plan(jnp.sin, jnp.sin, jnp.ones(3)), target=Target("a100-40gb", "cuda", 40_000_000_000, is_here=False)
    )
    with pytest.raises(TargetError, match="planned for a100-40gb, which is not here: export it"):
        check_plan(plan, (jnp.ones(3),))


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("dtype", "got", "want", "right"),
    [
        ("float32", [1, 2, NAN, INF, -INF], [1, 2, NAN, INF, -INF], True),
        ("float32", [1, NAN], [1, 2], False),
        ("float32", [1, INF], [1, -INF], False),
        ("float32", [1000, 1], [1000, 2], True),  # of the largest magnitude, not of each element
        ("float32", [1000, 1], [1000, 4], False),
        ("float32", [0, 1e-30], [0, 0], False),
        ("float64", [1.0], [1.00001], False),
        ("float16", [1.0], [1.005], True),
        ("bfloat16", [1.0], [1.0156], True),
        ("bfloat16", [1.0], [1.1], False),
        ("complex64", [1 + 1j, complex(NAN, 0)], [1 + 1.001j, complex(NAN, 0)], True),
        ("complex64", [1 + 1j], [1 + 1.01j], False),
        ("int32", [1, 2], [1, 2], True),
        ("int32", [1, 2], [1, 3], False),
        ("bool", [True], [False], False),
        ("float32", [], [], True),
    ],
)
def test_compare(dtype: str, got: list[Any], want: list[Any], right: bool) -> None:
    found = compare(np.array(got, jnp.dtype(dtype)), np.array(want, jnp.dtype(dtype)), "it")
    assert (found.wrong is None) == right
    assert found.max_abs_err >= 0


def test_compare_refuses_another_shape_or_dtype() -> None:
    assert compare(np.zeros(3), np.zeros(4), "it").wrong == "it is float64(3,), not float64(4,)"
    assert compare(np.zeros(3, np.float32), np.zeros(3), "it").wrong is not None


def test_blocks_cover_a_large_array() -> None:
    got, want = np.zeros((3, 1 << 20), np.float32), np.zeros((3, 1 << 20), np.float32)
    got[-1, -1] = want[0, 0] = 1
    assert compare(got, want, "it").max_rel_err == 1


def test_tolerance_of_a_small_float() -> None:
    assert tolerance(jnp.float8_e4m3fn) == 0.5
    assert tolerance(jnp.complex64) == tolerance(jnp.float32) == 2e-3
