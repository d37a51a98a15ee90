"""An order of instructions as what a plan does, where that alone keeps to the limit."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memscope


def branches(x: Any) -> Any:
    total = 0.0
    for i in range(8):
        total = total + jnp.sum(jnp.sin(x @ (x.T * (i + 1))) @ x)
    return total


X = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def plan() -> memscope.Plan:
    return memscope.plan(branches, X, limit="30%")


def test_an_order_does_where_it_fits(plan: memscope.Plan) -> None:
    assert plan.fits
    assert plan.changed
    assert plan.scheduled_by is not None
    assert plan.loops == ()
    assert plan.extra_work == 1
    assert "its instructions run in another order" in plan.explain()
    assert plan.profile.peak_bytes == plan.peak_bytes


def test_the_results_are_the_same_bits(plan: memscope.Plan) -> None:
    as_written = jax.jit(branches, compiler_options=plan.build.options)
    np.testing.assert_array_equal(plan.fn(X), as_written(X))
    np.testing.assert_allclose(jax.jit(plan.fn)(X), as_written(X), rtol=1e-5)


def test_it_is_checked_in_its_order(plan: memscope.Plan) -> None:
    check = plan.check(X)
    assert check.ok
    assert check.measured_peak_bytes is None
    assert "an order of instructions can't travel" in check.how


def test_what_is_saved_keeps_to_the_limit_without_it(plan: memscope.Plan, tmp_path: pathlib.Path) -> None:
    assert plan.portable.loops
    assert plan.portable.peak_bytes <= plan.limit_bytes
    source = plan.save(tmp_path / "safe.py").read_text()
    assert "which source can't hold: this peak is its own" in source
    names: dict[str, Any] = {}
    exec(source, names)
    np.testing.assert_allclose(names["branches_safe"](X), branches(X), rtol=1e-4)
    assert plan.save(tmp_path / "safe.jaxexport").exists()


def test_a_lower_limit_never_gives_a_higher_peak(plan: memscope.Plan) -> None:
    peaks = [memscope.plan(branches, X, limit=f"{share}%").peak_bytes for share in (50, 30, 8)]
    assert peaks == sorted(peaks, reverse=True)


def test_a_limit_that_no_order_reaches_takes_no_compile_of_one() -> None:
    lines: list[str] = []
    memscope.plan(branches, X, limit="5%", progress=lines.append)
    assert not [line for line in lines if "order" in line]
