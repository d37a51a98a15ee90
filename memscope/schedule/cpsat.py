"""OR-Tools' CP-SAT, where the extra `order` is installed; nothing else here imports it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

WORKERS = 2
MISSING = (
    "OR-Tools is not installed, so only heuristics and bounds were used: "
    "pip install 'memscope-jax[order]' brings the solver."
)


def available() -> bool:
    """Whether OR-Tools can be imported."""
    return importlib.util.find_spec("ortools") is not None


def load() -> Any:
    """The module `ortools.sat.python.cp_model`; it takes a moment to import."""
    return importlib.import_module("ortools.sat.python.cp_model")


def run(cp_model: Any, model: Any, seconds: float, callback: Any = None) -> tuple[Any, Any]:
    """Solves the model in at most so many seconds: the status and the solver that holds the values."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = WORKERS
    solver.parameters.max_time_in_seconds = max(seconds, 0.01)
    solver.parameters.random_seed = 0
    return solver.solve(model, callback), solver
