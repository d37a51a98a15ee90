"""The ordering problem as a constraint program, for OR-Tools' CP-SAT.

The variables are those of OLLA (arXiv 2210.12924, section 3) in the form that constraint programming likes: instead
of a binary for each tensor and time step, a node has a time, and a storage is an interval that a cumulative holds.
`docs/ordering.md` walks through it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from . import cpsat
from .problem import Loan, Order, OrderProblem
from .reach import Reach


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the solver found: an order better than the hint, or None, and a proved lower bound in bytes."""

    order: Order | None
    lower_bound: int


def improve(
    problem: OrderProblem, hint: Order, lower_bound: int, deadline: float, found: Callable[[int], None]
) -> Answer:
    """Searches for an order of lower peak than the hint's, or a proof that there is none.

    Args:
      problem: the fewer nodes the better; up to some 300 are proved optimal within seconds.
      hint: an order to start from.
      lower_bound: known so far.
      deadline: by `time.monotonic`.
      found: is told of each peak in bytes, as better orders come.

    Raises:
      ImportError: OR-Tools is not installed.
    """
    cp_model = cpsat.load()
    model = _Model(cp_model, problem, hint, lower_bound)
    watch = model.watch(found)
    status, solver = cpsat.run(cp_model, model.model, deadline - time.monotonic(), watch)
    if watch.error is not None:
        raise watch.error
    if status == cp_model.INFEASIBLE:  # nothing is below the hint's peak
        return Answer(None, problem.peak(hint))
    order = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        order = tuple(sorted(range(problem.size), key=lambda node: solver.value(model.times[node])))
    return Answer(order, max(lower_bound, math.ceil(solver.best_objective_bound - 1e-6) * model.unit))


class _Model:
    def __init__(self, cp_model: Any, problem: OrderProblem, hint: Order, lower_bound: int) -> None:
        self._cp = cp_model
        self._problem = problem
        self.model = cp_model.CpModel()
        extra = problem.extra or (0,) * problem.size
        self.unit = math.gcd(*(s.bytes for s in problem.storages), *extra) or 1
        reach = Reach(problem.predecessors)
        self._hinted = {node: time_ for time_, node in enumerate(hint)}
        reach = Reach(problem.predecessors)
        self.times = [
            self._new(before.bit_count(), problem.size - 1 - after.bit_count(), self._hinted[node])
            for node, (before, after) in enumerate(zip(reach.ancestors, reach.descendants, strict=True))
        ]
        self.model.add_all_different(self.times)
        for node, before in enumerate(problem.predecessors):
            for earlier in before:
                self.model.add(self.times[earlier] < self.times[node])
        intervals = self._intervals(problem.taken(hint))
        demands = [s.bytes // self.unit for s in problem.storages]
        for node, more in enumerate(extra):
            if more:
                intervals.append(self.model.new_fixed_size_interval_var(self.times[node], 1, ""))
                demands.append(more // self.unit)
        peak = problem.peak(hint) // self.unit
        self.peak = self._new(-(-lower_bound // self.unit), peak, peak)
        self.model.add_cumulative(intervals, demands, self.peak)
        self.model.minimize(self.peak)

    def _new(self, low: int, high: int, hint: int) -> Any:
        variable = self.model.new_int_var(low, high, "")
        self.model.add_hint(variable, hint)
        return variable

    def _intervals(self, hinted: Collection[Loan]) -> list[Any]:
        """An interval for each storage; a loan that is taken makes the smaller of the two shorter by one step."""
        shorter: dict[int, list[Any]] = {}  # booleans, by storage
        later: dict[int, list[Any]] = {}
        hints: dict[int, int] = {}
        for loan, taken in self._loans(hinted):
            lender, borrower = (self._problem.storages[s] for s in (loan.lender, loan.borrower))
            which, side = (loan.lender, shorter) if lender.bytes <= borrower.bytes else (loan.borrower, later)
            side.setdefault(which, []).append(taken)
            hints[which] = hints.get(which, 0) + (loan in hinted)
        intervals = []
        for index, storage in enumerate(self._problem.storages):
            start, first = self._extreme(storage.starts, min, self.model.add_min_equality)
            last, final = self._extreme(storage.ends, max, self.model.add_max_equality)
            end, length = last + 1, final + 1 - first - hints.get(index, 0)
            if index in later:
                start = self._sum(start + sum(later[index]), first + hints[index])
            if index in shorter:
                end = self._sum(end - sum(shorter[index]), final + 1 - hints[index])
            length = self._new(0, self._problem.size, length)
            intervals.append(self.model.new_interval_var(start, length, end, ""))
        return intervals

    def _extreme(
        self, nodes: Collection[int], extreme: Callable[[Iterable[int]], int], equality: Callable[[Any, list[Any]], Any]
    ) -> tuple[Any, int]:
        """The first or the last of the nodes' times, and its hint."""
        times = [self.times[node] for node in nodes]
        hint = extreme(self._hinted[node] for node in nodes)
        if len(times) == 1:
            return times[0], hint
        variable = self._new(0, self._problem.size - 1, hint)
        equality(variable, times)
        return variable, hint

    def _sum(self, expression: Any, hint: int) -> Any:
        variable = self._new(0, self._problem.size, hint)
        self.model.add(variable == expression)
        return variable

    def _loans(self, hinted: Collection[Loan]) -> list[tuple[Loan, Any]]:
        """Each loan with a boolean: it is taken only where the lender ends and the borrower starts at its node."""
        problem = self._problem
        loans = [(loan, self.model.new_bool_var("")) for loan in problem.loans]
        sides: dict[tuple[str, int], list[Any]] = {}
        for loan, taken in loans:
            self.model.add_hint(taken, loan in hinted)
            sides.setdefault(("lends", loan.lender), []).append(taken)
            sides.setdefault(("borrows", loan.borrower), []).append(taken)
            now = self.times[loan.node]
            for node in problem.storages[loan.lender].ends - {loan.node}:
                self.model.add(self.times[node] < now).only_enforce_if(taken)
            for node in problem.storages[loan.borrower].starts - {loan.node}:
                self.model.add(self.times[node] > now).only_enforce_if(taken)
        for booleans in sides.values():
            self.model.add_at_most_one(booleans)
        return loans

    def watch(self, found: Callable[[int], None]) -> Any:
        unit = self.unit

        class _Watch(self._cp.CpSolverSolutionCallback):  # type: ignore[name-defined]
            error: BaseException | None = None

            def on_solution_callback(self) -> None:
                try:
                    found(int(self.objective_value) * unit)
                except BaseException as error:  # it runs on the solver's thread, where nothing may escape
                    self.error = error
                    self.stop_search()

        return _Watch()
