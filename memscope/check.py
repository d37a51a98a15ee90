"""Is the rewritten function still right, and does it keep to its limit? Both functions are run to find out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from .arguments import flat_arguments
from .compile import Build
from .measure import (
    Job,
    MeasureError,
    Measurement,
    UnportableError,
    available_bytes,
    export_job,
    measure,
    measure_here,
)
from .program import Program, aval_bytes
from .sizes import format_bytes
from .target import Target

# Largest error accepted, as a fraction of the result's largest magnitude. A sum taken in chunks rounds differently.
TOLERANCE = {"float64": 1e-6, "float32": 2e-3, "float16": 1e-2, "bfloat16": 3e-2}

ORIGINAL, REWRITTEN = "the original function", "the rewritten function"

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Check:
    """The rewritten function against the original.

    Attributes:
      ok: nothing that was checked is wrong, and something was checked.
      max_abs_err: largest error of any float in any result; None where no values were compared.
      max_rel_err: the same, each result's error divided by its largest magnitude.
      measured_peak_bytes: arguments + measured growth of the process, or of the GPU by its `memory_stats()`, to be
        compared with the plan's `peak_bytes`; None where it could not be measured.
      seconds, original_seconds: medians of runs taken in turn in one process, the original by plain
        `jax.jit`; None where the function did not run on the arguments given.
      how: one sentence: what was compared, on what, and what was not.
    """

    ok: bool
    max_abs_err: float | None
    max_rel_err: float | None
    measured_peak_bytes: int | None
    seconds: float | None
    original_seconds: float | None
    how: str

    def __str__(self) -> str:
        from .lines import check_line

        return check_line(self) if self.ok else f"not ok: {self.how}"


class Checkable(Protocol):
    """What a plan tells of itself."""

    @property
    def program(self) -> Program: ...

    @property
    def rewritten(self) -> jex_core.ClosedJaxpr:
        """The rewritten program, of the same flat arguments and results."""

    @property
    def build(self) -> Build:
        """The build that the rewritten program was accounted under."""

    @property
    def executable(self) -> Callable[..., Any] | None:
        """What runs, where that can't be made again from `rewritten`."""

    @property
    def original(self) -> Callable[..., Any]:
        """The user's function, of the arguments that are not static."""

    @property
    def original_peak_bytes(self) -> int: ...

    @property
    def peak_bytes(self) -> int: ...

    @property
    def limit_bytes(self) -> int | None: ...

    @property
    def target(self) -> Target: ...

    def for_arguments(self, *args: Any, **kwargs: Any) -> Checkable:
        """A plan of the same kind for arguments of other shapes."""


def check_plan(
    plan: Checkable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    reduced: Sequence[Any] | None = None,
    *,
    budget_seconds: float = 3.0,
    timeout: float = 600.0,
) -> Check:
    """Runs the rewritten function, and the original where it fits, and compares them.

    Args:
      args, kwargs: arguments of the plan's shapes, without static ones. None at all, where `reduced` is given,
        leaves the peak and the time unmeasured.
      reduced: positional arguments of smaller shapes to compare values on, `kwargs` being kept: for an original
        that does not fit.
      budget_seconds: how long to time.
      timeout: seconds for each process that measures.

    Raises:
      TypeError: the arguments are not those the plan was made for.
      TargetError: the plan is for a device that is not here.
      MeasureError: the rewritten function could not be run.
    """
    kwargs = dict(kwargs or {})
    if not plan.target.is_here:
        raise plan.target.absent(plan.program.name)
    if reduced is None:
        return _check_full(plan, args, kwargs, budget_seconds, timeout)
    return _check_reduced(plan, args, kwargs, reduced, budget_seconds, timeout)


def original_fits(plan: Checkable) -> bool:
    """Whether there is room on this machine to run the function as written."""
    return _no_room(plan.original_peak_bytes, plan.target) is None


# What is run, and where.


@dataclasses.dataclass(frozen=True, eq=False)
class _Runs:
    """The functions' measurements; `original` is None where it did not run, and `missing` says why.

    `why_here` is why they ran in this process; None where they had a fresh one.
    """

    rewritten: Measurement
    original: Measurement | None
    missing: str | None
    why_here: str | None


