"""Programs compiled for GPUs that are not here, by XLA's own GPU compiler in a process beside this one."""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import memscope
from benchmarks.workloads import PAPER, Workload, load_case
from memscope.compile import Build, compile_program
from memscope.evaluate import run_program
from memscope.gpu import remote, worker
from memscope.gpu.devices import DEVICES
from memscope.gpu.export import export_for_gpu
from memscope.hlo.liveness import liveness
from memscope.hlo.module import parse_module
from memscope.target import resolve
from memscope.trace import trace


def installed() -> bool:
    try:
        return importlib.metadata.version("jax-cuda13-plugin") == importlib.metadata.version("jaxlib")
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not installed(), reason="XLA's GPU compiler is not installed: pip install 'memscope-jax[gpu]'"
)

A100 = "a100-40gb"
ROOT = Path(__file__).resolve().parent.parent


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def nearest(q: jax.Array, x: jax.Array) -> Any:
    d = jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)
    return jax.lax.top_k(-d, 10)


QUERIES, POINTS = 2_000, 20_000
KNN = f32(QUERIES, 32), f32(POINTS, 32)
HERE = Path(__file__).name
LINE = nearest.__code__.co_firstlineno + 1


class TestProfile:
    profile: memscope.Profile

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def profiled(cls) -> None:
        cls.profile = memscope.profile(nearest, *KNN, target=A100)

    def test_the_peak_is_what_xla_says(self) -> None:
        p = self.profile
        assert p.target == A100
        assert p.argument_bytes == 4 * 32 * (QUERIES + POINTS)
        # The pairs of results, and the table of pointers to the two.
        assert 2 * 4 * 10 * QUERIES <= p.output_bytes <= 2 * 4 * 10 * QUERIES + 64
        assert p.temp_bytes >= 4 * QUERIES * POINTS
        assert p.peak_bytes == p.argument_bytes + p.output_bytes + p.temp_bytes + p.constant_bytes
        assert p.plain_peak_bytes == p.plain_bound_bytes == p.peak_bytes

    def test_live_ranges_come_from_the_schedule(self) -> None:
        p = self.profile
        assert max(p.timeline) == p.timeline[p.peak_step] == p.peak_bytes - p.fragmentation_bytes
        assert p.fragmentation_bytes <= 0.02 * p.peak_bytes
        assert p.peak_path

    def test_buffers_lead_back_to_the_users_lines(self) -> None:
        large = [b for b in self.profile.buffers if b.kind == "temporary" and b.bytes > 1e6]
        assert {b.source for b in large} <= {f"{HERE}:{LINE}", f"{HERE}:{LINE + 1}"}
        assert ("dot_general", f"{HERE}:{LINE}") in {(b.op, b.source) for b in large}
        results = [b for b in self.profile.buffers if b.kind == "output" and b.bytes > 100]
        assert {(b.op, b.source) for b in results} == {("top_k", f"{HERE}:{LINE + 1}")}

    def test_the_text_states_the_capacity(self) -> None:
        text = str(self.profile)
        assert "fits in the 29.6 GiB that a program may use there" in text
        assert "0.75 of its 39.4 GiB: what XLA takes, XLA_PYTHON_CLIENT_MEM_FRACTION" in text
        assert "29.6 GiB" in self.profile.to_html()


def test_tags_of_eqns_survive_the_way_to_the_other_process() -> None:
    program = trace(nearest, KNN, platform="cuda")
    compiled = compile_program(program, Build.PLAIN, resolve(A100))
    names = {i.op_name for i in parse_module(compiled.module).instructions.values()}
    computed = [i for i, eqn in enumerate(program.eqns) if eqn.primitive.name in ("dot_general", "reduce_sum", "neg")]
    assert len(computed) == 4
    assert all(any(f"/e{index}/" in name for name in names) for index in computed)


def test_libraries_are_named_as_not_counted() -> None:
    def solve(a: jax.Array, image: jax.Array, kernel: jax.Array) -> Any:
        return jnp.linalg.cholesky(a), jax.lax.conv(image, kernel, (1, 1), "SAME"), jnp.fft.fft(a)

    p = memscope.profile(solve, f32(64, 64), f32(4, 32, 28, 28), f32(32, 32, 3, 3), target=A100)
    assert {name for name, _ in p.uncounted} >= {"cuDNN", "cuSOLVER", "cuFFT"}
    assert "not counted: workspace that is chosen when it runs, by cuDNN (1 call)" in str(p)
    assert "not counted" in str(memscope.plan(solve, f32(64, 64), f32(4, 32, 28, 28), f32(32, 32, 3, 3), target=A100))


