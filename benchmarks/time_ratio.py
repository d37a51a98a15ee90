"""Is the rewritten function as fast as the original? All builds of a program run in turn in one process.

    python -m benchmarks.time_ratio                  # the paper's workloads and the issue's cases
    python -m benchmarks.time_ratio 023:0.5 case.py  # cases, by number or path, with a scale
    python -m benchmarks.time_ratio --originals      # without the rewritten functions

The plan is for "arguments + outputs + 10% of the temporaries" of the reference build. A ratio below one means that the
rewritten function is faster than the faster of the two plain builds. Times are this machine's: nothing is asserted.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from memscope.check import compare, measured_peak
from memscope.compile import Build
from memscope.errors import LimitError
from memscope.measure import MeasureError, Measurement, measure
from memscope.sizes import parse_size

from .accounts import Original, rewritten_job, table, text_bytes, text_ratio, write_json
from .workloads import PAPER, Workload, load_case

CASES = "001:0.7 006:0.5 023:0.7 024:0.7 029:0.7 033:0.5 038:0.5".split()


@dataclasses.dataclass(frozen=True)
class Row:
    """One program: bytes of the whole call, seconds, and the ratio to the faster plain build."""

    program: str
    original_peak_bytes: int
    limit_bytes: int
    plan_peak_bytes: int | None
    measured_peak_bytes: int | None
    planning_seconds: float | None
    rewritten_seconds: float | None
    seconds: dict[str, float]
    max_rel_err: float | None
    note: str

    @property
    def ratio(self) -> float | None:
        if self.rewritten_seconds is None or not self.seconds:
            return None
        return self.rewritten_seconds / min(self.seconds.values())


def run(workload: Workload, most: int, originals_only: bool, budget: float) -> Row:
    original = Original(workload)
    reference = original.accounts[Build.REFERENCE]
    row = Row(original.name, reference.peak_bytes, original.limit_bytes, None, None, None, None, {}, None, "")
    # Where the plain build's bound is too large but XLA's figure is not, the machine decides: a bound is not a peak.
    builds = [b for b in Build if original.accounts[b].peak_bytes <= most]
    jobs = [original.job(b) for b in builds]
    if not originals_only:
        start = time.perf_counter()
        try:
            plan = plan_for(original)
        except LimitError as error:
            row = dataclasses.replace(row, note=str(error).split(":")[0])
        else:
            jobs.insert(0, rewritten_job(original.name, plan))
            row = dataclasses.replace(
                row,
                plan_peak_bytes=plan.peak_bytes,
                planning_seconds=time.perf_counter() - start,
                note=plan.build.value if plan.loops else "unchanged",
            )
    try:
        measured = measure(jobs, original.leaves, budget_seconds=budget)
    except MeasureError as error:
        return dataclasses.replace(row, note=str(error))
    plain = measured[len(jobs) - len(builds) :]
    row = dataclasses.replace(row, seconds={b.value: m.seconds for b, m in zip(builds, plain, strict=True)})
    if len(jobs) == len(builds):
        return row
    return dataclasses.replace(
        row,
        rewritten_seconds=measured[0].seconds,
        measured_peak_bytes=measured_peak(original.program, measured[0]),
        max_rel_err=largest_error(measured[0], plain[0]) if plain else None,
    )


def plan_for(original: Original) -> Any:
    import memscope

    return memscope.plan(original.fn, *original.args, limit=original.limit_bytes)


def largest_error(got: Measurement, want: Measurement) -> float:
    return max(compare(g, w, "").max_rel_err for g, w in zip(got.outputs, want.outputs, strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_ratio", description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", help="numbers or paths of cases, names of workloads, with :SCALE")
    parser.add_argument("--originals", action="store_true", help="leave the rewritten functions out")
    parser.add_argument(
        "--memory", type=parse_size, default="4GB", help="run nothing above this (default: %(default)s)"
    )
    parser.add_argument("--budget", type=float, default=6.0, help="seconds to time each program (default: %(default)s)")
    options = parser.parse_args(argv)
    workloads = [*(() if options.cases else PAPER), *map(load_case, options.cases or CASES)]
    rows = []
    for workload in workloads:
        rows.append(run(workload, options.memory, options.originals, options.budget))
        print(f"  {rows[-1].program}: ratio {text_ratio(rows[-1].ratio)}", file=sys.stderr, flush=True)
    header = "program|original|limit|plan|measured|planning s|rewritten s|plain s|reference s|ratio|error|note"
    print(table(header.split("|"), [cells(row) for row in rows]))
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        print(f"\ngeometric mean of {len(ratios)} ratios: {math.prod(ratios) ** (1 / len(ratios)):.2f}")
    print(f"written to {write_json('time_ratio.json', [dataclasses.asdict(r) | {'ratio': r.ratio} for r in rows])}")
    return 0


def cells(row: Row) -> list[str]:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    return [
        row.program,
        text_bytes(row.original_peak_bytes),
        text_bytes(row.limit_bytes),
        text_bytes(row.plan_peak_bytes),
        text_bytes(row.measured_peak_bytes),
        seconds(row.planning_seconds),
        seconds(row.rewritten_seconds),
        seconds(row.seconds.get(Build.PLAIN.value)),
        seconds(row.seconds.get(Build.REFERENCE.value)),
        text_ratio(row.ratio),
        "-" if row.max_rel_err is None else f"{row.max_rel_err:.1e}",
        row.note,
    ]


if __name__ == "__main__":
    sys.exit(main())
