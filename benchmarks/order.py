"""How much does the order of instructions save, and what does it cost? `memscope.schedule` on networks of many kinds.

    python -m benchmarks.order                   # all of them
    python -m benchmarks.order ResNet "batch 1"  # those whose names have one of these in them
    python -m benchmarks.order --no-times        # nothing runs: sizes are XLA's own
    python -m benchmarks.order --deep            # a transformer of 24 layers as well: 2,000 instructions
    python -m benchmarks.order --target a100-40gb  # by XLA's GPU compiler: orders that barriers keep; nothing runs

Sizes are temporaries of the build that `jax.jit` makes, in XLA's default order, in that of its memory-optimised
scheduler, and in the best that XLA confirmed. A time ratio compares the last with the first, interleaved. Nothing is
asserted. Writes `results/order.json`, and for a target of its own `results/order_<target>.json`: there is one scheduler
and no bound then, and what barriers cost is told by the bytes that the instructions read and write.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import memscope
from memscope.compile import Build, compile_program
from memscope.measure import measure_here
from memscope.schedule.confirm import MEMORY, MEMORY_OPTIMISED, Scheduled

from .accounts import table, text_ratio, write_json
from .networks import Program, deep_transformer, programs


@dataclasses.dataclass(frozen=True)
class Row:
    """One program. Sizes in bytes; `gap` is a fraction of the peak, `ratio` of times, `off` of what was predicted.

    Attributes:
      bound: no order needs less for temporaries.
      search_seconds: compiling apart; `all_seconds` has everything, tracing to confirming.
      off: the largest error of a prediction among the orders that were compiled.
      equal: whether the results are the same bits as in XLA's default order; None where nothing ran.
    """

    program: str
    instructions: int
    default: int
    memory_optimised: int
    best: int
    bound: int
    gap: float
    by: str
    search_seconds: float
    all_seconds: float
    off: float | None
    ratio: float | None = None
    equal: bool | None = None

    @property
    def cut(self) -> float:
        """Of XLA's default temporaries."""
        return 1 - self.best / max(1, self.default)

    @property
    def cut_of_better(self) -> float:
        """Of the temporaries of the better one of XLA's two schedulers."""
        return 1 - self.best / max(1, min(self.default, self.memory_optimised))


def run(program: Program, seconds: float, budget: float) -> Row:
    """Schedules a program, and times it where there is a budget for that."""
    start = time.perf_counter()
    shapes = jax.eval_shape(program.make_args)
    found = memscope.schedule(program.fn, *shapes, donate_argnums=program.donate_argnums, seconds=seconds)
    took = time.perf_counter() - start
    confirmed = found.found.confirmed
    default, memory = confirmed[0], memory_optimised(found)
    errors = [abs(s.predicted_temp_bytes / s.temp_bytes - 1) for s in confirmed if s.predicted_temp_bytes is not None]
    fixed = default.peak_bytes - default.temp_bytes
    row = Row(
        program=program.name,
        instructions=len(found.order),
        default=default.temp_bytes,
        memory_optimised=_temporaries(memory, fixed),
        best=_temporaries(found.found.best, fixed),
        bound=found.lower_bound_bytes - fixed,
        gap=found.gap,
        by=found.found.best.by,
        search_seconds=found.seconds,
        all_seconds=took,
        off=max(errors, default=None),
    )
    return timed(row, program, found, budget) if budget and found.changed else row


def memory_optimised(found: memscope.Schedule) -> Scheduled:
    """The program in the order of XLA's memory-optimised scheduler: compiled here where the search did without."""
    known = next((s for s in found.found.confirmed if s.by == MEMORY), None)
    if known is not None:
        return known
    program = found.found.default.program
    return Scheduled(MEMORY, program, compile_program(program, Build.PLAIN, found.target, MEMORY_OPTIMISED))


def _temporaries(scheduled: Scheduled, fixed: int) -> int:
    """What comes on top of arguments and results; results that a donation would have saved count as temporaries."""
    return scheduled.peak_bytes - fixed


def timed(row: Row, program: Program, found: memscope.Schedule, budget: float) -> Row:
    """The same with the time and the results of XLA's default order and of the best one."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(program.make_args())]
    donated = found.program.donated

    def runner(scheduled: Scheduled) -> Callable[..., Any]:
        def call(*args: Any) -> Any:  # what may be overwritten is copied, in both orders
            given = [jnp.array(a) if d else a for a, d in zip(args, donated, strict=True)]
            return scheduled.compiled.call(*given)

        return call

    before, after = measure_here([runner(found.found.default), runner(found.found.best)], leaves, budget_seconds=budget)
    equal = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before.outputs, after.outputs, strict=True))
    return dataclasses.replace(row, ratio=after.seconds / before.seconds, equal=equal)


@dataclasses.dataclass(frozen=True)
class GpuRow:
    """One program on a GPU. Sizes in bytes of temporaries.

    Attributes:
      traffic: bytes that the best order's instructions read and write, over those of XLA's own.
      compiles: how many orders were compiled, XLA's own included.
    """

    program: str
    instructions: int
    default: int
    best: int
    by: str
    traffic: float
    compiles: int
    search_seconds: float
    all_seconds: float

    @property
    def cut(self) -> float:
        """Of XLA's own temporaries."""
        return 1 - self.best / max(1, self.default)


