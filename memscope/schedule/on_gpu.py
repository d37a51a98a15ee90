"""The best order that XLA's GPU compiler confirms: it takes none, so several are asked for by barriers.

A barrier keeps an order, and also keeps XLA from fusing across it: that can cost memory as well as save it, and nothing
but compiling tells. So different orders are compiled one after another while there is time, and the lowest wins.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from jax.extend import core as jex_core

from ..barriers import Order, depth_first, ordering, run_in_order
from ..compile import Build, compile_program
from ..cost import estimate
from ..machine import machine_of
from ..program import Program
from ..sizes import format_bytes
from ..target import Target
from ..trace import trace_flat
from .confirm import DEFAULT, OURS, Progress, Scheduled
from .from_hlo import ComputationOrder, OrderingProblems
from .pack import WORTH
from .predict import HeapModel, ModuleOrder
from .search import Found
from .solve import solve
from .steps import run_in_steps, steps_of

SOLVING_SHARE, SOLVING_SECONDS = 0.2, 2.0
"""How much of the time, and how long at the most, goes into one order of instructions before it is compiled."""

IN_STEPS = "one instruction after another"


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """An order worth a compile.

    Attributes:
      by: what a reader knows it by.
      program: the program kept in it by barriers.
    """

    by: str
    program: Program


def find_order_on_gpu(
    program: Program, target: Target, seconds: float, progress: Progress = lambda line: None
) -> Found:
    """Looks for the order in which a program needs the least memory on a GPU, and has XLA confirm it.

    Args:
      seconds: to search and to compile what was found; the compile of the program as it is comes on top, and one that
        has begun is not broken off.
    """
    progress(f"compiling {program.name} in XLA's own order ({len(program.eqns)} eqns)")
    default = Scheduled(DEFAULT, program, compile_program(program, Build.PLAIN, target))
    search = _Search(default, target, seconds, progress)
    if default.temp_bytes:
        search.run()
    needed = min(s.peak_bytes - s.temp_bytes for s in search.confirmed)  # arguments and results
    return Found(search.best, tuple(search.confirmed), needed, search.spent, search.remark)


class _Search:
    def __init__(self, default: Scheduled, target: Target, seconds: float, progress: Progress) -> None:
        self.confirmed = [default]
        self.remark = ""
        self._target, self._progress = target, progress
        self._start = time.perf_counter()
        self._seconds = seconds
        self._longest = 0.0  # that a compile took

    @property
    def spent(self) -> float:
        return time.perf_counter() - self._start

    @property
    def best(self) -> Scheduled:
        """The lowest; XLA's own where no other saves anything to speak of."""
        default, lowest = self.confirmed[0], min(self.confirmed, key=lambda s: s.peak_bytes)
        saved = default.peak_bytes - lowest.peak_bytes
        return lowest if saved > WORTH * default.temp_bytes else default

    def run(self) -> None:
        """Compiles one candidate after another while there is time."""
        for candidate in self._candidates():
            if self._is_over:
                return
            self._confirm(candidate)

    def _candidates(self) -> Iterator[Candidate]:
        """What did best on many networks first; at last the instructions of the best in order, where that promises."""
        if self._is_over:
            return
        default = self.confirmed[0]
        yield from self._in_steps(default, -1.0)
        yield from self._stretches(default.program)
        if self.best is not default and not self._is_over:
            yield from self._in_steps(self.best, WORTH)

    def _in_steps(self, compiled: Scheduled, worth: float) -> list[Candidate]:
        """The instructions of a compiled program in order, where that should save a share of the temporaries."""
        found = _BestOrder(compiled, min(SOLVING_SECONDS, SOLVING_SHARE * self._seconds))
        self.remark = found.remark
        if found.saved <= worth or len(found.steps) < 2:
            return []
        by = OURS if compiled is self.confirmed[0] else compiled.by
        return [Candidate(f"{by}: {IN_STEPS}", found.program(self._target))]

    def _stretches(self, program: Program) -> Iterator[Candidate]:
        """The eqns in two orders with barriers where large values die; the one first that is estimated to need less."""
        orders: dict[Order, str] = {depth_first(program): "depth first", tuple(range(len(program.eqns))): "as written"}
        machine = machine_of(self._target)
        made = []
        for order, name in orders.items():
            stretches = ordering(program, order)
            if stretches is not None:
                kept = _traced(run_in_order(program, stretches), program, self._target)
                by = f"{OURS}: {len(stretches.stretches)} stretches, {name}"
                made.append((estimate(kept.closed, machine).temp_bytes, by, kept))
        for _, by, kept in sorted(made, key=lambda m: m[:2]):
            yield Candidate(by, kept)

    def _confirm(self, candidate: Candidate) -> None:
        start = time.perf_counter()
        lowest = format_bytes(self.best.temp_bytes)
        self._progress(f"compiling it in another order ({candidate.by}), for less than {lowest} of temporaries")
        try:
            compiled = compile_program(candidate.program, Build.PLAIN, self._target)
        except Exception as error:  # XLA compiled the same in its own order: the barriers are at fault
            self._progress(f"it can't be compiled in that order: {str(error).partition(chr(10))[0]}")
        else:
            self.confirmed.append(Scheduled(candidate.by, candidate.program, compiled))
        self._longest = max(self._longest, time.perf_counter() - start)

    @property
    def _is_over(self) -> bool:
        """Whether there is no time for another compile like those before."""
        return self._seconds - self.spent <= self._longest


class _BestOrder:
    """The instructions of a compiled program in the order that needs the least, were XLA to make the same of it."""

    def __init__(self, compiled: Scheduled, seconds: float) -> None:
        self._from = compiled
        self._module = compiled.compiled.parsed
        self._model = HeapModel(self._module, on_gpu=True)
        self._entry = _entry_problem(OrderingProblems(self._module))
        solution = solve(self._entry.problem, seconds, [self._entry.default])
        self.remark = solution.remark
        self._order = min(solution.candidates, key=self._heap_bytes)
        self.steps = steps_of(compiled.program, self._module, [self._entry.nodes[n] for n in self._order])

    @property
    def saved(self) -> float:
        """The share of the temporaries that this order is predicted to save."""
        before = self._heap_bytes(self._entry.default)
        return 1 - self._heap_bytes(self._order) / before if before else 0.0

    def program(self, target: Target) -> Program:
        return _traced(run_in_steps(self._from.program, self.steps), self._from.program, target)

    def _heap_bytes(self, order: Order) -> int:
        return self._model.heap_bytes(ModuleOrder({self._entry.computation.id: self._entry.sequence(order)}))


def _entry_problem(problems: OrderingProblems) -> ComputationOrder:
    """The problem of the entry computation; loops and branches keep the order that they have."""
    held: dict[int, int] = {}
    for computation in problems.computations:
        problem = problems.problem(computation, held)
        held[computation.id] = problem.problem.peak(problem.default)
    return problem


def _traced(run: Callable[..., object], program: Program, target: Target) -> Program:
    closed: jex_core.ClosedJaxpr = trace_flat(run, program, target.platform)
    return program.rewritten(closed)
