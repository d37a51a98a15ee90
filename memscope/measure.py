"""Memory and time of a function of flat arguments, measured in a fresh process.

A fresh process, because freed pages are reused: a peak is visible only the first time. The function travels
by `jax.export`, its arguments and results by files, so that values can be compared without a second run.

    job = export_job("mine", run, avals, options=build.options, x64=program.x64)
    (measured,) = measure([job], leaves)
    measured.growth_bytes, measured.seconds, measured.outputs
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import gc
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from .compile import Build

Outputs = list[np.ndarray[Any, Any]]

_ROOT = str(Path(__file__).resolve().parent.parent)
_MANIFEST, _ANSWER, _STAGE = "job.json", "answer.json", "stage.txt"


class MeasureError(RuntimeError):
    """The measurement failed.

    Attributes:
      exit_status: of the measuring process; negative is a signal, None where it never ended by itself.
      stage: what it was doing, e.g. "running <name of the job>".
    """

    def __init__(self, message: str, exit_status: int | None = None, stage: str = "") -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.stage = stage


class UnportableError(MeasureError):
    """The function can't be sent to another process: callbacks, other effects, or several devices."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A function of flat arguments, ready to travel.

    Attributes:
      name: what error messages call it.
      exported: a serialized `jax.export.Exported`.
      options: compiler options of the build that is measured.
      donated: which of the flat arguments it may overwrite.
    """

    name: str
    exported: bytes
    options: Mapping[str, str]
    donated: tuple[bool, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """What one job did.

    Attributes:
      growth_bytes: the peak beyond what was held with the arguments in place: temporaries, results and whatever XLA
        does not count; of the process, or of the GPU by its own count. None where that can't be told: the system
        has no /proc to ask, or the GPU's count has been higher before.
      account_bytes: XLA's own figure for the same: outputs + temporaries - aliased. None where nothing was
        compiled for it.
      seconds: median of the runs after the first, or the first where it was the only one.
      outputs: results of the first run as NumPy arrays, read-only; PRNG keys as their key data.
    """

    growth_bytes: int | None
    account_bytes: int | None
    seconds: float
    outputs: Outputs


def export_job(
    name: str,
    run: Callable[..., Any],
    avals: Sequence[Any],
    *,
    options: Mapping[str, str] | None = None,
    x64: bool = False,
    donated: Sequence[bool] = (),
    platform: str = "cpu",
) -> Job:
    """Packs `run`, a function of flat arguments of these avals.

    Args:
      avals: anything with shape and dtype (and weak_type), one for each argument.
      x64: whether `run` is traced with 64-bit types.

    Raises:
      UnportableError: `run` has side effects or callbacks, spans several devices, or uses a type or an
        operation that `jax.export` does not carry.
    """
    donated = tuple(donated) or (False,) * len(avals)
    with jax.enable_x64(x64):
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=bool(getattr(a, "weak_type", False))) for a in avals]
        jitted = jax.jit(lambda *args: jax.tree.leaves(run(*args)), keep_unused=True)
        try:
            exported = jax.export.export(jitted, platforms=[platform])(*shapes)
            packed = bytes(exported.serialize())
        except ImportError:
            raise
        except Exception as error:
            raise UnportableError(f"{name} can't be run in a process of its own: {obstacle(error)}.") from error
    if exported.nr_devices != 1:
        raise UnportableError(
            f"{name} spans {exported.nr_devices} devices: it can't be run in a process of its own, which has one."
        )
    return Job(name, packed, dict(options or {}), donated)


def measure(
    jobs: Sequence[Job],
    args_flat: Sequence[Any],
    *,
    budget_seconds: float = 3.0,
    timeout: float = 600.0,
    platform: str = "cpu",
) -> tuple[Measurement, ...]:
    """Runs the jobs in one fresh process: each once for its peak and results, then all interleaved for time.

    Args:
      jobs: functions of the same flat arguments; the first is the first to run.
      args_flat: arrays, NumPy arrays or scalars of exactly the shapes and dtypes that the jobs take.
      budget_seconds: how long to time, the count of runs adapted to it; 0 takes the first run's time.
      timeout: seconds until the process is ended, start and compilation included.

    Raises:
      MeasureError: the process was killed, failed, or took longer than `timeout`.
    """
    with tempfile.TemporaryDirectory(prefix="memscope-") as name:
        folder = Path(name)
        _write_jobs(folder, jobs, args_flat, budget_seconds)
        _run_child(folder, timeout, platform)
        answers = json.loads((folder / _ANSWER).read_text())["jobs"]
        return tuple(
            Measurement(
                answer["growth_bytes"],
                answer["account_bytes"],
                answer["seconds"],
                [_read_array(folder, entry) for entry in answer["outputs"]],
            )
            for answer in answers
        )


def measure_here(
    runs: Sequence[Callable[..., Any]], args_flat: Sequence[Any], *, budget_seconds: float = 3.0
) -> tuple[Measurement, ...]:
    """As `measure`, in this process and so on the CPU without peaks: for what can't travel.

    Args:
      runs: functions of the flat arguments, jitted by the caller.
    """
    calls = [functools.partial(run, *args_flat) for run in runs]
    results, firsts, growths = [], [], []
    for call in calls:
        outs, seconds, growth = _watched_on_device(call) if _on_device() else (*_timed(call), None)
        results.append([_as_numpy(out)[0] for out in outs])
        firsts.append(seconds)
        growths.append(growth)
    times = _interleave([functools.partial(_seconds, call) for call in calls], firsts, budget_seconds)
    return tuple(Measurement(g, None, t, outs) for g, t, outs in zip(growths, times, results, strict=True))


def available_bytes() -> int | None:
    """Memory that a new process could take without swapping, or None where the system does not say."""
    try:
        free = _proc_bytes("/proc/meminfo", "MemAvailable")
    except OSError:
        return None
    with contextlib.suppress(OSError, ValueError):
        # In a container the group's limit binds, not the machine's. "max" (no limit) is the ValueError.
        cap = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        cached = Path("/sys/fs/cgroup/memory.stat").read_text().split("inactive_file ")[1].split()[0]
        free = min(free, cap - used + int(cached))
    return max(0, free)


# The parent's side.


def _write_jobs(folder: Path, jobs: Sequence[Job], args_flat: Sequence[Any], budget_seconds: float) -> None:
    for i, job in enumerate(jobs):
        (folder / f"job{i}.jaxexport").write_bytes(job.exported)
    manifest = {
        "jobs": [{"name": job.name, "options": dict(job.options), "donated": job.donated} for job in jobs],
        "args": [_write_array(folder, f"arg{i}", arg) for i, arg in enumerate(args_flat)],
        "budget_seconds": budget_seconds,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest))


def _run_child(folder: Path, timeout: float, platform: str) -> None:
    # -P: a jax.py in the current folder must not shadow JAX. The warning is runpy's own, where `import memscope`
    # has already loaded this module.
    command = [sys.executable, "-P", "-W", "ignore::RuntimeWarning:runpy", "-m", "memscope.measure", str(folder)]
    with open(folder / "output.txt", "wb") as output:
        try:
            done = subprocess.run(
                command,
                env=_child_environment(platform),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            stage = _stage(folder)
            raise MeasureError(
                f"the measuring process was ended after {timeout:g} s while {stage}: give it a longer timeout, or "
                "smaller arguments.",
                stage=stage,
            ) from None
    stage = _stage(folder)
    if done.returncode != 0 or not (folder / _ANSWER).exists():
        raise MeasureError(_failure(folder, done.returncode), done.returncode, stage)
    error = json.loads((folder / _ANSWER).read_text()).get("error")
    if error is not None:
        raise MeasureError(f"the measuring process failed while {stage}: {error}", done.returncode, stage)


def _child_environment(platform: str) -> dict[str, str]:
    """This process's environment without JAX's settings.

    What they did to the function is in the exported module already; a compilation cache, `JAX_LOG_COMPILES` and
    the like would only disturb. `XLA_FLAGS` stays: the build that was accounted for was made under it.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "MALLOC_"))}
    env["JAX_PLATFORMS"] = platform
    if platform != "cpu":
        # Beside a process that may hold most of the device: no more than is needed, when it is needed.
        env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _ROOT]))
    return env


