"""Products with selections and ends of sorts, computed in cheaper ways: the same values, odd ones included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memscope
from memscope.algebra.rules import apply_rules, simplify
from memscope.target import resolve
from memscope.trace import trace

CPU = resolve(None)


def table() -> np.ndarray[Any, Any]:
    values = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    values[3, 1], values[5, 2], values[6, 3], values[7, 3] = np.inf, np.nan, -np.inf, np.inf
    return values


IDS = np.array([0, 3, 5, 6, -1, 9, 100, 2], np.int32)
WIDE = np.random.default_rng(2).normal(size=(5, 9)).astype(np.float32)
WIDE[1, 2] = np.inf
SCALE = np.arange(9, dtype=np.float32) - 3


def shifted(values: Any) -> Any:
    rows = jnp.arange(9)[:, None]
    return jnp.where(rows == jnp.arange(9)[None] + 1, values, 0.0)


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "one-hot": (lambda t, ids: jax.nn.one_hot(ids, 9) @ t, (table(), IDS)),
    "one-hot on the right": (lambda t, ids: jnp.einsum("vd,nv->dn", t, jax.nn.one_hot(ids, 9)), (table(), IDS)),
    "one-hot of a matrix": (
        lambda t, ids: jnp.einsum("abv,vd->abd", jax.nn.one_hot(ids.reshape(2, 4), 9), t), (table(), IDS),
    ),
    "bfloat16": (
        lambda t, ids: jax.nn.one_hot(ids, 9, dtype=jnp.bfloat16) @ t.astype(jnp.bfloat16), (table(), IDS),
    ),
    "integers": (lambda ids: jax.nn.one_hot(ids, 9, dtype=jnp.int32) @ jnp.arange(9), (IDS,)),
    "identity": (lambda a: a @ jnp.eye(9), (WIDE,)),
    "identity on the left": (lambda a: jnp.eye(9) @ a.T, (WIDE,)),
    "columns beside": (lambda a: a @ jnp.eye(9, 6, k=1), (WIDE,)),
    "columns outside": (lambda a: a @ jnp.eye(9, 12, k=-2), (WIDE,)),
    "rows outside": (lambda a: jnp.eye(12, 9, k=-2) @ a.T, (WIDE,)),
    "diagonal": (lambda a, v: a @ jnp.diag(v), (WIDE, SCALE)),
    "diagonal on the left": (lambda a, v: jnp.diag(v) @ a.T, (WIDE, SCALE)),
    "shifted diagonal": (lambda a, v: shifted(v[None]) @ a.T, (WIDE, SCALE)),
    "shifted diagonal by rows": (lambda a, v: shifted(v[:, None]) @ a.T, (WIDE, SCALE)),
    "jacfwd": (lambda a: jax.jacfwd(lambda y: jnp.tanh(a @ y))(jnp.ones(9)), (WIDE,)),
    "hessian": (lambda a: jax.hessian(lambda y: jnp.sum((a @ y) ** 4))(a[0]), (WIDE[2:],)),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_selections(name: str) -> None:
    fn, args = PRODUCTS[name]
    simpler, found = apply_rules(trace(fn, args), CPU)
    assert found
    assert found[0].source is not None
    assert found[0].source.startswith("test_algebra.py:")
    got, want = run(simpler, args), jax.tree.leaves(jax.jit(fn)(*args))
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(np.asarray(g, np.float32), np.asarray(w, np.float32), rtol=1e-5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: a @ jnp.ones((9, 9)),
        lambda a: a @ (jnp.eye(9) + 1),
        lambda a: a @ jnp.where(jnp.eye(9, dtype=bool), 1.0, a[:1]),
        lambda a: jnp.einsum("ij,ijk->ik", a, jnp.broadcast_to(jnp.eye(9)[:5, :, None], (5, 9, 9))),
        lambda a: a @ (jnp.arange(9.0)[:, None] == a[0]).astype(jnp.float32),
    ],
)
def test_other_products_stay(fn: Callable[..., Any]) -> None:
    assert apply_rules(trace(fn, (WIDE,)), CPU)[1] == ()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_random_products(data: st.DataObject) -> None:
    """Any shape, offset and side; indices and values out of range and out of the ordinary."""
    draw, random = data.draw, np.random.default_rng(data.draw(st.integers(0, 99)))
    rows, columns, free = (draw(st.integers(0 if name == "free" else 1, 6)) for name in ("rows", "columns", "free"))
    first, side = draw(st.integers(-3, 3)), draw(st.booleans())
    dtype = draw(st.sampled_from([np.float32, np.float16, np.int32, np.uint8]))
    index = random.integers(-2, columns + 2, rows).astype(np.int32)
    other = random.integers(0, 4, (columns, free)).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        other[random.random(other.shape) < 0.1] = np.inf
        other[random.random(other.shape) < 0.1] = np.nan
    scale = draw(st.sampled_from(["none", "rows", "columns"]))
    values = np.arange(2, 2 + max(rows, columns)).astype(dtype)
    diagonal = draw(st.booleans())

    def fn(index: Any, other: Any, values: Any) -> Any:
        index = jnp.arange(rows) if diagonal else index
        mask = index[:, None] == jnp.arange(columns)[None] + first
        scales = {"none": 1, "rows": values[:rows, None], "columns": values[None, :columns]}
        matrix = mask.astype(dtype) if scale == "none" else jnp.where(mask, scales[scale], 0).astype(dtype)
        return matrix @ other if side else jnp.einsum("rc,cf->fr", matrix, other)

    args = (index, other, values)
    simpler, found = apply_rules(trace(fn, args), CPU)
    assert found
    (got,), want = run(simpler, args), fn(*args)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_random_ends_of_sorts(data: st.DataObject) -> None:
    draw, random = data.draw, np.random.default_rng(data.draw(st.integers(0, 99)))
    length = draw(st.integers(8, 60))
    count, last = draw(st.integers(1, length // 8)), draw(st.booleans())
    start = draw(st.integers(0, count - 1))
    special = np.array([0.0, -0.0, 1.0, 2.0, np.inf, -np.inf, np.nan, -np.nan], np.float32)
    x = random.choice(special[: draw(st.integers(1, 8))], (3, length))

    def fn(x: Any) -> Any:
        ends = slice(length - count, length - start) if last else slice(start, count)
        return jnp.argsort(x, axis=1)[:, ends], jnp.sort(x, axis=1)[:, ends]

    simpler, found = apply_rules(trace(fn, (x,)), CPU)
    assert found
    for got, want in zip(run(simpler, (x,)), jax.jit(fn)(x), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
        np.testing.assert_array_equal(np.signbit(np.asarray(got)), np.signbit(np.asarray(want)))


def keys() -> np.ndarray[Any, Any]:
    x = np.random.default_rng(0).normal(size=(7, 40)).astype(np.float32)
    x[0, 3:30] = np.nan
    x[1, 5], x[1, 7] = np.inf, -np.inf
    x[2] = 0.0
    x[2, ::2] = -0.0
    x[3, :36], x[3, 3], x[3, 9] = np.inf, np.nan, -np.nan
    x[4] = np.nan
    x[5] = np.round(x[5])
    return x


SORTS: dict[str, Callable[[Any], Any]] = {
    "first": lambda x: (jnp.argsort(x)[:, :5], jnp.sort(x)[:, :5]),
    "not from the first": lambda x: jnp.argsort(x)[:, 1:5:2],
    "last": lambda x: (jnp.argsort(x)[:, -4:], jnp.sort(x)[:, -4:]),
    "descending": lambda x: jnp.argsort(-x)[:, :5],
    "along the first axis": lambda x: jnp.sort(x.T, axis=0)[:3],
    "half precision": lambda x: jnp.sort(x.astype(jnp.float16))[:, :3],
    "with others": lambda x: jax.lax.sort((x, jnp.cumsum(x, 1)), num_keys=1)[1][:, :5],
    "smallest": lambda x: jnp.sort(x)[:, 0],
    "vmap": jax.vmap(lambda row: jnp.sort(row)[-2:]),
}


@pytest.mark.parametrize("name", SORTS)
def test_ends_of_sorts(name: str) -> None:
    simpler, found = apply_rules(trace(SORTS[name], (keys(),)), CPU)
    assert found
    assert "sort" not in {eqn.primitive.name for eqn in simpler.eqns}
    got, want = run(simpler, (keys(),)), jax.tree.leaves(jax.jit(SORTS[name])(keys()))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(g), np.asarray(w))
        np.testing.assert_array_equal(np.signbit(np.asarray(g)), np.signbit(np.asarray(w)))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.sort(x)[:, :20],
        lambda x: jnp.sort(x)[:, 18:21],
        lambda x: jnp.cumsum(jnp.sort(x), axis=1)[:, :2],
        lambda x: (jnp.sort(x)[:, :2], jnp.sort(x)),
        lambda x: jnp.sort(x.astype(jnp.int32))[:, :2],
        lambda x: jax.lax.sort((jnp.round(x), x), num_keys=2)[1][:, :2],
    ],
)
def test_other_sorts_stay(fn: Callable[[Any], Any]) -> None:
    assert apply_rules(trace(fn, (keys(),)), CPU)[1] == ()


def test_nothing_is_simplified_without_a_gain() -> None:
    def narrow(ids: Any, weights: Any) -> Any:
        return jax.nn.one_hot(ids, 3) @ weights

    program = trace(narrow, (jax.ShapeDtypeStruct((1000,), "int32"), jax.ShapeDtypeStruct((3, 1), "float32")))
    assert apply_rules(program, CPU)[1]
    assert simplify(program, CPU) == (program, ())


def neighbours(queries: Any, points: Any) -> Any:
    distances = jnp.sum((queries[:, None] - points) ** 2, -1)
    order = jnp.argsort(distances, axis=1)[:, 1:6]
    return order, jnp.take_along_axis(distances, order, 1)


def test_a_plan_says_what_it_no_longer_makes(tmp_path: Any) -> None:
    points = np.random.default_rng(3).normal(size=(3000, 3)).astype(np.float32)
    plan = memscope.plan(neighbours, points[:2000], points, limit="2MiB")
    assert plan.fits
    assert plan.changed
    assert [(gone.op, gone.shape) for gone in plan.simplified] == [("sort", (2000, 3000))]
    assert "the first 6 of a sort of 3,000 are its top_k" in plan.explain()
    assert "never made   float32[2000,3000]" in plan.explain()
    want = neighbours(points[:2000], points)
    got = plan.fn(points[:2000], points)
    np.testing.assert_array_equal(got[0], want[0])
    names: dict[str, Any] = {}
    exec(plan.source(), names)
    np.testing.assert_array_equal(names["neighbours_safe"](points[:2000], points)[0], want[0])
    assert plan.check(points[:2000], points).ok


def test_what_fits_is_left_as_it_is() -> None:
    points = np.zeros((300, 3), np.float32)
    plan = memscope.plan(neighbours, points, points, limit="1GiB")
    assert not plan.changed


def test_other_chunks_of_a_simplified_function() -> None:
    shapes = jax.ShapeDtypeStruct((2000, 3), "float32"), jax.ShapeDtypeStruct((3000, 3), "float32")
    plan = memscope.plan(neighbours, *shapes, limit="2MiB")
    other = plan.instead(plan.alternatives()[0])
    assert other.simplified == plan.simplified


def test_a_product_inside_a_loop() -> None:
    def fn(ids: Any, weights: Any) -> Any:
        return jax.lax.scan(lambda carry, row: (carry, jax.nn.one_hot(row, 20_000) @ weights), 0, ids)[1]

    ids = np.random.default_rng(4).integers(0, 20_000, (3, 500), np.int32)
    weights = np.random.default_rng(5).normal(size=(20_000, 8)).astype(np.float32)
    plan = memscope.plan(fn, ids, weights, limit="4MiB")
    assert plan.fits
    np.testing.assert_array_equal(plan.fn(ids, weights), fn(ids, weights))


def run(program: Any, args: tuple[Any, ...]) -> list[Any]:
    return jax.jit(jax.extend.core.jaxpr_as_fun(program.closed))(*args)