def _check_full(
    plan: Checkable, args: Sequence[Any], kwargs: dict[str, Any], budget_seconds: float, timeout: float
) -> Check:
    leaves = flat_arguments(plan.program, args, kwargs)
    _require_room(plan)
    missing = _no_room(plan.original_peak_bytes, plan.target)
    jobs = _Jobs(plan, leaves, None if missing else _original(plan, args, kwargs))
    runs = jobs.run(budget_seconds, timeout)
    missing = missing or runs.missing
    if runs.original is None:
        how = f"ran {_place(runs, alone=True)}; values were not compared: {missing} (give smaller ones as reduced=)"
        return _verdict(plan, runs, None, how)
    count = len(runs.original.outputs)
    how = f"compared {_results(count)} with the original's on the given arguments, {_place(runs)}"
    return _verdict(plan, runs, _compare_all(plan.program, runs), how)


def _check_reduced(
    plan: Checkable,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    reduced: Sequence[Any],
    budget_seconds: float,
    timeout: float,
) -> Check:
    full_leaves = flat_arguments(plan.program, args, kwargs) if args else None
    if full_leaves is not None:
        _require_room(plan)
    small = plan.for_arguments(*reduced, **kwargs)
    missing = _no_room(small.original_peak_bytes, small.target)
    if missing:
        raise MeasureError(f"the reduced arguments are still too large: {missing}.")
    leaves = flat_arguments(small.program, reduced, kwargs)
    runs = _Jobs(small, leaves, _original(small, reduced, kwargs)).run(0.0, timeout)
    if runs.original is None:
        raise MeasureError(f"the original can't be run on the reduced arguments: {runs.missing}.")
    difference = _compare_all(small.program, runs)
    how = f"compared {_results(len(runs.original.outputs))} with the original's on reduced arguments only"
    if full_leaves is None:
        return _verdict(small, None, difference, f"{how}; peak and time were not measured, for want of full ones")
    full = _Jobs(plan, full_leaves, None).run(budget_seconds, timeout)
    return _verdict(plan, full, difference, f"{how}; on the full ones ran {_place(full, alone=True)}")


def _place(runs: _Runs, alone: bool = False) -> str:
    if runs.why_here is None:
        return "the rewritten function alone in a fresh process" if alone else "both run in turn in a fresh process"
    if runs.rewritten.growth_bytes is not None:
        return ("the rewritten function alone here" if alone else "both run here") + f", {runs.why_here}"
    return (
        "the rewritten function alone in this process, which hides the peak" if alone else "both run here, peak unknown"
    ) + f", {runs.why_here}"


def _results(count: int) -> str:
    return "the result" if count == 1 else f"all {count} results"


