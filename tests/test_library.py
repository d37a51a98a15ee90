"""Where XLA CPU's plain build may be used for a rewritten function: its library is slow at some reductions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import memscope
from memscope.compile import Build
from memscope.cost import estimate
from memscope.library import seconds_per_element, suits_library


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [((500, 1000), [1]), ((500, 1000), [0]), ((48, 96, 96), [1]), ((10, 100, 1000), [0, 1]), ((100, 1), [1]), ((), [])],
)
def test_rows_are_what_the_library_is_made_for(sizes: tuple[int, ...], axes: list[int]) -> None:
    assert seconds_per_element(sizes, axes) == 0


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [((100, 1000, 3), [2]), ((3, 100, 1000), [0]), ((4, 9216), [0]), ((128, 256, 10, 1), [2]), ((1000, 24, 3), [1])],
)
def test_other_reductions_are_not(sizes: tuple[int, ...], axes: list[int]) -> None:
    assert seconds_per_element(sizes, axes) > 0


def squared_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum((x[:, None] - y) ** 2, 2).min(1)


def normalised(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.nn.softmax(x @ y.T, axis=1).max(1)


F32 = jax.ShapeDtypeStruct((2000, 3), "float32")


def test_distances_do_not_suit_it_and_a_softmax_does() -> None:
    for fn, suited in ((squared_distances, False), (normalised, True)):
        closed = jax.make_jaxpr(fn)(F32, F32)
        assert suits_library(closed, estimate(closed)) is suited


def test_a_loop_counts_as_often_as_it_runs() -> None:
    def looped(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 50, lambda _, z: z + squared_distances(x, y).sum(), 0.0) + normalised(x, y).sum()

    closed = jax.make_jaxpr(looped)(F32, F32)
    assert not suits_library(closed, estimate(closed))


def test_a_plan_takes_the_plain_build_where_it_suits_and_its_bound_fits() -> None:
    wide = memscope.plan(normalised, F32, F32, limit="50%")
    assert wide.build is Build.PLAIN
    assert wide.loops
    assert wide.peak_bytes <= wide.limit_bytes
    floor = memscope.plan(normalised, F32, F32, limit=1, best_effort=True)
    assert floor.build is Build.REFERENCE
    assert memscope.plan(squared_distances, F32, F32, limit="50%").build is Build.REFERENCE