def _failure(folder: Path, status: int) -> str:
    stage = _stage(folder)
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        likely = ", most likely for want of memory" if -status == signal.SIGKILL else ""
        return f"the measuring process was killed by {name} (exit status {status}) while {stage}{likely}."
    lines = (folder / "output.txt").read_text(errors="replace").strip().splitlines()
    last = f": {lines[-1]}" if lines else "."
    return f"the measuring process ended with exit status {status} while {stage}{last}"


def _stage(folder: Path) -> str:
    try:
        return (folder / _STAGE).read_text()
    except OSError:
        return "starting"


def obstacle(error: Exception) -> str:
    """Why `jax.export` did not carry a function, in a few words."""
    if "callback" in str(error):
        return "it calls back into Python, as debug.print and pure_callback do"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


# Arrays in files: raw bytes beside a JSON entry, since .npy knows neither bfloat16 nor PRNG keys.


def _as_numpy(value: Any) -> tuple[np.ndarray[Any, Any], str | None]:
    """The value as NumPy array, and the PRNG implementation where it is a key."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(value)), str(jax.random.key_impl(value))
    return np.asarray(value), None


def _write_array(folder: Path, name: str, value: Any) -> dict[str, Any]:
    array, key_impl = _as_numpy(value)
    array.reshape(-1).view(np.uint8).tofile(folder / name)
    return {"file": name, "shape": array.shape, "dtype": array.dtype.name, "key_impl": key_impl}


def _read_array(folder: Path, entry: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The array, mapped from its file: the file may be deleted while it is in use."""
    dtype, shape = jnp.dtype(entry["dtype"]), tuple(entry["shape"])
    if math.prod(shape) * dtype.itemsize < 1 << 20 or sys.platform == "win32":
        array = np.fromfile(folder / entry["file"], np.uint8).view(dtype).reshape(shape)
        array.flags.writeable = False
        return array
    return np.memmap(folder / entry["file"], np.uint8, "r").view(np.ndarray).view(dtype).reshape(shape)


