"""Predicted against measured on a GPU: bytes, seconds, and how large a problem may be before and after.

    python -m benchmarks.gpu                       # on a machine with an NVIDIA GPU: 8 minutes at the most
    python -m benchmarks.gpu --predict a100-40gb   # what would be predicted for a GPU that is not here

Each program is compiled ahead of time by the worker that previews use, then compiled and run on the GPU in fresh
processes, as written and as rewritten for "arguments + outputs + 10% of the temporaries". Measured bytes are the
device's own `memory_stats()`. Where there is no GPU, a sentence says so and the exit code is 0.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from memscope.check import measured_peak
from memscope.errors import LimitError, TargetError
from memscope.gpu.devices import DEVICES
from memscope.measure import Job, MeasureError, Measurement, export_job, measure
from memscope.plan import Plan, Request, request_plan
from memscope.program import aval_bytes
from memscope.sizes import format_bytes
from memscope.target import Target, memory_fraction, resolve

from .accounts import SHARE_OF_TEMPORARIES, table, text_bytes, write_json
from .workloads import (
    Args,
    Workload,
    attention,
    knn_args,
    knn_l2_expanded,
    sgpr_args,
    sgpr_bound,
    sgpr_gradient,
)

BUDGET_SECONDS = 420.0
"""Nothing new is started after so long; what is under way takes its own time, under a minute."""

RUN_SECONDS = 100.0
KEYWORDS: dict[str, Any] = {"static_argnums": (), "static_argnames": (), "donate_argnums": ()}

PROBE = """
import json, jax
device = jax.devices("gpu")[0]
print(json.dumps({"kind": device.device_kind, "limit": device.memory_stats()["bytes_limit"]}))
"""


def attention_args(scale: float) -> Args:
    length = max(64, round(16_000 * scale))
    return tuple(jax.random.normal(key, (4, length, 64)) for key in jax.random.split(jax.random.key(4), 3))


WORKLOADS = (
    Workload("knn", knn_l2_expanded, lambda scale: knn_args(max(64, round(20_000 * scale)), 100_000, 64)),
    Workload("sgpr bound", sgpr_bound, lambda scale: sgpr_args(10 * scale)),
    Workload("sgpr gradient", sgpr_gradient, lambda scale: sgpr_args(6 * scale)),
    Workload("attention", attention, attention_args),
)
GROWN = ("knn", "sgpr bound", "attention")
SCALES = tuple(2.0**k for k in range(-2, 9))


@dataclasses.dataclass(frozen=True)
class Row:
    """One program: bytes of the whole call, seconds."""

    program: str
    version: str
    predicted_bytes: int
    attached_bytes: int | None = None
    measured_bytes: int | None = None
    predicted_slowdown: float | None = None
    seconds: float | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Largest:
    """How large a problem ran: its scale and the bytes of its arguments."""

    program: str
    version: str
    scale: float | None
    argument_bytes: int | None
    note: str


def find_gpu() -> tuple[str, int] | str:
    """Model and bytes that XLA takes of the attached GPU, asked in another process; or why there is none."""
    env = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], env=env, capture_output=True, text=True, timeout=120, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        return said[-1].rpartition("Error: ")[2]
    return found["kind"], found["limit"]


def target_for(kind: str, limit: int) -> Target:
    """The named target that is this GPU, or the one most like it, with its memory."""
    name = next((n for n, device in DEVICES.items() if device.model == kind), None)
    if name is None:
        name = min(DEVICES, key=lambda n: abs(DEVICES[n].memory_bytes * memory_fraction() - limit))
    return dataclasses.replace(resolve(name), capacity_bytes=limit)


def request_for(workload: Workload, scale: float, target: Target) -> Request:
    args = jax.eval_shape(lambda: workload.make_args(scale))
    return request_plan(workload.fn, args, {}, target=target, progress=None, **KEYWORDS)


def tenth(request: Request) -> Plan:
    original = request.search.original
    limit = original.peak_bytes - round((1 - SHARE_OF_TEMPORARIES) * original.temp_bytes)
    return request.plan(limit, best_effort=True)


def job(name: str, run: Callable[..., Any], request: Request) -> Job:
    program = request.search.program
    avals = [v.aval for v in program.jaxpr.invars]
    return export_job(name, run, avals, x64=program.x64, donated=program.donated, platform="cuda")


def as_written(request: Request) -> Callable[..., Any]:
    return jex_core.jaxpr_as_fun(request.search.program.closed)


def measured(workload: Workload, scale: float, jobs: Sequence[Job], budget: float) -> tuple[Measurement, ...]:
    leaves = jax.tree.leaves(workload.make_args(scale))
    return measure(jobs, leaves, budget_seconds=budget, timeout=RUN_SECONDS, platform="cuda")


def compared(workload: Workload, target: Target, attached: bool) -> list[Row]:
    """The program as written and as rewritten, each in a process of its own, as a peak is seen once in each."""
    request = request_for(workload, workload.scale, target)
    plan = tenth(request)
    versions = [
        ("as written", as_written(request), request.search.original.peak_bytes, None),
        ("rewritten", jex_core.jaxpr_as_fun(plan.rewritten), plan.peak_bytes, plan.slowdown),
    ]
    rows = []
    for version, run, predicted, slowdown in versions:
        row = Row(workload.name, version, predicted, predicted_slowdown=slowdown)
        if attached:
            row = with_measurement(row, workload, request, run)
        rows.append(row)
    return rows


def with_measurement(row: Row, workload: Workload, request: Request, run: Callable[..., Any]) -> Row:
    try:
        (found,) = measured(workload, workload.scale, [job(workload.name, run, request)], 2.0)
    except MeasureError as error:
        return dataclasses.replace(row, note=str(error)[:80])
    program = request.search.program
    held = sum(aval_bytes(v.aval) for v in program.jaxpr.invars)
    account = None if found.account_bytes is None else held + found.account_bytes
    peak = measured_peak(program, found)
    return dataclasses.replace(row, attached_bytes=account, measured_bytes=peak, seconds=found.seconds)


def largest(workload: Workload, target: Target, attached: bool, deadline: float, rewritten: bool) -> Largest:
    """The largest of the scales that is predicted to fit, and does where it can be run; smaller ones where not."""
    version = "rewritten" if rewritten else "as written"
    for scale in reversed(SCALES):
        if time.monotonic() > deadline:
            return Largest(workload.name, version, None, None, "out of time")
        args = jax.eval_shape(lambda scale=scale: workload.make_args(scale))
        held = sum(aval_bytes(leaf) for leaf in jax.tree.leaves(args))
        if held > target.capacity_bytes // 2:
            continue
        request = request_for(workload, scale, target)
        try:
            run = fitting(request, rewritten)
        except (LimitError, TargetError):  # or XLA itself can't compile what is so large
            continue
        if run is None:
            continue
        note = "predicted" if not attached else ran(workload, scale, job(workload.name, run, request))
        if note is not None:
            return Largest(workload.name, version, scale, held, note)
    return Largest(workload.name, version, None, None, "none fits")


def fitting(request: Request, rewritten: bool) -> Callable[..., Any] | None:
    """What to run within the target's capacity; None where the function as written does not fit it."""
    capacity = request.search.target.capacity_bytes
    if not rewritten:
        return as_written(request) if request.search.original.peak_bytes <= capacity else None
    return jex_core.jaxpr_as_fun(request.plan(capacity // 2, best_effort=False).rewritten)


def ran(workload: Workload, scale: float, made: Job) -> str | None:
    try:
        (found,) = measured(workload, scale, [made], 0.0)
    except MeasureError:
        return None
    return f"ran in {found.seconds:.3f} s"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--predict", type=resolve, metavar="TARGET", help="predictions alone, for a named GPU")
    options = parser.parse_args(argv)
    start = time.monotonic()
    target, attached = options.predict, False
    if target is None:
        found = find_gpu()
        if isinstance(found, str):
            print(f"no GPU to measure on ({found}): --predict a100-40gb shows what would be predicted for one.")
            return 0
        target, attached = target_for(*found), True
        print(f"on {found[0]}, of which XLA takes {format_bytes(found[1])}; predicted as {target.name}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # this process only traces: the GPU is for those that measure
    try:
        report(target, attached, start + BUDGET_SECONDS)
    except TargetError as error:
        print(error)
    print(f"\n{time.monotonic() - start:.0f} s")
    return 0


def report(target: Target, attached: bool, deadline: float) -> None:
    rows = [row for workload in WORKLOADS for row in compared(workload, target, attached)]
    header = "program|version|predicted|attached|measured|slowdown|seconds|note"
    print(table(header.split("|"), [cells(row) for row in rows]))
    grown = [
        largest(workload, target, attached, deadline, rewritten)
        for workload in WORKLOADS
        if workload.name in GROWN
        for rewritten in (False, True)
    ]
    print("\nlargest that runs\n")
    sizes = [
        [r.program, r.version, "-" if r.scale is None else f"{r.scale:g}", text_bytes(r.argument_bytes), r.note]
        for r in grown
    ]
    print(table("program|version|scale|arguments|note".split("|"), sizes))
    found = {"target": target.name, "rows": list(map(dataclasses.asdict, rows + grown))}
    print(f"\nwritten to {write_json('gpu.json', [found])}")


def cells(row: Row) -> list[str]:
    return [
        row.program,
        row.version,
        text_bytes(row.predicted_bytes),
        text_bytes(row.attached_bytes),
        text_bytes(row.measured_bytes),
        "-" if row.predicted_slowdown is None else f"{row.predicted_slowdown:.2f}",
        "-" if row.seconds is None else f"{row.seconds:.4f}",
        row.note,
    ]


if __name__ == "__main__":
    sys.exit(main())