class _Jobs:
    """The rewritten function, and the original where given, as functions of the same flat arguments."""

    def __init__(self, plan: Checkable, leaves: list[Any], original: Callable[..., Any] | None) -> None:
        self._program = plan.program
        self._platform = plan.target.platform
        self._leaves = leaves
        self._executable = plan.executable
        # The rewritten function comes first: its peak is the one that matters, and the least can go wrong before it.
        self._sides = [(REWRITTEN, jex_core.jaxpr_as_fun(plan.rewritten), plan.build.options)]
        if original is not None:
            self._sides.append((ORIGINAL, original, Build.PLAIN.options))

    def run(self, budget_seconds: float, timeout: float) -> _Runs:
        if self._executable is not None:
            return self._run_here("since an order of instructions can't travel")
        try:
            jobs = [self._job(*side) for side in self._sides]
        except UnportableError:
            return self._run_here("since it can't travel")
        options: dict[str, Any] = {"budget_seconds": budget_seconds, "timeout": timeout, "platform": self._platform}
        try:
            return self._runs(measure(jobs, self._leaves, **options))
        except MeasureError as error:
            if ORIGINAL not in error.stage:
                if self._platform == "cpu":
                    raise
                return self._run_here("since this process holds the device")
            missing = str(error).rstrip(".")
        return self._runs(measure(jobs[:1], self._leaves, **options), missing)

    def _job(self, name: str, run: Callable[..., Any], options: Mapping[str, str]) -> Job:
        program = self._program
        avals = [v.aval for v in program.jaxpr.invars]
        return export_job(
            name, run, avals, options=options, x64=program.x64, donated=program.donated, platform=self._platform
        )

    def _run_here(self, why: str) -> _Runs:
        """For callbacks, several devices, and a device that has no room for a second process.

        Nothing is donated, since the arguments are the caller's, and each function runs once, since its side effects
        are seen.
        """
        with jax.enable_x64(self._program.x64):
            runs: list[Callable[..., Any]] = [
                jax.jit(run, compiler_options=dict(options)) for _, run, options in self._sides
            ]
            if self._executable is not None:
                runs[0] = self._keeping_arguments(self._executable)
            return self._runs(measure_here(runs, self._leaves, budget_seconds=0.0), why_here=why)

    def _keeping_arguments(self, executable: Callable[..., Any]) -> Callable[..., Any]:
        """The executable on copies of what it would take over."""
        donated = self._program.donated
        return lambda *leaves: executable(
            *(jnp.array(leaf, copy=True) if lost else leaf for leaf, lost in zip(leaves, donated, strict=True))
        )

    def _runs(
        self, measured: tuple[Measurement, ...], missing: str | None = None, why_here: str | None = None
    ) -> _Runs:
        return _Runs(measured[0], measured[1] if len(measured) > 1 else None, missing, why_here)


