"""From a function to one that fits: plans, their promises, and what they give back."""

from __future__ import annotations

import functools
import linecache
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import memscope

RNG = np.random.default_rng(1)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def kernel_product(x: Any, y: Any, v: Any) -> Any:
    return jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, -1)) @ v


def nearest(q: Any, x: Any, k: int = 4) -> Any:
    distances = jnp.sum(q * q, 1)[:, None] - 2 * q @ x.T + jnp.sum(x * x, 1)[None]
    value, index = lax.top_k(-distances, k)
    return {"distance": -value, "index": index}


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, -1), v)


def attention_loss(q: Any, k: Any, v: Any) -> Any:
    return jnp.mean(attention(q, k, v) ** 2)


def bound(z: Any, x: Any, y: Any) -> Any:
    """The collapsed bound of sparse GP regression, but for constants."""

    def kernel(a: Any, b: Any) -> Any:
        return jnp.exp(-0.5 * (jnp.sum(a * a, 1)[:, None] + jnp.sum(b * b, 1)[None] - 2 * a @ b.T))

    factor = jnp.linalg.cholesky(kernel(z, z) + 1e-2 * jnp.eye(len(z)))
    a = jax.scipy.linalg.solve_triangular(factor, kernel(z, x), lower=True)
    inner = jnp.linalg.cholesky(jnp.eye(len(z)) + a @ a.T)
    c = jax.scipy.linalg.solve_triangular(inner, a @ y, lower=True)
    return (-jnp.sum(jnp.log(jnp.diagonal(inner))) + 0.5 * c @ c + 0.5 * jnp.sum(a * a)) / len(x)


WORKLOADS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "kernel_product": (kernel_product, (normal(997, 3), normal(1009, 3), normal(1009))),
    "nearest": (nearest, (normal(499, 8), normal(2003, 8))),
    "attention": (attention, (normal(211, 2, 8), normal(223, 2, 8), normal(223, 2, 8))),
    "attention_grad": (
        jax.grad(attention_loss, argnums=(0, 1, 2)),
        (normal(211, 2, 8), normal(223, 2, 8), normal(223, 2, 8)),
    ),
    "bound": (bound, (normal(16, 3), normal(20011, 3), normal(20011))),
    "bound_grad": (jax.value_and_grad(bound), (normal(16, 3), normal(20011, 3), normal(20011))),
}


