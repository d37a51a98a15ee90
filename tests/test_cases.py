"""Real memory reports, shrunk: a rewritten function gives what plain `jax.jit` gives, whatever the limit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

import memscope
from memscope.compile import Build
from memscope.evaluate import precision_of
from memscope.plan import request_plan
from memscope.stream import rewrite

CASES = {p.stem.removeprefix("case_"): p for p in sorted((Path(__file__).parent / "cases").glob("case_*.py"))}
SCALE = 0.04
SCALES = {"026_einsum_six_operands": 0.2, "066_bernoulli_trials": 0.01}  # n^4 shrinks to nothing; all hashing
SHARES = (0.3, 0.05)

LARGE_ENOUGH = 290_000_000
"""Bytes of temporaries from which a tenth is asked for."""

MEASURED = (
    "001_kernel_matvec", "014_grad_long_rnn", "016_sinkhorn_lse_kernel", "027_einsum_memory_limit",
    "034_one_hot_embedding", "045_diag_matrix_products", "046_nbody_forces", "068_coo_spmm", "071_gnn_messages",
    "090_shard_map_kernel",
)  # fmt: skip

# What is left of |y|^2 when conjugate gradients stop: rounding decides all of its digits.
MEANINGLESS = {"099_cg_lazy_kernel": {1}}

TOLERANCE = {"float64": 1e-9, "float32": 2e-3, "bfloat16": 3e-2}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CASES[name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def close(got: Any, want: Any, skip: set[int]) -> None:
    assert bool(jax.tree.structure(got) == jax.tree.structure(want))
    for i, (g, w) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        if i in skip:
            continue
        if jax.numpy.issubdtype(w.dtype, np.inexact):
            allowed = TOLERANCE[str(w.dtype)] * float(np.max(np.abs(w), initial=0.0))
            np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=0, atol=allowed)
        else:
            np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("name", CASES)
def test_values_at_a_small_scale(name: str) -> None:
    case = load(name)
    args = case.make_args(SCALES.get(name, SCALE))
    want = jax.jit(case.fn)(*args)
    # As memscope.plan, but asked for both limits: what the function needs as written is compiled once.
    request = request_for(case, args)
    original = request.search.original
    for share in SHARES:
        limit = original.peak_bytes - round((1 - share) * original.temp_bytes)
        plan = request.plan(limit, best_effort=True)
        assert plan.peak_bytes <= max(limit, *(build.bound_bytes for build in request.search.builds.values()))
        assert plan.fits == (plan.peak_bytes <= limit)
        close(plan.fn(*args), want, MEANINGLESS.get(name, set()))
        if not plan.fits:  # the lowest there is: another limit gives the same
            break


@pytest.mark.parametrize("name", CASES)
def test_a_tenth_of_the_temporaries_is_enough_at_full_size(name: str) -> None:
    case = load(name)
    request = full_size(case)
    original, expect = request.search.original, case.NOTES["expect"]
    tenth = original.argument_bytes + original.output_bytes + original.temp_bytes // 10
    if expect == "none-needed":
        assert not request.plan(original.peak_bytes, best_effort=False).changed
    elif expect == "not-splittable":
        if request.plan(tenth, best_effort=True).fits:  # in another order of its instructions
            return
        with pytest.raises(memscope.LimitError) as caught:
            request.plan(tenth, best_effort=False)
        assert f"{CASES[name].name}:" in str(caught.value)
    elif original.temp_bytes >= LARGE_ENOUGH:
        plan = request.plan(tenth, best_effort=False)
        assert plan.peak_bytes <= tenth
        assert plan.changed


@pytest.mark.parametrize("name", MEASURED)
def test_what_fits_runs_at_full_size_within_the_limit(name: str) -> None:
    case = load(name)
    request = full_size(case)
    original = request.search.original
    plan = request.plan(original.peak_bytes - round(0.9 * original.temp_bytes), best_effort=False)
    check = plan.check(*case.make_args(1.0), reduced=case.make_args(SCALE))
    assert check.ok, check
    assert check.measured_peak_bytes is not None
    assert check.measured_peak_bytes <= plan.limit_bytes


@pytest.mark.parametrize("name", CASES)
def test_values_in_odd_chunks(name: str) -> None:
    """Seven steps at a time, whatever the plan's own chunks: they leave a remainder nearly everywhere."""
    case = load(name)
    args = case.make_args(SCALES.get(name, SCALE))
    search = request_for(case, args).search
    want = jax.jit(case.fn)(*args)
    structures = search.grow(None)[:2]
    for structure in structures:
        chunks = {loop: min(7, loop.steps) for loop in structure.streaming.loops}
        run = jax.jit(rewrite(structure.streaming, chunks), compiler_options=Build.REFERENCE.options)
        with precision_of(search.program):
            got = run(*jax.tree.leaves(args))
        close(jax.tree.unflatten(search.program.out_tree, got), want, MEANINGLESS.get(name, set()))


def full_size(case: ModuleType) -> Any:
    return request_for(case, jax.eval_shape(case.make_args))


def request_for(case: ModuleType, args: Any) -> Any:
    return request_plan(
        case.fn, args, {}, target=None, progress=None, static_argnums=(), static_argnames=(), donate_argnums=()
    )
