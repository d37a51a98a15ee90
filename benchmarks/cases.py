"""How far do the real reports shrink, at what price, and how fast are they then?

    python -m benchmarks.cases               # every case that can be split, of 290 MB of temporaries or more
    python -m benchmarks.cases 014 041       # some of them
    python -m benchmarks.cases --no-times    # plans only: a minute or two
    python -m benchmarks.cases --target a100-40gb --no-times    # for a GPU that is not here: of 100 MB or more

The plan is for "arguments + outputs + 10% of the temporaries" of the reference build; a second one is for 1%. Times are
taken at the largest scale at which the faster plain build takes under 3 s and 3 GB; a ratio below one means that the
rewritten function is faster than that build. Nothing is asserted. Writes `results/cases.json` and `results/cases.svg`.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax

from memscope.errors import LimitError
from memscope.plan import request_plan
from memscope.target import Target, resolve

from . import time_ratio
from .accounts import RESULTS, table, text_ratio, write_json
from .workloads import CASES, Workload, load_case

LARGE_ENOUGH, LARGE_ENOUGH_ON_GPU = 290_000_000, 100_000_000
SCALES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12)
MOST_BYTES, MOST_SECONDS = 3_000_000_000, 3.0
KEYWORDS: dict[str, Any] = {"static_argnums": (), "static_argnames": (), "donate_argnums": ()}


@dataclasses.dataclass(frozen=True)
class Row:
    """One case. Shares are of the temporaries of the reference build at full size; work and time are ratios."""

    case: str
    temp_bytes: int
    share: float | None
    share_at_one_percent: float | None
    extra_work: float | None
    planning_seconds: float
    compiles: int
    scale: float | None = None
    seconds: float | None = None
    ratio: float | None = None


def full_size(workload: Workload, target: Target) -> Row | None:
    """The plans at full size; None for a case that is too small to count."""
    lines: list[str] = []
    start = time.perf_counter()
    args = jax.eval_shape(lambda: workload.make_args(1.0))
    request = request_plan(workload.fn, args, {}, target=target, progress=lines.append, **KEYWORDS)
    original = request.search.original
    if original.temp_bytes < (LARGE_ENOUGH if target.platform == "cpu" else LARGE_ENOUGH_ON_GPU):
        return None
    outside = original.peak_bytes - original.temp_bytes
    plan = request.plan(outside + original.temp_bytes // 10, best_effort=True)
    planning, compiles = time.perf_counter() - start, sum(line.startswith("compiling") for line in lines)
    share = (plan.peak_bytes - outside) / original.temp_bytes
    try:
        small = request.plan(outside + original.temp_bytes // 100, best_effort=False)
        least: float | None = (small.peak_bytes - outside) / original.temp_bytes
    except LimitError:
        least = None
    # As written in each build: that is one compile for each, which one line announces.
    compiles += len(request.search.builds) - 1
    row = Row(workload.name, original.temp_bytes, share, least, plan.extra_work, planning, compiles)
    return row if plan.fits else dataclasses.replace(row, share=None, extra_work=None)


def timed(row: Row, workload: Workload, budget: float) -> Row:
    """The same with its time, at the largest scale that this takes a moment at."""
    for scale in SCALES:
        sized = dataclasses.replace(workload, scale=scale)
        found = time_ratio.run(sized, MOST_BYTES, False, budget)
        if not found.seconds or min(found.seconds.values()) > MOST_SECONDS:
            continue
        return dataclasses.replace(row, scale=scale, seconds=found.rewritten_seconds, ratio=found.ratio)
    return row


def summary(rows: Sequence[Row]) -> str:
    """How many reach what."""
    fit = [row for row in rows if row.share is not None]
    tiny = [row for row in rows if row.share_at_one_percent is not None]
    work = [row.extra_work for row in fit if row.extra_work is not None]
    planning = sorted(row.planning_seconds for row in rows)
    lines = [
        f"at 10% of the temporaries: {len(fit)} of {len(rows)}; at 1%: {len(tiny)} of {len(rows)}",
        f"extra work: {sum(w <= 1.05 for w in work)} at most 1.05x, {sum(w <= 1.3 for w in work)} at most 1.3x",
        f"planning: median {statistics.median(planning):.1f} s, nine in ten under "
        f"{planning[int(0.9 * (len(planning) - 1))]:.1f} s, worst {planning[-1]:.1f} s; "
        f"{statistics.median(row.compiles for row in rows):.0f} compiles in the median",
    ]
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        mean = math.prod(ratios) ** (1 / len(ratios))
        spread = f"median {statistics.median(ratios):.2f}x, {text_ratio(min(ratios))}x to {max(ratios):.2f}x"
        lines.append(f"time: geometric mean {mean:.2f}x of {len(ratios)}, {spread}")
    return "\n".join(lines)


def plot(rows: Sequence[Row]) -> str:
    """The ratios of time as dots on a logarithmic axis, the fastest on top: an SVG."""
    timed_rows = sorted((row for row in rows if row.ratio), key=lambda row: row.ratio or 0.0)
    height, left, width = 18, 230, 420
    low, high = math.log(0.001), math.log(4.0)

    def x(ratio: float) -> float:
        return left + width * (math.log(min(max(ratio, 0.001), 4.0)) - low) / (high - low)

    bottom = height * len(timed_rows) + 20
    marks = [
        f'<line x1="{x(tick):.0f}" x2="{x(tick):.0f}" y1="10" y2="{bottom}" '
        f'stroke="{"#444444" if tick == 1 else "#cccccc"}"/>'
        f'<text x="{x(tick):.0f}" y="{bottom + 14}" text-anchor="middle">{tick}x</text>'
        for tick in (0.001, 0.01, 0.1, 0.2, 0.5, 1, 2)
    ]
    for i, row in enumerate(timed_rows):
        y = 20 + height * i
        marks.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{row.case}</text>')
        dot = f'<circle cx="{x(row.ratio or 1):.1f}" cy="{y}" r="4" fill="#0072b2">'
        marks.append(f"{dot}<title>{row.ratio:.2f}x</title></circle>")
    size = f'width="{left + width + 30}" height="{bottom + 24}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return head + "".join(marks) + "</svg>\n"


def cells(row: Row) -> list[str]:
    def percent(share: float | None) -> str:
        return "-" if share is None else f"{100 * share:.2f}%"

    return [
        row.case,
        f"{row.temp_bytes / 1e6:,.0f} MB",
        percent(row.share),
        percent(row.share_at_one_percent),
        text_ratio(row.extra_work),
        f"{row.planning_seconds:.1f}",
        str(row.compiles),
        "-" if row.scale is None else f"{row.scale:g}",
        "-" if row.seconds is None else f"{row.seconds:.3f}",
        text_ratio(row.ratio),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cases", description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", help="numbers of cases")
    parser.add_argument("--target", type=resolve, default="cpu", help="where they are to run (default: %(default)s)")
    parser.add_argument("--no-times", action="store_true", help="plan only")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds to time each case (default: %(default)s)")
    options = parser.parse_args(argv)
    if not options.no_times and options.target.platform != "cpu":
        parser.error("times are taken on this CPU: --target takes --no-times with it")
    names = options.cases or [path.stem.split("_")[1] for path in sorted(CASES.glob("case_*.py"))]
    rows = []
    for workload in map(load_case, names):
        row = full_size(workload, options.target) if is_split(workload) else None
        if row is None:
            continue
        rows.append(row if options.no_times else timed(row, workload, options.budget))
        print("  " + "  ".join(cells(rows[-1])), file=sys.stderr, flush=True)
    header = "case|temporaries|at 10%|at 1%|work|planning s|compiles|scale|seconds|ratio"
    print(table(header.split("|"), [cells(row) for row in rows]))
    print("\n" + summary(rows))
    RESULTS.mkdir(exist_ok=True)
    name = "cases" if options.target.platform == "cpu" else f"cases-{options.target.name}"
    if not options.no_times:
        (RESULTS / f"{name}.svg").write_text(plot(rows))
    print(f"written to {write_json(f'{name}.json', [dataclasses.asdict(row) for row in rows])}")
    return 0


def is_split(workload: Workload) -> bool:
    """Whether a person would split it."""
    return str(workload.fn.__globals__["NOTES"]["expect"]).startswith("split")


if __name__ == "__main__":
    sys.exit(main())
