"""A profile's numbers are XLA's, and each buffer leads back to the user's line."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from memscope.compile import Build, compile_program
from memscope.profile import Profile, profile, profile_compiled
from memscope.target import resolve
from memscope.trace import trace

CASES = {p.stem: p for p in sorted((Path(__file__).parent / "cases").glob("case_*.py"))}
SOME = [
    "case_001_kernel_matvec", "case_006_argsort_knn_vmap", "case_014_grad_long_rnn", "case_017_sinkhorn_loop",
    "case_018_local_energies", "case_024_sgpr_grad", "case_028_attention_forward", "case_029_attention_grad",
    "case_033_xent_grad", "case_041_ntxent_grad", "case_043_per_example_clip", "case_046_nbody_forces",
    "case_066_bernoulli_trials", "case_074_associative_scan", "case_076_hmm_forward_grad", "case_099_cg_lazy_kernel",
]  # fmt: skip


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def line_of(fn: Callable[..., Any], text: str) -> str:
    """The "file.py:12" of the line of `fn` that holds `text`."""
    lines, first = inspect.getsourcelines(fn)
    return f"{Path(__file__).name}:{first + next(k for k, line in enumerate(lines) if text in line)}"


def nearest(q: jax.Array, x: jax.Array) -> jax.Array:
    d = jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)
    return jax.lax.top_k(-d, 10)[1]


def check_whole(p: Profile) -> None:
    """What holds for any profile."""
    parts = p.argument_bytes + p.output_bytes + p.temp_bytes + p.constant_bytes - p.alias_bytes
    assert p.peak_bytes == parts
    assert max(p.timeline) == p.peak_bytes - p.fragmentation_bytes == p.timeline[p.peak_step]
    assert len(p.timeline) == len(p.steps) == len(p.step_sources)
    assert [b.bytes for b in p.buffers] == sorted((b.bytes for b in p.buffers), reverse=True)
    for b in p.buffers:
        assert 0 <= b.defined_at <= b.freed_at < len(p.steps)
    assert sum(b.bytes for b in p.buffers if b.kind == "argument") == p.argument_bytes
    json.dumps(p.to_dict())
    assert str(p)
    assert "</html>" in p.to_html()


@pytest.mark.parametrize("name", SOME)
def test_cases(name: str) -> None:
    if name not in CASES:
        pytest.skip("the case is not part of this checkout")
    spec = importlib.util.spec_from_file_location(name, CASES[name])
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    p = profile(case.fn, *jax.eval_shape(lambda: case.make_args(0.1)))
    check_whole(p)
    assert p.fragmentation_bytes <= 0.02 * p.peak_bytes
    largest = p.largest_at_peak
    assert largest is not None
    assert largest.source is not None
    assert largest.source.startswith(f"{name}.py:")


def test_the_numbers_are_xlas() -> None:
    args = f32(256, 16), f32(5000, 16)
    p = profile(nearest, *args)
    plain = jax.jit(nearest).lower(*args).compile().memory_analysis()
    exact = jax.jit(nearest).lower(*args).compile(Build.REFERENCE.options).memory_analysis()
    assert p.argument_bytes == exact.argument_size_in_bytes
    assert p.output_bytes == exact.output_size_in_bytes
    assert p.temp_bytes == pytest.approx(exact.temp_size_in_bytes, rel=0.01)
    assert p.plain_peak_bytes == pytest.approx(
        plain.argument_size_in_bytes + plain.output_size_in_bytes + plain.temp_size_in_bytes, rel=0.01
    )
    assert p.plain_bound_bytes is not None
    assert p.plain_peak_bytes is not None
    assert p.plain_bound_bytes > p.plain_peak_bytes
    check_whole(p)


def test_the_largest_buffer_has_its_op_and_line() -> None:
    p = profile(nearest, f32(256, 16), f32(5000, 16))
    largest = p.largest_at_peak
    assert largest is not None
    assert (largest.shape, largest.dtype, largest.bytes) == ((256, 5000), "float32", 256 * 5000 * 4)
    assert largest.op == "dot_general"
    assert largest.source == line_of(nearest, "q @ x.T")
    assert largest.live_at_peak
    assert largest.defined_at <= p.peak_step <= largest.freed_at


def test_the_peak_path_leads_from_an_input_to_what_frees_the_buffer() -> None:
    p = profile(nearest, f32(256, 16), f32(5000, 16))
    buffers = [b for _, b in p.peak_path]
    assert buffers[0] is not None
    assert buffers[0].op == "argument"
    assert p.largest_at_peak in buffers
    assert p.peak_path[-1][0] == p.steps[p.largest_at_peak.freed_at]


def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
    def step(c: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(c @ w + t)
        return h, jnp.sort(h, 0)

    c, ys = jax.lax.scan(step, x, jnp.arange(50.0))
    return ys[::2] + c


def test_a_line_inside_a_loop_is_found() -> None:
    p = profile(scanned, f32(300, 200), f32(200, 200))
    made = {(b.op, b.source) for b in p.buffers if b.bytes >= 300 * 200 * 4}
    assert ("dot_general", line_of(scanned, "c @ w")) in made
    assert ("sort", line_of(scanned, "jnp.sort")) in made
    assert ("scan", line_of(scanned, "jax.lax.scan")) in made
    check_whole(p)


def test_arguments_have_their_names() -> None:
    p = profile(lambda params, x: params["w"] @ x, {"w": f32(64, 64), "unused": f32(32)}, f32(64, 8))
    arguments = {b.name: b for b in p.buffers if b.op == "argument"}
    assert len(arguments) == 3
    assert arguments["x"].shape == (64, 8)
    assert any("unused" in name for name in arguments)
    check_whole(p)


def test_a_rewritten_program_is_profiled_by_its_own_tags() -> None:
    program = trace(nearest, (f32(256, 16), f32(5000, 16)))
    plain = compile_program(program, Build.PLAIN, resolve(None))
    p = profile_compiled(program, plain)
    assert p.build == "plain"
    assert p.peak_bytes == p.plain_peak_bytes == plain.peak_bytes
    assert p.plain_bound_bytes == plain.bound_bytes
    assert "that is what XLA reports for this build" in str(p)


def test_without_a_plain_build_there_are_no_plain_numbers() -> None:
    program = trace(nearest, (f32(256, 16), f32(5000, 16)))
    p = profile_compiled(program, compile_program(program, Build.REFERENCE, resolve(None)))
    assert p.plain_peak_bytes is None
    assert p.plain_bound_bytes is None
    assert "jax.jit" not in str(p)


def printing(x: jax.Array) -> jax.Array:
    jax.debug.print("sum {}", x.sum())
    return x @ x.T


def ordered(x: jax.Array, y: jax.Array) -> jax.Array:
    jax.debug.print("sum {}", x.sum(), ordered=True)
    return x @ x.T + y


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: (), (f32(8, 8),)),
        (lambda: jnp.ones((100, 100)), ()),
        (lambda: (), ()),
        (lambda a, b: a + b, (1.0, 2)),
        (lambda x: x, (f32(0, 4),)),
        (lambda x: x @ x.T, (f32(4, 0),)),
        (lambda x: x.sum(), (f32(0,),)),
        (printing, (f32(64, 64),)),
        (ordered, (f32(64, 64), f32(64))),
        (lambda k: jax.random.normal(k, (200, 100)), (jax.random.key(0),)),
        (lambda k: jax.random.split(k, 5), (jax.random.key(0),)),
        (lambda x: x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16), (f32(64, 64),)),
        (lambda x: jnp.fft.fft(x), (f32(64, 64),)),
        (functools.partial(nearest, x=jnp.ones((100, 16))), (f32(64, 16),)),
    ],
    ids=(
        "no results", "no arguments", "nothing", "scalars", "empty identity", "empty contraction", "empty sum",
        "print", "ordered print", "key", "keys out", "bfloat16", "complex", "partial",
    ),
)  # fmt: skip
def test_any_function(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    p = profile(fn, *args)
    check_whole(p)
    assert str(p).startswith(f"{p.name} on cpu: peak ")


def test_ordered_effects_do_not_shift_the_arguments() -> None:
    p = profile(ordered, f32(64, 64), f32(64))
    assert {b.name: b.shape for b in p.buffers if b.op == "argument"} == {"x": (64, 64), "y": (64,)}


def test_a_key_argument_is_shown_as_a_key() -> None:
    p = profile(lambda k: jax.random.normal(k, (200, 100)), jax.random.key(0))
    (key,) = (b for b in p.buffers if b.kind == "argument")
    assert key.dtype.startswith("key<")
    assert key.bytes == 8


def test_donated_bytes_are_taken_off() -> None:
    p = profile(lambda x, y: (x * 2 + y, y.sum()), f32(300, 200), f32(300, 200), donate_argnums=0)
    assert p.alias_bytes == 300 * 200 * 4
    assert "- donated 234 KiB" in str(p)
    check_whole(p)


def test_static_arguments_and_keywords_pass_through() -> None:
    def power(x: jax.Array, n: int, *, scale: jax.Array) -> jax.Array:
        return x**n * scale

    p = profile(power, f32(100), 3, scale=f32(), static_argnums=1)
    assert {b.name for b in p.buffers if b.op == "argument"} == {"x", "scale"}


def test_float64_keeps_its_width() -> None:
    with jax.enable_x64(True):
        p = profile(lambda x: jnp.sort(x @ x.T), jax.ShapeDtypeStruct((100, 100), jnp.float64))
    assert p.output_bytes == 100 * 100 * 8
    assert any(b.dtype == "float64" for b in p.buffers)


def test_a_clashing_keyword_is_refused() -> None:
    def fn(x: jax.Array, *, target: int) -> jax.Array:
        return x

    with pytest.raises(TypeError, match="'target'"):
        profile(fn, f32(3))