def test_donated_arguments_and_constants() -> None:
    table = np.random.default_rng(0).normal(size=(1000, 700)).astype(np.float32)
    p = memscope.profile(lambda x, y: (x + 1, y @ table), f32(1000, 1000), f32(3, 1000), target=A100, donate_argnums=0)
    assert p.alias_bytes == 4_000_000
    assert p.constant_bytes >= 4 * 1000 * 700


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "complex64", "int8", "bool"])
def test_types(dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        p = memscope.profile(lambda x: jnp.flip(x, 0), jax.ShapeDtypeStruct((100, 3), dtype), target=A100)
    assert p.argument_bytes == 300 * jnp.dtype(dtype).itemsize


def test_no_arguments_and_keys() -> None:
    assert memscope.profile(lambda: jnp.zeros(1000), target=A100).argument_bytes == 0
    drawn = memscope.profile(lambda key: jax.random.normal(key, (1000, 100)), jax.random.key(0), target=A100)
    assert drawn.output_bytes == 400_000


@pytest.mark.parametrize("name", DEVICES)
def test_every_named_gpu_compiles(name: str) -> None:
    p = memscope.profile(lambda x: jnp.tanh(x @ x) @ x, f32(512, 512), target=name)
    assert p.peak_bytes >= 3 * 4 * 512 * 512


CASES = "016 017 018 026 027 029 031 033 045 058 071 092".split()


@pytest.mark.parametrize("workload", [*PAPER, *map(load_case, CASES)], ids=lambda w: w.name)
def test_simulated_placement_agrees_with_xla(workload: Workload) -> None:
    args = jax.eval_shape(lambda: workload.make_args(1.0))
    compiled = compile_program(trace(workload.fn, args, platform="cuda"), Build.PLAIN, resolve(A100))
    live = liveness(parse_module(compiled.module), None, on_gpu=True)
    assert live.heap_bytes == pytest.approx(compiled.temp_bytes, rel=0.02)
    # Where there are no gaps, the bytes that are alive together are all there is.
    most = max(live.temporaries)
    assert most <= 1.001 * compiled.temp_bytes
    assert workload.name in FRAGMENTED or most == pytest.approx(compiled.temp_bytes, rel=0.02)


FRAGMENTED = {"sgpr bound", "sgpr gradient"}


class TestPlan:
    plan: memscope.Plan

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def planned(cls) -> None:
        cls.plan = memscope.plan(nearest, *KNN, limit="40MiB", target=A100)

    def test_it_fits_by_xlas_account(self) -> None:
        assert self.plan.fits
        assert self.plan.peak_bytes <= 40 << 20 < self.plan.original_peak_bytes
        assert self.plan.loops
        assert self.plan.build is Build.PLAIN

    def test_chunks_fill_the_gpu(self) -> None:
        (loop,) = self.plan.loops
        assert 4 * loop.chunk * POINTS >= 8 << 20

    def test_it_can_t_be_called_here(self) -> None:
        args = jnp.ones((QUERIES, 32)), jnp.ones((POINTS, 32))
        sentence = f"nearest was planned for {A100}, which is not here: export it .* or run it there"
        for call in (self.plan.fn, self.plan.check):
            with pytest.raises(memscope.TargetError, match=sentence):
                call(*args)
        with pytest.raises(memscope.TargetError, match=sentence):
            self.plan.compiled.call(*args)

    def test_its_source_runs_anywhere(self) -> None:
        source = self.plan.source()
        assert f"on {A100}" in source
        assert "compiler_options" not in source
        names: dict[str, Any] = {}
        exec(compile(source, "nearest_safe.py", "exec"), names)
        rng = np.random.default_rng(0)
        args = [rng.normal(size=s.shape).astype(np.float32) for s in KNN]
        for got, want in zip(names["nearest_safe"](*args), nearest(*args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

    def test_it_is_exported_for_cuda(self, tmp_path: Path) -> None:
        path = self.plan.save(tmp_path / "nearest.jaxexport")
        assert jax.export.deserialize(bytearray(path.read_bytes())).platforms == ("cuda",)

    def test_a_limit_of_none_is_what_the_gpu_holds(self) -> None:
        plan = memscope.plan(nearest, *KNN, target="t4")
        assert plan.limit_bytes == resolve("t4").capacity_bytes
        assert not plan.changed

    def test_the_frontier(self) -> None:
        points = memscope.frontier(nearest, *KNN, target=A100)
        assert len(points) > 2
        assert [p.peak_bytes for p in points] == sorted(p.peak_bytes for p in points)
        # On a GPU a loop of many short chunks costs launches and leaves most of it idle.
        assert points[0].slowdown > points[1].slowdown >= points[-1].slowdown == 1.0

    def test_a_limit_that_can_t_be_met(self) -> None:
        with pytest.raises(memscope.LimitError, match="argument x: it is an argument") as caught:
            memscope.plan(jnp.square, f32(1000, 1000), limit="5MiB", target=A100)
        assert caught.value.floor_bytes == 8_000_000


@pytest.mark.parametrize("number", ["001", "026", "046"])
def test_a_tenth_of_the_temporaries_is_enough(number: str) -> None:
    """The whole list is `python -m benchmarks.cases --target a100-40gb --no-times`."""
    case = load_case(number)
    args = jax.eval_shape(lambda: case.make_args(1.0))
    before = memscope.profile(case.fn, *args, target=A100)
    limit = before.peak_bytes - round(0.9 * before.temp_bytes)
    plan = memscope.plan(case.fn, *args, limit=limit, target=A100)
    assert plan.fits
    assert plan.peak_bytes <= limit


def test_memsafe_is_refused_at_its_first_call() -> None:
    safe = memscope.memsafe(nearest, limit="40MiB", target=A100)
    with pytest.raises(memscope.TargetError, match="which is not here"):
        safe(jnp.ones((QUERIES, 32)), jnp.ones((POINTS, 32)))
    assert safe.plan(*KNN).fits


def test_what_calls_back_or_calls_kernels_of_its_own() -> None:
    def prints(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x.sum())
        return x

    def calls(x: jax.Array) -> jax.Array:
        return jax.ffi.ffi_call("no_such_kernel", f32(10))(x)

    def pallas(x: jax.Array) -> jax.Array:
        from jax.experimental import pallas as pl

        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] * 2

        return pl.pallas_call(kernel, out_shape=f32(10))(x)

    for fn, said in [(prints, "calls back into Python"), (calls, "no_such_kernel"), (pallas, "Pallas kernel")]:
        with pytest.raises(memscope.TargetError, match=said):
            memscope.profile(fn, f32(10), target=A100)


# What XLA does not compile as it is written.

MANY = f32(1_000_000, 64), f32(10_000_000, 64)  # their distances take 40 TB


def test_a_profile_of_what_xla_refuses_says_what_to_do() -> None:
    with pytest.raises(memscope.TargetError) as caught:
        memscope.profile(nearest, *MANY, target=A100)
    assert "XLA has no kernel for an array this large" in str(caught.value)
    assert str(caught.value).endswith("memscope.plan looks for a version that it compiles.")


@pytest.mark.parametrize("limit", [None, "4GiB", "1%"])
def test_a_plan_goes_on_without_the_original(limit: str | None) -> None:
    lines: list[str] = []
    plan = memscope.plan(nearest, *MANY, limit=limit, target=A100, progress=lines.append)
    assert plan.fits
    assert plan.loops
    assert plan.peak_bytes <= plan.limit_bytes < plan.original_peak_bytes
    assert plan.refused is not None
    assert plan.original_temp_bytes >= 4 * 10**13
    assert "as written it does not compile, and the first two figures are estimates" in plan.explain()
    assert any("going on without it" in line for line in lines)
    assert plan.profile.peak_bytes == plan.peak_bytes
    with pytest.raises(memscope.TargetError, match="looks for a version"):
        _ = plan.request.profile


@pytest.mark.parametrize("best_effort", [False, True])
def test_where_nothing_that_was_found_compiles_the_error_says_so(best_effort: bool) -> None:
    with pytest.raises(memscope.TargetError, match="No other version that it compiles was found"):
        memscope.plan(
            lambda x: jnp.sort((x @ x.T).ravel())[7], f32(4_000_000, 64), target=A100, best_effort=best_effort
        )


def test_targets_side_by_side_tell_that_it_does_not_compile() -> None:
    made = memscope.compare(nearest, *MANY, targets=[A100])
    (row,) = made
    assert not row.compiles
    assert not row.fits
    assert row.fits_rewritten
    assert row.to_dict()["compiles"] is False
    assert "about 36.4 TiB" in str(made)
    assert "does not compile" in str(made)


# The worker.


@pytest.fixture
def own_worker() -> Any:
    made = remote.Worker()
    yield made
    made.stop()


def ask(made: remote.Worker, fn: Callable[..., Any] = lambda x: x + 1) -> remote.Answer:
    program, target = trace(fn, (f32(10),), platform="cuda"), resolve(A100)
    assert target.device is not None
    exported = export_for_gpu(run_program(program), program, target)
    return made.compile("f", A100, target.device, exported, program.donated)


def test_a_crash_is_an_error_and_the_next_compile_a_new_process(own_worker: remote.Worker) -> None:
    ask(own_worker)
    process = own_worker._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # so that the compile is under way when it is killed
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, own_worker)
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(memscope.TargetError, match=r"GPU compiler crashed \(SIGKILL\) while compiling f for a100"):
            asked.result()
    assert ask(own_worker).argument_bytes == 40


def test_an_interrupt_ends_the_compile_alone(own_worker: remote.Worker) -> None:
    ask(own_worker)
    process = own_worker._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # so that it is interrupted while it waits
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask(own_worker)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert process.poll() is not None
    assert ask(own_worker).argument_bytes == 40


def test_a_process_that_died_unused_is_replaced(own_worker: remote.Worker) -> None:
    ask(own_worker)
    assert own_worker._process is not None
    own_worker._process.kill()
    own_worker._process.wait()
    assert ask(own_worker).argument_bytes == 40


def test_a_compile_has_a_time_limit() -> None:
    hasty = remote.Worker(seconds=0.05)
    with pytest.raises(memscope.TargetError, match=r"compiling f for a100-40gb took longer than 0\.05 s and was ended"):
        ask(hasty)
    hasty.stop()


def test_an_error_in_the_worker_is_one_sentence(own_worker: remote.Worker) -> None:
    device = DEVICES[A100]
    with pytest.raises(memscope.TargetError) as caught:
        own_worker.compile("f", A100, device, b"no module", (False,))
    assert str(caught.value).startswith("compiling f for a100-40gb failed: ")
    assert "\n" not in str(caught.value)
    assert ask(own_worker).argument_bytes == 40


def test_threads_may_ask_at_once(own_worker: remote.Worker) -> None:
    def times(n: int) -> remote.Answer:
        return ask(own_worker, lambda x: jnp.ones(n) * x[0])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert [a.output_bytes for a in pool.map(times, range(1, 9))] == [4 * n for n in range(1, 9)]


SCRIPT = """
import os, sys
import jax, jax.numpy as jnp, memscope
from memscope.gpu import remote
p = memscope.profile(lambda x: jnp.tanh(x @ x), jnp.ones((64, 64)), target="a100-40gb")
print(remote.shared()._process.pid, p.peak_bytes, flush=True)
if "fork" in sys.argv:
    if os.fork() == 0:
        assert remote.shared()._process is None
        os._exit(0)
    os.wait()
if "die" in sys.argv:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["end", "die", "fork"])
def test_it_ends_with_its_parent_and_nothing_is_printed(how: str, tmp_path: Path) -> None:
    # As in a kernel that chose no platform, on a machine whose CUDA toolkit, if any, is on no path.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "CUDA_"))} | {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, how], env=env, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stderr == ""
    pid, peak = map(int, done.stdout.split())
    assert peak > 4 * 64 * 64
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}/cmdline").exists() or worker.__name__ not in Path(f"/proc/{pid}/cmdline").read_text()


def test_another_version_of_the_plugin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "jax_cuda13_plugin-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jax-cuda13-plugin\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(memscope.TargetError, match=r"does not belong to this JAX: .*jax-cuda13-plugin is 0\.0\.1"):
        memscope.profile(jnp.sin, f32(3), target=A100)


def test_without_the_extra_an_error_says_how_to_install_it(tmp_path: Path) -> None:
    """In an environment that has all of this one's packages but the plugin."""
    packages = Path(jax.__file__).parent.parent
    for entry in packages.iterdir():
        if not entry.name.startswith(("jax_cuda", "jax_plugins", "__editable__", "_memscope", "memscope")):
            (tmp_path / entry.name).symlink_to(entry)
    code = "import memscope, jax.numpy as jnp\nmemscope.profile(jnp.sin, jnp.ones(3), target='a100-40gb')"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True)
    assert "XLA's GPU compiler, which is not installed: pip install 'memscope-jax[gpu]' (130 MB" in done.stderr
