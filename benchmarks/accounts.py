"""What XLA says of a workload, and the same run in a fresh process: what both benchmarks share."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax.extend import core as jex_core

from memscope.compile import Build, Compiled, compile_program
from memscope.measure import Job, export_job
from memscope.program import Program
from memscope.sizes import format_bytes
from memscope.target import resolve
from memscope.trace import trace

from .workloads import Workload

RESULTS = Path(__file__).resolve().parent / "results"
SHARE_OF_TEMPORARIES = 0.1


class Original:
    """A workload with its arguments placed and its two plain builds accounted for."""

    def __init__(self, workload: Workload) -> None:
        self.name = workload.name
        self.fn = workload.fn
        self.args = workload.args()
        self.leaves: list[Any] = jax.tree.leaves(self.args)
        self.program: Program = trace(workload.fn, self.args)
        # As the user's own jax.jit would see it, not through memscope's flattening.
        self._run = jex_core.jaxpr_as_fun(jax.jit(workload.fn).trace(*self.args).jaxpr)
        self.accounts: dict[Build, Compiled] = {b: compile_program(self.program, b, resolve("cpu")) for b in Build}

    @property
    def limit_bytes(self) -> int:
        """Arguments + outputs + 10% of the temporaries of the reference build."""
        account = self.accounts[Build.REFERENCE]
        return account.peak_bytes - round((1 - SHARE_OF_TEMPORARIES) * account.temp_bytes)

    def job(self, build: Build) -> Job:
        return export_flat(f"{self.name} ({build.value})", self._run, self.program, build)


def rewritten_job(name: str, plan: Any) -> Job:
    """`plan.fn` under the build that it was accounted for."""
    return export_flat(f"{name} (rewritten)", jex_core.jaxpr_as_fun(plan.rewritten), plan.program, plan.build)


def export_flat(name: str, run: Any, program: Program, build: Build) -> Job:
    avals = [v.aval for v in program.jaxpr.invars]
    return export_job(name, run, avals, options=build.options, x64=program.x64, donated=program.donated)


def growth(account: Compiled) -> int:
    """XLA's figure for what a run takes beyond its arguments and constants."""
    return account.output_bytes + account.temp_bytes - account.alias_bytes


EIGEN_DEPTH = 640  # two slices of the contracted axis at the most, each of at most 320


def dot_scratch(jaxpr: jex_core.Jaxpr) -> int:
    """An upper bound on what one dot takes in the build without fusions and XLA does not count.

    Eigen's threads pack both operands, a slice of the contracted axis at a time: all of a wide and shallow matrix.
    Dots that run side by side, or the batches of one, may each take as much.
    """
    found = [0]
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            found.append(_packed_bytes(eqn))
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(inner, jex_core.ClosedJaxpr):
                    found.append(dot_scratch(inner.jaxpr))
                elif isinstance(inner, jex_core.Jaxpr):
                    found.append(dot_scratch(inner))
    return max(found)


def _packed_bytes(eqn: jex_core.JaxprEqn) -> int:
    (lhs_contract, _), (lhs_batch, _) = eqn.params["dimension_numbers"]
    lhs: Any = eqn.invars[0].aval
    rhs: Any = eqn.invars[1].aval
    depth = math.prod(lhs.shape[i] for i in lhs_contract)
    batch = math.prod(lhs.shape[i] for i in lhs_batch)
    rows = (lhs.size + rhs.size) // max(1, depth * batch)
    return int(rows * min(depth, EIGEN_DEPTH) * lhs.dtype.itemsize)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first to the left and the rest to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in (header, *rows)
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def text_bytes(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def text_ratio(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.1g}"


def write_json(name: str, rows: Sequence[Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / name
    path.write_text(json.dumps(rows, indent=1) + "\n")
    return path