def run_on(target: str, program: Program, seconds: float) -> GpuRow:
    """Schedules a program for a GPU that need not be here."""
    start = time.perf_counter()
    shapes = jax.eval_shape(program.make_args)
    found = memscope.schedule(
        program.fn, *shapes, donate_argnums=program.donate_argnums, seconds=seconds, target=target
    )
    return GpuRow(
        program=program.name,
        instructions=len(found.profile.steps),
        default=found.default_temp_bytes,
        best=found.temp_bytes,
        by=found.found.best.by,
        traffic=found.traffic,
        compiles=len(found.found.confirmed),
        search_seconds=found.seconds,
        all_seconds=time.perf_counter() - start,
    )


def gpu_summary(rows: Sequence[GpuRow]) -> str:
    return (
        f"cut by 8% or more: {sum(row.cut >= 0.08 for row in rows)} of {len(rows)}; mean cut "
        f"{statistics.mean(row.cut for row in rows):.1%}; never worse: {all(row.best <= row.default for row in rows)}; "
        f"bytes read and written: {max(row.traffic for row in rows):.2f}x at the most; search: median "
        f"{statistics.median(row.search_seconds for row in rows):.1f} s, with all compiling "
        f"{statistics.median(row.all_seconds for row in rows):.1f} s"
    )


def gpu_cells(row: GpuRow) -> list[str]:
    return [
        row.program,
        f"{row.instructions:,}",
        f"{row.default / 1e6:,.2f}",
        f"{row.best / 1e6:,.2f}",
        f"{row.cut:.1%}",
        f"{row.traffic:.2f}x",
        str(row.compiles),
        f"{row.search_seconds:.1f}",
        f"{row.all_seconds:.1f}",
        row.by,
    ]


def summary(rows: Sequence[Row]) -> str:
    """What they come to together."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    off = [row.off for row in rows if row.off is not None]
    lines = [
        f"mean cut of XLA's default temporaries: {statistics.mean(row.cut for row in rows):.1%}; of the better of its "
        f"two schedulers: {statistics.mean(row.cut_of_better for row in rows):.1%} ({len(rows)} programs)",
        f"never worse: {all(row.best <= min(row.default, row.memory_optimised) for row in rows)}; "
        f"within 1% of the bound: {sum(row.gap <= 0.01 for row in rows)} of {len(rows)}",
        f"search: median {statistics.median(row.search_seconds for row in rows):.1f} s, worst "
        f"{max(row.search_seconds for row in rows):.1f} s; with all compiling: median "
        f"{statistics.median(row.all_seconds for row in rows):.1f} s",
    ]
    if off:
        lines.append(f"predicted within 2%: {sum(o <= 0.02 for o in off)} of {len(off)}, worst {max(off):.1%}")
    if ratios:
        mean = math.prod(ratios) ** (1 / len(ratios))
        lines.append(
            f"time: geometric mean {mean:.2f}x, {min(ratios):.2f}x to {max(ratios):.2f}x; the same bits: "
            f"{sum(bool(row.equal) for row in rows if row.ratio is not None)} of {len(ratios)}"
        )
    return "\n".join(lines)


def cells(row: Row) -> list[str]:
    def mb(size: int) -> str:
        return f"{size / 1e6:,.2f}"

    return [
        row.program,
        f"{row.instructions:,}",
        mb(row.default),
        mb(row.memory_optimised),
        mb(row.best),
        mb(row.bound),
        f"{row.cut:.1%}",
        f"{row.cut_of_better:.1%}",
        f"{row.gap:.1%}",
        f"{row.search_seconds:.1f}",
        f"{row.all_seconds:.1f}",
        "-" if row.off is None else f"{row.off:.2%}",
        text_ratio(row.ratio),
        {None: "-", True: "yes", False: "NO"}[row.equal],
    ]


R = TypeVar("R", Row, GpuRow)


def report(
    rows: Iterable[R], header: str, cells: Callable[[R], list[str]], summary: Callable[[Sequence[R]], str], name: str
) -> None:
    """Prints each row as it comes, then all as a table with what they come to, and writes them to a file."""
    made: list[R] = []
    for row in rows:
        made.append(row)
        print("  " + "  ".join(cells(row)), file=sys.stderr, flush=True)
    print(table(header.split("|"), [cells(row) for row in made]))
    print("\n" + summary(made))
    print(f"written to {write_json(name, [dataclasses.asdict(row) for row in made])}")


def main_here(chosen: Sequence[Program], seconds: float, budget: float) -> None:
    header = "program|instructions|default MB|memory MB|best MB|bound MB|cut|of better|gap|search s|all s|off|time|same"
    report((run(program, seconds, budget) for program in chosen), header, cells, summary, "order.json")


def main_on(target: str, chosen: Sequence[Program], seconds: float) -> None:
    header = "program|instructions|default MB|best MB|cut|bytes moved|compiles|search s|all s|the best"
    rows = (run_on(target, program, seconds) for program in chosen)
    report(rows, header, gpu_cells, gpu_summary, f"order_{target}.json")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.order", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of programs' names")
    parser.add_argument("--seconds", type=float, default=5.0, help="to search each (default: %(default)s)")
    parser.add_argument("--target", help="a named GPU, which need not be here, in place of this CPU")
    parser.add_argument("--no-times", action="store_true", help="compile only")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds to time each (default: %(default)s)")
    parser.add_argument("--deep", action="store_true", help="a 24-layer transformer as well")
    options = parser.parse_args(argv)
    chosen = [
        program
        for program in (*programs(), *([deep_transformer()] if options.deep else []))
        if not options.names or any(name in program.name for name in options.names)
    ]
    if options.target:
        main_on(options.target, chosen, options.seconds)
    else:
        main_here(chosen, options.seconds, 0.0 if options.no_times else options.budget)
    return 0


if __name__ == "__main__":
    sys.exit(main())
