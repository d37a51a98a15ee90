"""What was promised, shown on real programs: profiles are true, plans fit where they run, large things get small.

Peaks are measured in processes of their own; the sizes keep each of those under 1.5 GB.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memscope
from benchmarks import accounts, truth, workloads
from benchmarks.accounts import Original
from benchmarks.workloads import Workload
from memscope.check import compare
from memscope.compile import Build
from memscope.measure import Job, Outputs, measure

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks need Linux's /proc")

NEAREST = {
    "L2 expanded": workloads.knn_l2_expanded,
    "L2 direct": workloads.knn_l2_direct,
    "L1": workloads.knn_l1,
    "cosine": workloads.knn_cosine,
}
# Scales at which what Eigen packs for a dot, outside XLA's account, stays within 3%. The gradient of case 024 has
# none: its dots pack 12% (benchmarks/README.md).
CASES = "001:0.5 006:0.4 018:0.4 023:0.4 029:0.7 033:0.4 038:0.5 046:0.4".split()
PROGRAMS = {w.name: w for w in map(workloads.load_case, CASES)} | {
    w.name: Workload(w.name, w.fn, w.make_args, scale=0.6 if w.make_args is workloads.knn_direct_args else 0.9)
    for w in workloads.PAPER
    if w.name == "kernel product" or w.name.startswith("knn")
}
HIDDEN = ("018_local_energies", "046_nbody_forces")


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def slack(count: int) -> float:
    return max(0.03 * count, 8e6)


def alone(job: Job, leaves: list[Any]) -> tuple[int, Outputs]:
    """How far a fresh process grows in one run, and the results."""
    (found,) = measure([job], leaves, budget_seconds=0)
    assert found.growth_bytes is not None
    return found.growth_bytes, found.outputs


@pytest.mark.parametrize("name", PROGRAMS)
def test_profiles_are_true_and_a_tenth_of_the_temporaries_is_enough(name: str) -> None:
    original = Original(PROGRAMS[name])
    profile = memscope.profile(original.fn, *original.args)
    plan = memscope.plan(original.fn, *original.args, limit=original.limit_bytes)
    assert plan.loops
    assert plan.peak_bytes <= original.limit_bytes

    grown, want = alone(original.job(Build.REFERENCE), original.leaves)
    reported = profile.peak_bytes - profile.argument_bytes - profile.constant_bytes
    assert abs(grown - reported) <= slack(reported)

    grown, got = alone(accounts.rewritten_job(name, plan), original.leaves)
    held = profile.argument_bytes + profile.constant_bytes
    assert grown <= plan.peak_bytes - held + slack(plan.peak_bytes - held)
    assert grown <= original.limit_bytes - held
    if plan.build is Build.REFERENCE:  # the plain build's figure is a bound
        assert grown >= plan.peak_bytes - held - slack(plan.peak_bytes - held)
    if name.startswith("knn"):
        got[1] = without_swaps(got[1], want[1], want[0])
    for g, w in zip(got, want, strict=True):
        assert compare(g, w, "a result").wrong is None


def without_swaps(got: Any, want: Any, distance: Any) -> Any:
    """`got` with `want`'s index where rounding decides the order: the next distance is the same but for 1e-5."""
    gap = np.diff(distance, axis=1) / distance[:, 1:]
    after = np.pad(gap, ((0, 0), (0, 1)))  # what follows the last one is not known: 0
    before = np.pad(gap, ((0, 0), (1, 0)), constant_values=np.inf)
    return np.where((got != want) & (np.minimum(before, after) < 1e-5), want, got)


@pytest.mark.parametrize("name", HIDDEN)
def test_what_the_plain_build_hides_is_bounded(name: str) -> None:
    original = Original(PROGRAMS[name])
    profile = memscope.profile(original.fn, *original.args)
    assert profile.plain_peak_bytes is not None
    assert profile.plain_bound_bytes is not None
    grown, _ = alone(original.job(Build.PLAIN), original.leaves)
    held = profile.argument_bytes + profile.constant_bytes
    assert profile.plain_peak_bytes - held + 8e6 < grown < profile.plain_bound_bytes - held
    assert truth.judge(profile.plain_peak_bytes - held, profile.plain_bound_bytes - held, grown) == "ok"


class TestNearestNeighbours:
    """One million points of 100 numbers, ten neighbours."""

    @pytest.mark.parametrize("form", NEAREST)
    def test_ten_thousand_queries_fit_one_gibibyte(self, form: str) -> None:
        lines: list[str] = []
        start = time.perf_counter()
        plan = memscope.plan(NEAREST[form], f32(10_000, 100), f32(1_000_000, 100), limit="1GiB", progress=lines.append)
        assert time.perf_counter() - start < 30  # under 10 s on a machine that has nothing else to do
        assert plan.original_peak_bytes > 40e9
        assert plan.peak_bytes <= 2**30
        assert len(lines) >= 3

    def test_some_queries_run_under_600_mebibytes(self) -> None:
        q, x = workloads.knn_args(256, 1_000_000, 100)
        plan = memscope.plan(workloads.knn_l2_expanded, q, x, limit="600MiB")
        assert plan.original_peak_bytes > 1.3 * 2**30
        grown, (distance, index) = alone(accounts.rewritten_job("nearest", plan), [q, x])
        assert plan.compiled.argument_bytes + grown <= 600 * 2**20
        some = np.linspace(0, len(q) - 1, 5).astype(int)
        for i in some:
            exact = np.sqrt(np.sum((np.asarray(x, np.float64) - np.asarray(q[i], np.float64)) ** 2, 1))
            np.testing.assert_allclose(distance[i], np.sort(exact)[:10], rtol=1e-4)
            np.testing.assert_allclose(exact[index[i]], distance[i], rtol=1e-4)
            assert len(set(index[i])) == 10


def test_sparse_gp_gradient_runs_in_a_tenth_of_its_temporaries() -> None:
    case = workloads.load_case("024")
    args = case.args()
    assert args[0].shape[0] > 400_000
    assert args[2].shape[0] == 128
    profile = memscope.profile(case.fn, *args)
    limit = profile.argument_bytes + profile.output_bytes + profile.temp_bytes // 10
    plan = memscope.plan(case.fn, *args, limit=limit)
    check = plan.check(*args)
    assert check.ok, check.how
    assert check.measured_peak_bytes is not None
    assert check.measured_peak_bytes <= limit


def long_function(x: Any, w: Any) -> Any:
    for i in range(100):
        y = x @ w
        for j in range(5):
            y = jnp.tanh(y) * jnp.sin(x) + jnp.float32(i + j)
        x = x / (1.0 + jnp.sum(y * y, 1, keepdims=True))
    return x


def test_a_profile_of_two_thousand_eqns_costs_little_beyond_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling: list[tuple[float, float]] = []
    original = jax.stages.Lowered.compile

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(self, *args, **kwargs)
        finally:
            compiling.append((start, time.perf_counter()))

    assert len(jax.make_jaxpr(long_function)(f32(256, 32), f32(32, 32)).eqns) >= 2000
    monkeypatch.setattr(jax.stages.Lowered, "compile", timed)
    start = time.perf_counter()
    profile = memscope.profile(long_function, f32(256, 32), f32(32, 32))
    total = time.perf_counter() - start
    assert len(compiling) == 2
    assert profile.buffers
    # Both builds compile side by side.
    compile_seconds = max(end for _, end in compiling) - min(begin for begin, _ in compiling)
    assert total - compile_seconds < max(5, compile_seconds / 3)
