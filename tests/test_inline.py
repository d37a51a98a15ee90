"""What flattening makes of a jaxpr: the same function of fewer kinds of eqns."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from memscope.evaluate import run_program
from memscope.trace import trace

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def test_a_slice_whose_start_is_known_is_static() -> None:
    def fn(x: Any) -> Any:
        beyond = lax.dynamic_slice(x, (1, 9), (2, 3))
        narrow = lax.dynamic_slice(x, (np.int8(3), np.int8(0)), (2, 6))
        return beyond, narrow, lax.dynamic_slice_in_dim(x, -2, 2, 1), lax.dynamic_slice(x, (0, 2), (4, 0))

    program = trace(fn, (X,))
    assert {eqn.primitive.name for eqn in program.eqns} == {"slice"}
    for got, want in zip(run_program(program)(X), fn(X), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_slice_whose_start_is_an_argument_stays() -> None:
    program = trace(lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 6)), (X, np.int32(1)))
    assert [eqn.primitive.name for eqn in program.eqns].count("dynamic_slice") == 1