def close(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        scale = max(1e-30, float(jnp.max(jnp.abs(w)))) if jnp.issubdtype(w.dtype, jnp.floating) else 0
        np.testing.assert_allclose(g, w, rtol=0, atol=2e-3 * scale)


def tenth(profile: memscope.Profile) -> int:
    return profile.argument_bytes + profile.output_bytes + profile.temp_bytes // 10


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_tenth_of_the_temporaries_is_enough(name: str) -> None:
    fn, args = WORKLOADS[name]
    limit = tenth(memscope.profile(fn, *args))
    plan = memscope.plan(fn, *args, limit=limit)
    assert plan.fits
    assert plan.peak_bytes <= limit
    assert plan.loops
    assert plan.profile.peak_bytes <= plan.peak_bytes
    close(plan.fn(*args), fn(*args))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_function_that_fits_comes_back_unchanged(name: str) -> None:
    fn, args = WORKLOADS[name]
    plan = memscope.plan(fn, *args, limit="100%")
    assert plan.fits
    assert plan.loops == ()
    assert plan.slowdown == 1.0
    close(plan.fn(*args), fn(*args))


def test_a_lower_limit_never_gives_a_higher_peak() -> None:
    fn, args = WORKLOADS["attention_grad"]
    peaks = [memscope.plan(fn, *args, limit=f"{p}%", best_effort=True).peak_bytes for p in (100, 60, 45, 35)]
    assert peaks == sorted(peaks, reverse=True)


def test_frontier_rises_from_the_floor_to_today() -> None:
    points = memscope.frontier(kernel_product, *WORKLOADS["kernel_product"][1])
    assert len(points) > 2
    assert [p.limit for p in points] == sorted({p.limit for p in points})
    assert [p.peak_bytes for p in points] == sorted(p.peak_bytes for p in points)
    assert all(p.peak_bytes <= p.limit for p in points)
    assert points[-1].slowdown == 1.0


def test_shapes_stand_for_arrays_and_nothing_is_allocated() -> None:
    shape = jax.ShapeDtypeStruct
    args = (shape((10_000, 100), jnp.float32), shape((1_000_000, 100), jnp.float32))
    plan = memscope.plan(nearest, *args, limit="1GiB")
    assert plan.original_peak_bytes > 40e9
    assert plan.peak_bytes <= 2**30


def test_progress_says_what_is_done() -> None:
    lines: list[str] = []
    memscope.plan(kernel_product, *WORKLOADS["kernel_product"][1], limit="20%", progress=lines.append)
    assert len(lines) >= 3
    assert all("\n" not in line for line in lines)


class TestFunction:
    """`plan.fn` is called like the function it came from."""

    args = WORKLOADS["nearest"][1]

    def plan(self, **kwargs: Any) -> memscope.Plan:
        return memscope.plan(nearest, *self.args, limit="30%", **kwargs)

    def test_static_and_keyword_arguments(self) -> None:
        plan = memscope.plan(nearest, *self.args, 3, limit="30%", static_argnums=2)
        assert plan.fn(*self.args, 3)["index"].shape == (499, 3)
        plan = memscope.plan(nearest, self.args[0], x=self.args[1], k=3, limit="30%", static_argnames="k")
        close(plan.fn(self.args[0], x=self.args[1], k=3), nearest(*self.args, 3))
        close(plan.fn(*self.args, k=3), nearest(*self.args, 3))
        with pytest.raises(TypeError, match="planned with 'k' = 3 and called with 5"):
            plan.fn(self.args[0], x=self.args[1], k=5)

    def test_under_other_transformations(self) -> None:
        plan = self.plan()
        want = nearest(*self.args)["distance"].sum()
        got = jax.jit(lambda q, x: plan.fn(q, x)["distance"].sum())
        np.testing.assert_allclose(got(*self.args), want, rtol=1e-5)
        assert jax.jit(plan.fn).lower(*self.args) is not None
        constant = jax.jit(lambda: plan.fn(*self.args)["distance"].sum())
        np.testing.assert_allclose(constant(), want, rtol=1e-5)
        gradient = jax.grad(lambda f, q: f(q, self.args[1])["distance"].sum(), argnums=1)
        close(gradient(plan.fn, self.args[0]), gradient(nearest, self.args[0]))
        many = jnp.stack([self.args[0], 2 * self.args[0]])
        close(jax.vmap(plan.fn, (0, None))(many, self.args[1]), jax.vmap(nearest, (0, None))(many, self.args[1]))

    def test_another_shape_is_refused_in_one_sentence(self) -> None:
        plan = self.plan()
        with pytest.raises(TypeError, match=r"q is float32\[400,8\], but nearest was planned for float32\[499,8\]"):
            plan.fn(self.args[0][:400], self.args[1])
        with pytest.raises(TypeError, match="planned for arguments of the tree"):
            plan.fn((self.args[0], self.args[1]))
        with pytest.raises(TypeError, match=r"q is int32\[499,8\], but nearest was planned for float32\[499,8\]"):
            plan.fn(self.args[0].astype(int), self.args[1])

    def test_custom_derivatives_survive(self) -> None:
        @jax.custom_jvp
        def safe_norm(x: Any) -> Any:
            return jnp.sqrt(jnp.sum(x * x, -1))

        @safe_norm.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            (x,), (t,) = primals, tangents
            n = safe_norm(x)
            return n, jnp.sum(x * t, -1) / jnp.maximum(n, 1e-6)

        def total(x: Any, y: Any) -> Any:
            return jnp.sum(safe_norm(x[:, None] - y[None]))

        x = normal(300, 4)
        plan = memscope.plan(total, x, x, limit="10%")
        assert plan.loops
        gradient = jax.grad(plan.fn)(x, x)
        assert bool(jnp.all(jnp.isfinite(gradient)))
        close(gradient, jax.grad(total)(x, x))


def test_values_agree_with_numpy_arrays_python_scalars_and_zero_sizes() -> None:
    def scaled(x: Any, y: Any, s: Any) -> Any:
        return jnp.exp(-s * jnp.abs(x[:, None] - y[None])) @ y

    x, y = np.linspace(0, 1, 401, dtype=np.float32), np.linspace(0, 1, 307)
    plan = memscope.plan(scaled, x, y, 2.0, limit="10%")
    assert plan.loops
    close(plan.fn(x, y, 2.0), scaled(jnp.asarray(x), jnp.asarray(y), 2.0))
    empty = memscope.plan(scaled, x[:0], y, 2.0, limit="10MiB")
    assert empty.fn(x[:0], y, 2.0).shape == (0,)
    assert memscope.profile(scaled, x[:0], y[:0], 2.0).peak_bytes >= 0


def test_side_effects_happen_once_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def noisy(x: Any, y: Any) -> Any:
        jax.debug.print("first {}", x.shape[0], ordered=True)
        out = jnp.exp(-jnp.abs(x[:, None] - y[None])).sum(1)
        jax.debug.print("then {:.1f}", out[0], ordered=True)
        return out

    x = jnp.linspace(0, 1, 600)
    plan = memscope.plan(noisy, x, x, limit="20%")
    assert plan.loops
    capfd.readouterr()
    jax.block_until_ready(plan.fn(x, x))
    jax.effects_barrier()
    lines = [line.split()[0] for line in capfd.readouterr().out.splitlines()]
    assert lines == ["first", "then"]


def test_x64_is_kept() -> None:
    with jax.enable_x64(True):
        x = jnp.linspace(0, 1, 500)
        want = kernel_product(x[:, None], x[:, None], x)
        plan = memscope.plan(kernel_product, x[:, None], x[:, None], x, limit="10%")
        got = plan.fn(x[:, None], x[:, None], x)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_donated_arguments_stay_donated() -> None:
    def step(w: Any, x: Any) -> Any:
        return w - 1e-3 * x.T @ jnp.tanh(x @ w)

    w, x = normal(64, 64), normal(20_000, 64)
    plan = memscope.plan(step, w, x, limit="70%", donate_argnums=0)
    assert plan.loops
    given = jnp.copy(w)
    close(plan.fn(given, x), step(w, x))
    assert given.is_deleted()


def test_source_runs_where_memscope_is_not(tmp_path: Path) -> None:
    args = WORKLOADS["nearest"][1]
    plan = memscope.plan(nearest, *args, limit="20%")
    saved = plan.save(tmp_path / "nearest_safe.py")
    np.savez(tmp_path / "args.npz", q=args[0], x=args[1])
    code = (
        "import sys; sys.modules['memscope'] = None\n"
        "import numpy as np\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from nearest_safe import nearest_safe\n"
        f"a = np.load({str(tmp_path / 'args.npz')!r})\n"
        f"np.save({str(tmp_path / 'out.npy')!r}, nearest_safe(a['q'], a['x'])['distance'])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), nearest(*args)["distance"], atol=1e-4)
    assert saved.read_text() == plan.source()


def test_jaxexport_runs_elsewhere(tmp_path: Path) -> None:
    args = WORKLOADS["nearest"][1]
    plan = memscope.plan(nearest, *args, limit="20%")
    path = plan.save(tmp_path / "nearest.jaxexport")
    again = jax.export.deserialize(bytearray(path.read_bytes()))
    close(again.call(*args), nearest(*args))
    with pytest.raises(ValueError, match=r"\.py or \.jaxexport"):
        plan.save(tmp_path / "nearest.txt")


class TestMemsafe:
    def test_used_like_jit(self) -> None:
        fn, args = WORKLOADS["kernel_product"]
        safe = memscope.memsafe(fn, limit="2MiB")
        close(safe(*args), fn(*args))
        assert safe.plan(*args).peak_bytes <= 2 * 2**20
        shorter = (args[0][:10], *args[1:])
        close(safe(*shorter), fn(*shorter))

    def test_as_a_decorator(self) -> None:
        @memscope.memsafe(limit="2MiB")
        def product(x: Any, y: Any, v: Any) -> Any:
            """Docs stay."""
            return kernel_product(x, y, v)

        args = WORKLOADS["kernel_product"][1]
        close(product(*args), kernel_product(*args))
        assert product.__name__ == "product"
        assert product.__doc__ == "Docs stay."
        close(jax.jit(product)(*args), kernel_product(*args))

    def test_plans_once_for_each_shape(self) -> None:
        traced = 0

        def counted(x: Any) -> Any:
            nonlocal traced
            traced += 1
            return jnp.exp(-jnp.abs(x[:, None] - x[None])).sum(1)

        safe = memscope.memsafe(counted, limit="1MiB")
        x = jnp.linspace(0, 1, 900)
        for _ in range(3):
            safe(x)
        assert traced == 1

    def test_wrong_options_are_refused_at_once(self) -> None:
        with pytest.raises(ValueError, match="not a size"):
            memscope.memsafe(kernel_product, limit="lots")
        with pytest.raises(TypeError, match="needs a function"):
            memscope.memsafe(3, limit="1MiB")
        with pytest.raises(memscope.TargetError, match="unknown target"):
            memscope.memsafe(kernel_product, limit="1MiB", target="abacus")


class TestBadInput:
    args = WORKLOADS["kernel_product"][1]

    @pytest.mark.parametrize("limit", ["lots", "", "12 parsecs", "-5MiB", "0", 0, -1, "0%", float("nan")])
    def test_limits_that_are_no_sizes(self, limit: Any) -> None:
        with pytest.raises(ValueError, match=r"limit .* (is not a size|must be above zero)"):
            memscope.plan(kernel_product, *self.args, limit=limit)

    @pytest.mark.parametrize("limit", [True, [], object()])
    def test_limits_of_another_type(self, limit: Any) -> None:
        with pytest.raises(TypeError, match="not a size"):
            memscope.plan(kernel_product, *self.args, limit=limit)

    def test_a_limit_under_the_floor(self) -> None:
        with pytest.raises(memscope.LimitError, match="lowest peak that memscope can reach") as caught:
            memscope.plan(kernel_product, *self.args, limit="10KiB")
        error = caught.value
        assert isinstance(error, ValueError)
        assert error.floor_bytes > 10 * 1024
        assert all(isinstance(b, memscope.Buffer) and reason for b, reason in error.blockers)
        again = memscope.plan(kernel_product, *self.args, limit=error.floor_bytes)
        assert again.fits
        lowest = memscope.plan(kernel_product, *self.args, limit="10KiB", best_effort=True)
        assert not lowest.fits
        assert lowest.peak_bytes == error.floor_bytes

    def test_no_limit_helps_where_the_target_is_too_small(self) -> None:
        tiny = memscope.Target("tiny", "cpu", 10_000)
        with pytest.raises(memscope.LimitError, match=r"no limit helps, as tiny holds 9\.77 KiB: run it") as caught:
            memscope.plan(kernel_product, *self.args, target=tiny)
        assert "raise the limit" not in str(caught.value)

    def test_the_reason_names_the_primitive_and_the_line(self) -> None:
        def solve(x: Any, y: Any) -> Any:
            gram = jnp.exp(-jnp.abs(x[:, None] - x[None])) + jnp.eye(len(x))
            return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(gram), True), y)

        x = jnp.linspace(0, 1, 700)
        with pytest.raises(memscope.LimitError) as caught:
            memscope.plan(solve, x, x, limit="20%")
        largest = [(b, r) for b, r in caught.value.blockers if b.bytes >= 700 * 700 * 4]
        assert largest
        assert all("test_plan.py:" in str(b.source) for b, _ in largest)
        assert any("cholesky couples all rows" in r for _, r in largest)

    @pytest.fixture
    def filtered(self) -> Iterator[None]:
        """JAX's way outside IPython; where a shell runs it hides the same frames instead of dropping them."""
        before = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]
        jax.config.update("jax_traceback_filtering", "quiet_remove_frames")
        yield
        jax.config.update("jax_traceback_filtering", before)

    @pytest.mark.usefixtures("filtered")
    def test_a_function_that_raises_shows_the_users_traceback(self) -> None:
        def broken(x: Any) -> Any:
            return x @ jnp.ones((3, 3))

        for call in (memscope.profile, functools.partial(memscope.plan, limit="1MiB")):
            with pytest.raises(TypeError, match="dot_general") as caught:
                call(broken, jnp.ones((4, 4)))
            files = [f.filename for f in traceback.extract_tb(caught.value.__traceback__)]
            package = str(Path(memscope.__file__).parent)
            assert not any(f.startswith(package) for f in files), files
            assert files[:2] == [__file__, __file__]  # the call, then the line of the function itself

    def test_wrong_number_of_arguments(self) -> None:
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'v'"):
            memscope.plan(kernel_product, *self.args[:2], limit="1MiB")

    def test_an_argument_that_is_no_jax_type(self) -> None:
        for call in (memscope.profile, functools.partial(memscope.plan, limit="1MiB")):
            with pytest.raises(TypeError, match=r"y\['a'\] is of type str, which is no JAX type"):
                call(lambda x, y: x, jnp.ones(3), {"a": "text"})

    def test_a_clashing_keyword(self) -> None:
        def limited(x: Any, *, limit: float) -> Any:
            return jnp.minimum(x, limit)

        with pytest.raises(TypeError, match=r"functools\.partial\(limited, limit=\.\.\.\)"):
            memscope.plan(limited, jnp.ones(3), limit="1MiB")
        assert memscope.plan(functools.partial(limited, limit=0.5), jnp.ones(3), limit="1MiB").fits

    def test_an_unknown_target(self) -> None:
        with pytest.raises(memscope.TargetError, match="unknown target 'cpuu': use one of 'cpu'"):
            memscope.plan(kernel_product, *self.args, limit="1MiB", target="cpuu")

    def test_not_a_function(self) -> None:
        with pytest.raises(TypeError, match="needs a function to trace, not ArrayImpl"):
            memscope.profile(kernel_product(*self.args))


