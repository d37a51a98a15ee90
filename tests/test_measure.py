"""Peaks and times measured in a fresh process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memscope import measure as module
from memscope.compile import Build
from memscope.measure import (
    Job,
    MeasureError,
    UnportableError,
    device_growth,
    export_job,
    measure,
    measure_here,
)

linux_only = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks need Linux's /proc")


def shapes(*arrays: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]


def job_of(run: Callable[..., Any], *arrays: Any, **keywords: Any) -> Job:
    return export_job("f", run, shapes(*arrays), **keywords)


def kernel_matvec(x: jax.Array, y: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, -1)) @ v


def kernel_args(n: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    k = jax.random.split(jax.random.key(0), 3)
    return jax.random.uniform(k[0], (n, 2)), jax.random.uniform(k[1], (n, 2)), jax.random.normal(k[2], (n,))


def close(got: int | None, want: int | None) -> bool:
    assert got is not None
    assert want is not None
    return abs(got - want) <= max(0.03 * want, 8e6)


@linux_only
def test_growth_is_xlas_account_in_the_reference_build() -> None:
    args = kernel_args(7000)
    job = job_of(kernel_matvec, *args, options=Build.REFERENCE.options)
    first, second = measure([job, job], args, budget_seconds=0)
    assert first.account_bytes is not None
    assert first.account_bytes > 150e6
    assert close(first.growth_bytes, first.account_bytes)
    assert close(second.growth_bytes, second.account_bytes)  # freed pages are not reused unseen
    np.testing.assert_allclose(first.outputs[0], kernel_matvec(*args), rtol=1e-3, atol=1e-3)


@linux_only
def test_growth_shows_what_the_plain_build_hides() -> None:
    def forces(x: jax.Array) -> jax.Array:
        dr = x[None] - x[:, None]
        return jnp.sum((jnp.sum(dr * dr, -1) + 0.1)[:, :, None] ** -1.5 * dr, 1)

    x = jax.random.normal(jax.random.key(0), (4000, 3))
    (plain,) = measure([job_of(forces, x)], [x], budget_seconds=0)
    assert plain.growth_bytes is not None
    assert plain.account_bytes is not None
    assert plain.growth_bytes > plain.account_bytes + 50e6


@linux_only
@pytest.mark.parametrize("donated", [False, True])
def test_a_donated_argument_holds_the_result(donated: bool) -> None:
    x = jnp.ones((16 << 20,))
    (got,) = measure([job_of(lambda x: x * 2, x, donated=(donated,))], [x])
    assert close(got.growth_bytes, 0 if donated else x.nbytes)
    assert not x.is_deleted()


def test_every_kind_of_array_travels() -> None:
    args = (
        jax.random.split(jax.random.key(3), 2),
        jax.random.key(1, impl="rbg"),
        jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        np.array([True, False]),
        np.zeros((0, 4), np.complex64),
        np.int8(-5),
        jnp.float16(1.5),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    )
    (got,) = measure([job_of(lambda *args: args, *args)], args)
    for out, arg in zip(got.outputs, args, strict=True):
        key = isinstance(arg, jax.Array) and jnp.issubdtype(arg.dtype, jax.dtypes.prng_key)
        want = np.asarray(jax.random.key_data(arg) if key else arg)
        assert out.dtype == want.dtype
        np.testing.assert_array_equal(out, want)
        assert not out.flags.writeable


def test_float64_stays_float64() -> None:
    x = np.linspace(0, 1, 5)
    with jax.enable_x64(True):
        avals = shapes(x)
    (got,) = measure([export_job("f", lambda x: x / 3, avals, x64=True)], [x])
    np.testing.assert_array_equal(got.outputs[0], x / 3)


def test_results_outlive_their_files() -> None:
    x = jnp.arange(1 << 20, dtype=jnp.float32)
    (got,) = measure([job_of(lambda x: x + 1, x)], [x], budget_seconds=0)
    np.testing.assert_array_equal(got.outputs[0], np.arange(1 << 20) + 1)


def test_jobs_are_timed() -> None:
    x = jnp.ones((400, 400))
    light, heavy = measure([job_of(lambda x: x @ x, x), job_of(lambda x: jnp.linalg.svd(x)[1], x)], [x])
    assert 0 < light.seconds < heavy.seconds


def test_the_users_settings_and_folder_do_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise SystemExit('the wrong jax')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    monkeypatch.setenv("JAX_DISABLE_JIT", "1")
    (got,) = measure([job_of(lambda x: x + 1, np.float32(1))], [np.float32(1)])
    assert got.outputs[0] == 2


@pytest.mark.parametrize(
    "call_back",
    [
        lambda x: (jax.debug.print("{}", x), x)[1],
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    ],
)
def test_callbacks_do_not_travel(call_back: Callable[..., Any]) -> None:
    with pytest.raises(UnportableError, match="f can't be run in a process of its own: it calls back into Python"):
        job_of(call_back, jnp.ones(3))


def test_what_can_not_travel_runs_here(capfd: pytest.CaptureFixture[str]) -> None:
    def loud(x: jax.Array) -> dict[str, jax.Array]:
        jax.debug.print("seen {}", x)
        return {"twice": x * 2, "key": jax.random.key(0)}

    (got,) = measure_here([jax.jit(loud)], [jnp.float32(4)], budget_seconds=0)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("seen 4.0") == 1
    assert got.growth_bytes is None
    assert [out.tolist() for out in got.outputs] == [[0, 0], 8.0]


def test_too_large_an_allocation_is_an_error_that_names_the_job() -> None:
    def huge(x: jax.Array) -> jax.Array:
        return jnp.sort(jnp.sin(x + jnp.arange(1 << 45, dtype=jnp.float32)))[:3]

    x = np.float32(1)
    with pytest.raises(MeasureError, match=r"failed while running f: .*RESOURCE_EXHAUSTED") as caught:
        measure([job_of(huge, x)], [x])
    assert caught.value.stage == "running f"


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("kill -KILL $$", -9, "killed by SIGKILL .exit status -9. while starting, most likely for want of memory"),
        ("kill -SEGV $$", -11, "killed by SIGSEGV"),
        ("echo no room; exit 3", 3, "exit status 3 while starting: no room"),
        ("exit 0", 0, "exit status 0 while starting"),
    ],
)
def test_a_process_that_dies_is_an_error(
    script: str, status: int, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(MeasureError, match=message) as caught:
        measure([Job("f", b"", {}, ())], [])
    assert caught.value.exit_status == status


def test_a_run_without_end_is_ended() -> None:
    def forever(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda c: c >= 0, lambda c: c + 1.0, x)

    start = time.perf_counter()
    with pytest.raises(MeasureError, match="ended after 6 s while running f: give it a longer timeout") as caught:
        measure([job_of(forever, np.float32(1))], [np.float32(1)], timeout=6)
    assert time.perf_counter() - start < 30
    assert caught.value.exit_status is None


def test_no_peak_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: str, key: str) -> int:
        raise FileNotFoundError(path)

    monkeypatch.setattr(module, "_proc_bytes", absent)
    outs, seconds, growth = module._watched(lambda: [1])
    assert (outs, growth) == ([1], None)
    assert seconds >= 0
    assert module.available_bytes() is None


def test_runs_are_taken_in_turn_and_their_count_follows_the_budget() -> None:
    order: list[str] = []

    def run(name: str, seconds: float) -> Callable[[], float]:
        return lambda: (order.append(name), seconds)[1]

    assert module._interleave([run("a", 1.0), run("b", 2.0)], [9.0, 9.0], budget=3.0) == [1.0, 2.0]
    assert order == ["a", "b"]  # over ten seconds a round: one is enough
    order.clear()
    module._interleave([run("a", 1.0), run("b", 2.0)], [0.2, 0.3], budget=2.0)
    assert order == ["a", "b", "b", "a"] * 2
    assert module._interleave([run("a", 1.0)], [5.0], budget=0) == [5.0]


@pytest.mark.parametrize(
    ("before", "after", "growth"),
    [
        ((100, 100), (150, 400), 300),
        ((100, 400), (150, 400), None),  # an earlier peak was as high
        ((100, 390), (150, 400), 300),
    ],
)
def test_what_a_device_counts(before: tuple[int, int], after: tuple[int, int], growth: int | None) -> None:
    stats = [{"bytes_in_use": used, "peak_bytes_in_use": peak} for used, peak in (before, after)]
    assert device_growth(*stats) == growth
    assert device_growth({}, stats[1]) is None