# The child's side.


def main(folder: Path) -> None:
    """Runs the jobs of a folder and leaves the answer there: `python -m memscope.measure DIR`."""
    with contextlib.suppress(OSError):
        # Where memory runs out, this process is to go, not the notebook that asked.
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Exported modules carry their dtypes; without this JAX would cut 64-bit arguments to 32.
    jax.config.update("jax_enable_x64", True)
    manifest = json.loads((folder / _MANIFEST).read_text())
    try:
        answer: dict[str, Any] = {"jobs": _run_jobs(folder, manifest)}
    except Exception as error:
        answer = {"error": _first_line(error)}
    (folder / _ANSWER).write_text(json.dumps(answer))


def _run_jobs(folder: Path, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    jobs = manifest["jobs"]
    with _steady_malloc():
        _warm_libraries()
    executables = []
    for i, job in enumerate(jobs):
        _tell(folder, f"compiling {job['name']}")
        executables.append(_compile(folder / f"job{i}.jaxexport", job))
    _tell(folder, "placing the arguments")
    inputs = _Inputs(folder, manifest["args"], [job["donated"] for job in jobs])
    firsts, answers = [], []
    for i, (job, executable) in enumerate(zip(jobs, executables, strict=True)):
        _tell(folder, f"running {job['name']}")
        args = inputs.fresh()
        with _steady_malloc():
            outs, seconds, growth = _watched(functools.partial(executable, *args))
        _tell(folder, f"writing the results of {job['name']}")
        outputs = [_write_array(folder, f"out{i}_{j}", out) for j, out in enumerate(outs)]
        answers.append({"growth_bytes": growth, "account_bytes": _account(executable), "outputs": outputs})
        firsts.append(seconds)
        del args, outs
    _tell(folder, "timing")

    # Arguments are made anew for each run outside its time: a donated one is gone after it.
    def timed_run(executable: Callable[..., Any]) -> float:
        return _seconds(functools.partial(executable, *inputs.fresh()))

    runs = [functools.partial(timed_run, executable) for executable in executables]
    times = _interleave(runs, firsts, manifest["budget_seconds"])
    return [{**answer, "seconds": t} for answer, t in zip(answers, times, strict=True)]


class _Inputs:
    """The arguments on the device, placed once; those that a job overwrites are placed again for each run."""

    def __init__(self, folder: Path, entries: list[dict[str, Any]], donated: list[list[bool]]) -> None:
        self._folder = folder
        self._entries = entries
        lost = [any(given) for given in zip(*donated, strict=True)]
        self._kept = {i: self._place(e) for i, (e, gone) in enumerate(zip(entries, lost, strict=True)) if not gone}

    def fresh(self) -> list[jax.Array]:
        return [self._kept[i] if i in self._kept else self._place(e) for i, e in enumerate(self._entries)]

    def _place(self, entry: dict[str, Any]) -> jax.Array:
        # A copy: JAX would alias a NumPy array in place, whose pages may not be resident, and never overwrite it.
        array = jnp.array(_read_array(self._folder, entry), copy=True)
        if entry["key_impl"] is not None:
            array = jax.random.wrap_key_data(array, impl=entry["key_impl"])
        return jax.block_until_ready(array)


def _compile(path: Path, job: dict[str, Any]) -> Any:
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    donate = tuple(i for i, given in enumerate(job["donated"]) if given)
    jitted = jax.jit(exported.call, donate_argnums=donate, keep_unused=True, compiler_options=job["options"])
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals]
    return jitted.trace(*shapes).lower().compile()


