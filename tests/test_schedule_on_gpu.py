"""Orders for a GPU that is not here: confirmed by XLA's GPU compiler, kept by barriers, never worse than its own."""

from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import memscope
from benchmarks import networks
from memscope.cli import main
from memscope.compile import Build, compile_program
from memscope.hlo.module import parse_module
from memscope.schedule import on_gpu
from memscope.schedule.pack import WORTH
from memscope.target import Target, resolve
from memscope.trace import trace

A100 = "a100-40gb"
GPU = importlib.util.find_spec("jax_cuda13_plugin") is not None
needs_gpu_compiler = pytest.mark.skipif(not GPU, reason="XLA's GPU compiler is not installed (extra gpu)")

N = 1024
LARGE = 4 * N * N


def branches(x: jax.Array, w: jax.Array) -> jax.Array:
    """Eight branches that each hold a large array; XLA's GPU compiler holds all of them at once."""
    return sum((jnp.sum(jnp.tanh(x @ w[i])) for i in range(8)), jnp.zeros(()))


BRANCHES = branches, (jax.ShapeDtypeStruct((N, N), "float32"), jax.ShapeDtypeStruct((8, N, N), "float32"))
Call = tuple[Callable[..., Any], tuple[Any, ...]]


def call_of(program: networks.Program) -> Call:
    return program.fn, jax.eval_shape(program.make_args)


PROGRAMS: dict[str, Callable[[], Call]] = {
    "branches": lambda: BRANCHES,
    "inception": lambda: call_of(networks.inference("", networks.inception(8, 16, 48, 3))),
    "random-wired net": lambda: call_of(networks.gradient("", networks.random_wired(8, 8, 16, 16))),
    "recurrent net": lambda: call_of(networks.gradient("", networks.recurrent(64, 4, 32))),
}
NAMES = sorted(PROGRAMS)


@functools.cache
def scheduled(name: str) -> memscope.Schedule:
    fn, args = PROGRAMS[name]()
    return memscope.schedule(fn, *args, target=A100, seconds=10)


def test_other_accelerators_take_no_order() -> None:
    with pytest.raises(memscope.TargetError, match="on CPUs and GPUs, not on tpu"):
        memscope.schedule(*BRANCHES[:1], *BRANCHES[1], target=Target("tpu", "tpu", 1 << 34))


@needs_gpu_compiler
@pytest.mark.parametrize("name", NAMES)
def test_never_worse_and_confirmed(name: str) -> None:
    fn, args = PROGRAMS[name]()
    found = scheduled(name)
    profile = memscope.profile(fn, *args, target=A100)
    assert found.default_peak_bytes == profile.peak_bytes
    lowest = min(each.compiled.peak_bytes for each in found.found.confirmed)
    assert found.peak_bytes == (lowest if found.changed else found.default_peak_bytes) <= found.default_peak_bytes
    assert found.peak_bytes - lowest <= WORTH * found.default_temp_bytes
    assert found.peak_bytes == found.profile.peak_bytes
    assert set(found.profile.steps) <= set(found.order)


@needs_gpu_compiler
def test_sixteen_large_buffers_become_two() -> None:
    found = scheduled("branches")
    assert found.default_temp_bytes >= 16 * LARGE
    assert found.temp_bytes <= 2.01 * LARGE


@needs_gpu_compiler
def test_an_order_of_the_instructions_cuts_what_xla_holds() -> None:
    found = scheduled("inception")
    assert found.temp_bytes <= 0.92 * found.default_temp_bytes
    assert found.traffic == pytest.approx(1, abs=0.05)


@needs_gpu_compiler
@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_what_has_to_be_there(name: str) -> None:
    found = scheduled(name)
    compiled = found.compiled
    assert found.lower_bound_bytes == found.peak_bytes - compiled.temp_bytes
    assert found.lower_bound_bytes >= compiled.argument_bytes + compiled.output_bytes - compiled.alias_bytes
    assert not found.optimal
    assert 0 < found.gap < 1