def density(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.exp(-jnp.sum((a[:, None] - b) ** 2, 2)).sum(1)


def test_a_plan_that_is_much_faster_is_tried_though_its_estimate_is_above_the_limit() -> None:
    args = jax.ShapeDtypeStruct((700, 5), "float32"), jax.ShapeDtypeStruct((900, 5), "float32")
    roomy, tight = (memscope.plan(density, *args, limit=limit) for limit in (150_000, 79_080))
    assert tight.peak_bytes <= roomy.peak_bytes
    assert tight.slowdown <= roomy.slowdown


def test_what_was_found_for_one_limit_serves_a_lower_one() -> None:
    args = jax.ShapeDtypeStruct((700, 5), "float32"), jax.ShapeDtypeStruct((900, 5), "float32")
    request = memscope.plan(density, *args, limit=150_000).request
    peaks = [request.plan(limit, best_effort=True).peak_bytes for limit in range(150_000, 60_000, -6_000)]
    assert peaks == sorted(peaks, reverse=True)


def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("qhd,khd->hqk", q, k)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, v)


def test_attention_is_cut_by_head_and_by_query() -> None:
    args = [jax.random.normal(key, (6001, 8, 64)) for key in jax.random.split(jax.random.key(0), 3)]
    plan = memscope.plan(attend, *args, limit="10%")
    assert [loop.size for loop in plan.loops] == [8, 6001]
    some = np.array([0, 86, 87, 6000])
    np.testing.assert_allclose(plan.fn(*args)[some], attend(args[0][some], *args[1:]), rtol=1e-4, atol=1e-5)
    largest = [b for b in plan.profile.buffers if b.kind == "temporary" and "87" in str(b.shape)][:2]
    lines = {linecache.getline(__file__, int(str(b.source).partition(":")[2])).strip() for b in largest}
    assert lines == {"weights = jax.nn.softmax(scores, axis=-1)"}