def _warm_libraries() -> None:
    """Lets Eigen and LAPACK take what they take once in a process: 9 and 26 MB that are not the function's."""

    def products(x: jax.Array) -> jax.Array:
        lower = jnp.linalg.cholesky(x @ x.T + jnp.eye(128, dtype=x.dtype))
        return jax.scipy.linalg.solve_triangular(lower, x, lower=True)

    # By the build without fusions: with them the product is not Eigen's.
    for options in (Build.PLAIN.options,) if _on_device() else (Build.REFERENCE.options, Build.PLAIN.options):
        jax.block_until_ready(jax.jit(products, compiler_options=options)(jnp.ones((128, 1 << 16), jnp.float32)))


def _account(executable: Any) -> int | None:
    stats = executable.memory_analysis()
    if stats is None:
        return None
    return int(stats.output_size_in_bytes + stats.temp_size_in_bytes - stats.alias_size_in_bytes)


def _tell(folder: Path, stage: str) -> None:
    (folder / _STAGE).write_text(stage)


def _watched(run: Callable[[], Any]) -> tuple[list[Any], float, int | None]:
    """Result, seconds, and how far the memory in use rose above where it stood before."""
    gc.collect()
    if _on_device():
        return _watched_on_device(run)
    try:
        _libc().malloc_trim(0)  # pages freed by the compiler but kept by malloc would be reused unseen
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is resident now
        before = _proc_bytes("/proc/self/status", "VmHWM")
    except (OSError, AttributeError):
        return (*_timed(run), None)
    outs, seconds = _timed(run)
    return outs, seconds, _proc_bytes("/proc/self/status", "VmHWM") - before


def _on_device() -> bool:
    return jax.default_backend() != "cpu"


def _watched_on_device(run: Callable[[], Any]) -> tuple[list[Any], float, int | None]:
    device = jax.local_devices()[0]
    before = device.memory_stats() or {}
    outs, seconds = _timed(run)
    return outs, seconds, device_growth(before, device.memory_stats() or {})


def device_growth(before: Mapping[str, int], after: Mapping[str, int]) -> int | None:
    """How far a device's bytes in use rose in between, by its `memory_stats()`.

    The peak that it counts never falls: where it stayed, an earlier one was as high, and this one is not known.
    """
    if not {"bytes_in_use", "peak_bytes_in_use"} <= before.keys() & after.keys():
        return None
    if after["peak_bytes_in_use"] <= before["peak_bytes_in_use"]:
        return None
    return after["peak_bytes_in_use"] - before["bytes_in_use"]


def _timed(run: Callable[[], Any]) -> tuple[list[Any], float]:
    start = time.perf_counter()
    outs = jax.block_until_ready(run())
    return jax.tree.leaves(outs), time.perf_counter() - start


def _seconds(run: Callable[[], Any]) -> float:
    return _timed(run)[1]


def _interleave(runs: Sequence[Callable[[], float]], firsts: Sequence[float], budget: float) -> list[float]:
    """Medians of the runs' seconds, taken in turn so that a busy machine slows all alike."""
    if budget <= 0 or not runs:
        return list(firsts)
    once = sum(firsts)
    rounds = 1 if once > 10 else max(3, min(25, int(budget / max(once, 1e-6))))
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(rounds):
        for i in range(len(runs)) if turn % 2 == 0 else reversed(range(len(runs))):
            _await_release()
            times[i].append(runs[i]())
    return [statistics.median(t) for t in times]


def _await_release(step: float = 0.005, patience: float = 1.0) -> None:
    """Lets XLA give temporaries back, which it does after it reports the results: no part of the next run's time."""
    until = time.perf_counter() + patience
    with contextlib.suppress(OSError):
        before, now = math.inf, _proc_bytes("/proc/self/status", "VmRSS")
        while now < before and time.perf_counter() < until:
            time.sleep(step)
            before, now = now, _proc_bytes("/proc/self/status", "VmRSS")


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


@contextlib.contextmanager
def _steady_malloc() -> Iterator[None]:
    """Makes glibc return what is freed, so that a second peak shows too; for time, as in a process at work."""
    _mallopt(64 << 10, 0)
    try:
        yield
    finally:
        # Where glibc's own threshold ends up after large blocks were freed: small chunks are kept, not faulted in anew.
        _mallopt(32 << 20, 64 << 20)


def _mallopt(mmap_threshold: int, trim_threshold: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        _libc().mallopt(_M_MMAP_THRESHOLD, mmap_threshold)
        _libc().mallopt(_M_TRIM_THRESHOLD, trim_threshold)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _proc_bytes(path: str, key: str) -> int:
    """A field given in kB, as in "VmHWM:   1234 kB"."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no {key}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