@needs_gpu_compiler
def test_the_order_can_be_taken_along_and_not_called_here() -> None:
    fn, args = PROGRAMS["branches"]()
    found = scheduled("branches")
    here = [jnp.full(s.shape, 0.01) for s in args]
    with pytest.raises(memscope.TargetError, match=r"branches was planned for a100-40gb.*: export it \(jax\.export\)"):
        found.fn(*here)
    exported = jax.export.export(jax.jit(found.fn), platforms=["cuda"])(*args)
    assert "optimization_barrier" in exported.mlir_module()
    np.testing.assert_allclose(jax.jit(found.fn)(*here), fn(*here), rtol=1e-4)
    program = trace(found.fn, args, platform="cuda")
    assert compile_program(program, Build.PLAIN, resolve(A100)).peak_bytes == found.peak_bytes


@needs_gpu_compiler
def test_the_report_says_what_is_known() -> None:
    found = scheduled("branches")
    text = str(found)
    assert "XLA's default" in text
    assert "barriers keep the order: its instructions read and write" in text
    assert "how much less an order could need is not known" in text
    assert "branches" in found.to_html()
    assert found.placement.xla_bytes == found.temp_bytes
    assert found.placement.live_bytes <= found.placement.best_bytes <= found.temp_bytes


@needs_gpu_compiler
def test_buffers_lead_back_to_the_users_lines() -> None:
    line = branches.__code__.co_firstlineno + 2
    large = [b for b in scheduled("branches").profile.buffers if b.kind == "temporary" and b.bytes >= LARGE]
    assert large
    assert {b.source for b in large} == {f"{pathlib.Path(__file__).name}:{line}"}


@needs_gpu_compiler
def test_donated_state_stays_donated() -> None:
    program = networks.adam("", networks.mlp(64, 64, 3))
    found = memscope.schedule(program.fn, *jax.eval_shape(program.make_args), donate_argnums=0, target=A100)
    assert len(found.found.confirmed) > 1
    assert found.compiled.alias_bytes >= found.found.default.compiled.alias_bytes > 0
    assert found.peak_bytes <= found.default_peak_bytes


@needs_gpu_compiler
@pytest.mark.parametrize(
    ("fn", "args"), [(lambda x: x, (np.ones(3),)), (lambda: jnp.float32(1), ()), (lambda x: (), (np.ones(3),))]
)
def test_programs_with_little_to_order(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    found = memscope.schedule(fn, *args, target=A100)
    assert not found.changed
    assert found.gap >= 0
    assert str(found)


@needs_gpu_compiler
def test_time_is_kept_and_none_means_xlas_own() -> None:
    fn, args = PROGRAMS["inception"]()
    found = memscope.schedule(fn, *args, target=A100, seconds=0)
    assert len(found.found.confirmed) == 1
    assert not found.changed
    lines: list[str] = []
    memscope.schedule(fn, *args, target=A100, seconds=1, progress=lines.append)
    assert "in XLA's own order" in lines[0]


@needs_gpu_compiler
def test_an_order_that_xla_refuses_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: Any, build: Build, target: Target) -> Any:
        if any(eqn.primitive.name == "optimization_barrier" for eqn in program.eqns):
            raise memscope.TargetError("injected")
        return compile_program(program, build, target)

    monkeypatch.setattr(on_gpu, "compile_program", refuse)
    lines: list[str] = []
    found = memscope.schedule(BRANCHES[0], *BRANCHES[1], target=A100, progress=lines.append)
    assert not found.changed
    assert any("can't be compiled in that order: injected" in line for line in lines)


@needs_gpu_compiler
def test_the_command_takes_a_target(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "import jax.numpy as jnp\ndef total(x, w):\n    return sum(jnp.sum(jnp.tanh(x @ v)) for v in w)\n"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wide.py").write_text(source)
    argv = ["schedule", "wide.py:total", "--shapes", "f32[512,512] f32[4,512,512]", "--target", A100, "--json"]
    assert main(argv) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["target"] == A100
    assert told["peak_bytes"] < told["default_peak_bytes"]


@needs_gpu_compiler
def test_traffic_counts_operands_and_results() -> None:
    from memscope.hlo.traffic import moved_bytes

    module = parse_module(scheduled("branches").found.default.compiled.module)
    assert moved_bytes(module) > 8 * 3 * LARGE  # each product reads two arrays and writes one