def _original(plan: Checkable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """The user's function of flat arguments, traced anew: memscope's own flattening is under test too."""
    original = plan.original
    jitted = original if hasattr(original, "trace") else jax.jit(original)
    with jax.enable_x64(plan.program.x64):
        return jex_core.jaxpr_as_fun(jitted.trace(*args, **kwargs).jaxpr)


_PROCESS_BYTES = 512 << 20  # Python, JAX and XLA's compiler in the process that measures


def _no_room(peak_bytes: int, target: Target) -> str | None:
    """Why a call of this peak can't be tried here; None where it can."""
    if peak_bytes > target.capacity_bytes:
        room = f"{target.name} holds {format_bytes(target.capacity_bytes)}"
        return f"the original needs {format_bytes(peak_bytes)} and {room}"
    free = available_bytes() if target.platform == "cpu" else None
    if free is not None and peak_bytes * 1.1 + _PROCESS_BYTES > free:
        return f"the original needs {format_bytes(peak_bytes)} and {format_bytes(free)} of memory are free"
    return None


def _require_room(plan: Checkable) -> None:
    free = available_bytes() if plan.target.platform == "cpu" else None
    if free is not None and plan.peak_bytes + _PROCESS_BYTES > free:
        raise MeasureError(
            f"{REWRITTEN} needs {format_bytes(plan.peak_bytes)} and {format_bytes(free)} of memory are free: "
            "free some, plan for a lower limit, or check on reduced arguments alone."
        )


# What is said of it.


@dataclasses.dataclass(frozen=True)
class _Difference:
    max_abs_err: float
    max_rel_err: float
    wrong: str | None


def _verdict(plan: Checkable, runs: _Runs | None, difference: _Difference | None, how: str) -> Check:
    peak = None if runs is None else measured_peak(plan.program, runs.rewritten)
    over = None if peak is None else _over_limit(peak, plan.limit_bytes)
    near = None if peak is None or over is not None else _just_over(peak, plan.limit_bytes)
    wrong = None if difference is None else difference.wrong
    original = None if runs is None else runs.original
    return Check(
        ok=(peak is not None or difference is not None) and over is None and wrong is None,
        max_abs_err=None if difference is None else difference.max_abs_err,
        max_rel_err=None if difference is None else difference.max_rel_err,
        measured_peak_bytes=peak,
        seconds=None if runs is None else runs.rewritten.seconds,
        original_seconds=None if original is None else original.seconds,
        how="; ".join(filter(None, [how, wrong, over, near])) + ".",
    )


def measured_peak(program: Program, measured: Measurement) -> int | None:
    """Measured growth with what was there before the run: arguments and constants, as XLA's peak counts them."""
    if measured.growth_bytes is None:
        return None
    held = sum(aval_bytes(v.aval) for v in (*program.jaxpr.invars, *program.jaxpr.constvars))
    return held + measured.growth_bytes


def _over_limit(peak_bytes: int, limit_bytes: int | None) -> str | None:
    if limit_bytes is None or peak_bytes <= limit_bytes + max(0.03 * limit_bytes, 8e6):
        return None
    return f"the measured peak of {format_bytes(peak_bytes)} exceeds the limit of {format_bytes(limit_bytes)}"


def _just_over(peak_bytes: int, limit_bytes: int | None) -> str | None:
    if limit_bytes is None or peak_bytes <= limit_bytes:
        return None
    return (
        f"the measured peak of {format_bytes(peak_bytes)} is {format_bytes(peak_bytes - limit_bytes)} over the limit, "
        "within what a run takes beside XLA's account"
    )


def _compare_all(program: Program, runs: _Runs) -> _Difference:
    assert runs.original is not None
    paths = jax.tree_util.tree_flatten_with_path(program.out_tree.unflatten(range(program.out_tree.num_leaves)))[0]
    found = [
        compare(got, want, f"the result{jax.tree_util.keystr(path)}")
        for (path, _), got, want in zip(paths, runs.rewritten.outputs, runs.original.outputs, strict=True)
    ]
    wrong = next((d.wrong for d in found if d.wrong is not None), None)
    return _Difference(
        max((d.max_abs_err for d in found), default=0.0), max((d.max_rel_err for d in found), default=0.0), wrong
    )


def compare(got: Array, want: Array, name: str) -> _Difference:
    """Compares two arrays: floats within `TOLERANCE` of the largest magnitude, all else exactly.

    NaN equals NaN and an infinity its like. Works in blocks, as a result may take most of the memory.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return _Difference(math.inf, math.inf, f"{name} is {got.dtype}{got.shape}, not {want.dtype}{want.shape}")
    if not jnp.issubdtype(want.dtype, jnp.inexact):
        differing = sum(int(np.count_nonzero(g != w)) for g, w in _blocks(got, want))
        return _Difference(0.0, 0.0, f"{name} differs in {differing} of {want.size} elements" if differing else None)
    worst, scale = 0.0, 0.0
    for g, w in _blocks(_parts(got), _parts(want)):
        error, size = _errors(g.astype(np.float64), w.astype(np.float64))
        worst, scale = max(worst, error), max(scale, size)
    relative = 0.0 if worst == 0 else worst / scale if scale else math.inf
    allowed = tolerance(want.dtype)
    wrong = f"{name} is off by {relative:.2g} of its largest magnitude, over {allowed:.2g}"
    return _Difference(worst, relative, wrong if relative > allowed else None)


def tolerance(dtype: Any) -> float:
    """Largest error accepted for a float or complex dtype, as a fraction of the largest magnitude."""
    info = jnp.finfo(dtype)
    return TOLERANCE.get(str(info.dtype), min(0.5, 4 * float(info.eps)))


def _parts(array: Array) -> Array:
    """A complex array as its real and imaginary parts."""
    if not np.iscomplexobj(array):
        return array
    return np.ascontiguousarray(array).reshape(-1).view(array.real.dtype)


def _blocks(got: Array, want: Array, size: int = 1 << 20) -> list[tuple[Array, Array]]:
    flat_got, flat_want = got.reshape(-1), want.reshape(-1)
    return [(flat_got[i : i + size], flat_want[i : i + size]) for i in range(0, flat_got.size, size)]


def _errors(got: Array, want: Array) -> tuple[float, float]:
    """Largest error and largest finite magnitude of a block; the error is infinite where only one is finite."""
    finite = np.isfinite(got) & np.isfinite(want)
    alike = finite | (got == want) | (np.isnan(got) & np.isnan(want))
    size = float(np.max(np.abs(want), initial=0.0, where=np.isfinite(want)))
    if not alike.all():
        return math.inf, size
    with np.errstate(invalid="ignore"):
        return float(np.max(np.abs(got - want), initial=0.0, where=finite)), size
