"""The best order that XLA confirms: its own two schedulers' against those that the solver finds."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..compile import Build, Compiled, compile_flat, compile_program
from ..evaluate import run_program
from ..hlo.module import Module, parse_module
from ..program import Program
from ..sizes import format_bytes
from ..target import Target
from .bound import touched_bound
from .donated import can_ask_otherwise, compile_with_results, given_back, results_as_made, without_donations
from .from_hlo import ComputationOrder, OrderingProblems
from .hook import ordering
from .hosts import bound_by_nodes
from .pack import CLOSE, WORTH, packed
from .predict import HeapModel, ModuleOrder
from .problem import Order
from .solve import solve

Progress = Callable[[str], None]

MEMORY_OPTIMISED = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
DEFAULT, MEMORY, OURS = "XLA's default", "XLA's memory-optimised scheduler", "memscope"
STEERED = "XLA's memory-optimised scheduler, from results in another order"

CONFIRMATIONS = 2
"""How many orders are compiled at the most: the second where the first does not come to what was predicted."""

HOSTS_MATTER = 0.002
"""The share of its peak that a computation may save by temporaries in results' memory, for that to be thought of."""

DONATED_SHARE = 0.3
"""The share of the time for orders that keep donations, where there are any; the rest is for those that do without."""

SOLVING = 0.4
"""The share of the time for the search that goes into live bytes; the rest is for the gaps between buffers."""

PRICING, PRICE_SECONDS = 0.5, 0.5
"""How much of the time left goes into a bound where results' memory matters, and seconds for one set of prices."""

HOPE = 1.1
"""How much larger than what is of use a heap may be for walks to start from it: they seldom save more."""

NEAR = 1.05
"""How much larger than the smallest an order's heap may be for the walks to smaller ones to start from it as well."""


@dataclasses.dataclass(frozen=True, eq=False)
class Scheduled:
    """A program compiled in some order.

    Attributes:
      by: whose order it is.
      program: what was compiled; the same for all, but for the order of arguments and results.
      predicted_temp_bytes: what the model of XLA's heap said before; None where XLA chose the order itself.
    """

    by: str
    program: Program
    compiled: Compiled
    predicted_temp_bytes: int | None = None

    @property
    def temp_bytes(self) -> int:
        return self.compiled.temp_bytes

    @property
    def peak_bytes(self) -> int:
        return self.compiled.peak_bytes


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What the search came to.

    Attributes:
      best: the one with the lowest peak; XLA's default where none has a lower one.
      confirmed: all that were compiled, the default first.
      bound_bytes: no order's peak is lower; proved.
      seconds: of search, compiling apart.
      remark: what a reader should know about the search, or "".
    """

    best: Scheduled
    confirmed: tuple[Scheduled, ...]
    bound_bytes: int
    seconds: float
    remark: str

    @property
    def default(self) -> Scheduled:
        return self.confirmed[0]


def find_order(
    program: Program, build: Build, target: Target, seconds: float, progress: Progress = lambda line: None
) -> Found:
    """Looks for the order in which a program needs the least memory, and has XLA confirm it.

    Args:
      build: what is compiled, each time.
      seconds: of search; compiling comes on top.
    """
    confirmed = _in_xlas_orders(program, build, target, progress)
    start = time.perf_counter()
    module, *_ = known = [parse_module(s.compiled.module) for s in confirmed]
    default = confirmed[0].compiled
    enough = min(s.peak_bytes for s in confirmed) - WORTH * min(s.temp_bytes for s in confirmed)
    room = int(enough - default.peak_bytes + default.temp_bytes)
    share = DONATED_SHARE if module.donations else 1.0
    orders = settable = _Orders(module, known, share * seconds, progress)
    if module.donations:
        usable = room - default.alias_bytes
        settable = _Orders(without_donations(module), known, (1 - share) * seconds, progress, usable)
    spent = time.perf_counter() - start

    if module.donations and orders.ranked[0][1] < room and can_ask_otherwise(program, module):
        progress("confirming an order by which donations are kept")
        results = results_as_made(module, orders.ranked[0][0].sequences[module.entry_id])
        steered = compile_with_results(program, results, module, build, target, MEMORY_OPTIMISED)
        confirmed.append(Scheduled(STEERED, *steered))
    promising = [(order, temps) for order, temps in settable.ranked if temps < room - default.alias_bytes]
    if promising:
        progress(f"confirming {format_bytes(promising[0][1])} of temporaries, from {format_bytes(default.temp_bytes)}")
        confirmed += _confirmed(program, build, target, promising[:CONFIRMATIONS])
    bound = _peak_bound(default, orders.bound)
    if len(known) == 1 and min(s.peak_bytes for s in confirmed) * (1 - CLOSE) > bound:
        progress(f"compiling {program.name} in the order of {MEMORY}")
        confirmed.append(Scheduled(MEMORY, program, compile_program(program, build, target, MEMORY_OPTIMISED)))
    best = min(confirmed, key=lambda s: s.peak_bytes)  # of equals the first: XLA's default before all others
    return Found(best, tuple(confirmed), min(best.peak_bytes, bound), spent, orders.remark)


def _in_xlas_orders(program: Program, build: Build, target: Target, progress: Progress) -> list[Scheduled]:
    """The program in the default order, and in that of the memory-optimised scheduler.

    In the default one alone where the program is large: the other one takes long to compile, and may not be needed.
    """
    size = f"{len(program.eqns)} eqns"
    if program.is_large:
        progress(f"compiling {program.name} in XLA's own order ({size})")
        return [Scheduled(DEFAULT, program, compile_program(program, build, target))]
    progress(f"compiling {program.name} in XLA's own two orders ({size})")
    with ThreadPoolExecutor(1) as other:  # XLA compiles without the interpreter lock
        memory = other.submit(compile_program, program, build, target, MEMORY_OPTIMISED)
        default = compile_program(program, build, target)
        return [Scheduled(DEFAULT, program, default), Scheduled(MEMORY, program, memory.result())]


def _peak_bound(default: Compiled, temp_bound: int) -> int:
    """No order's peak is lower, whether donated arguments are written over or results get memory of their own.

    In memory of their own they may hold all temporaries, but are there themselves in the end.
    """
    donated = default.peak_bytes - default.temp_bytes + temp_bound
    if not default.alias_bytes:
        return donated
    apart = default.argument_bytes + default.constant_bytes + max(default.output_bytes, temp_bound)
    return min(donated, apart)


def _confirmed(
    program: Program, build: Build, target: Target, promising: Sequence[tuple[ModuleOrder, int]]
) -> list[Scheduled]:
    """The best of the orders that XLA could be given, compiled; with a warning where it could not.

    More than one only as far as XLA does not come to what was predicted.
    """
    confirmed: list[Scheduled] = []
    for order, predicted in promising:
        if confirmed and min(each.temp_bytes for each in confirmed) <= predicted:
            break
        made = _compile(program, build, target, order, predicted)
        if isinstance(made, str):
            warnings.warn(
                f"an order that was found for {program.name} could not be set inside XLA ({made}).",
                RuntimeWarning,
                stacklevel=4,
            )
            break
        confirmed.append(made)
    return confirmed


def _compile(program: Program, build: Build, target: Target, order: ModuleOrder, predicted: int) -> Scheduled | str:
    """The program in an order, or why XLA could not be given it."""
    try:
        with ordering(order.names, order.chained) as request:
            run = run_program(program)
            run.__name__ = program.name + request.token
            compiled = compile_flat(run, program, build, target)
    except Exception as error:  # XLA compiled the same in its own order: the order is at fault
        return str(error).partition("\n")[0]
    if not request.applied:
        return str(request.error or "its pass was not run")
    return Scheduled(OURS, program, given_back(compiled, program.donated), predicted)


def temporaries_at_least(module: bytes) -> int:
    """Bytes of temporaries that no order of a serialized module does without: a quick look, far from the best bound."""
    parsed = parse_module(module)
    entry = OrderingProblems(parsed).problem(parsed.entry, {})
    return max(0, touched_bound(entry.problem) - entry.host_bytes)


class _Orders:
    """The orders of a module's computations, callees first, and what they would need.

    Args:
      known: the module in XLA's own orders.
      usable: the heap has to be below that for an order to be of any use, and nobody asks for the bound; None where
        that is not known.
    """

    def __init__(
        self,
        module: Module,
        known: Sequence[Module],
        seconds: float,
        progress: Progress,
        usable: int | None = None,
    ) -> None:
        self._module, self._known, self._progress = module, known, progress
        self._usable = usable
        self._problems = OrderingProblems(module)
        self._until = time.perf_counter() + seconds
        self._held: dict[int, int] = {}  # by each computation, in its best order
        self._slack: dict[int, int] = {}  # how much less it may be able to do with
        self.remark = ""
        self.bound = 0
        self.ranked = self._ranked()

    def _ranked(self) -> list[tuple[ModuleOrder, int]]:
        """Orders of the module, each with its predicted bytes of temporaries, best first.

        With a chain and without: XLA's choice among equally large values is in one program better with it, in another
        one without.
        """
        chosen: dict[int, Sequence[str]] = {}
        for computation in self._problems.computations:
            problem = self._problems.problem(computation, self._held)
            orders = self._solved(problem)
            if computation is not self._module.entry:
                chosen[computation.id] = problem.sequence(orders[0])
        model, settable = HeapModel(self._module), not self._module.donations
        starts: list[tuple[int, Order, ModuleOrder]] = []
        for order, chained in itertools.product(orders, (False, True) if settable else (False,)):
            whole = ModuleOrder({**chosen, computation.id: problem.sequence(order)}, chained)
            starts.append((model.heap_bytes(whole), order, whole))
        starts.sort(key=lambda start: (start[0], start[2].chained))
        lowest, best, _ = starts[0]
        self._raise_bound(problem, best, (1 - WORTH) * lowest)
        ranked = [(whole, predicted) for predicted, _, whole in starts]
        hopeless = self._usable is not None and lowest > HOPE * self._usable
        if settable and not hopeless:  # of an order that can't be set, only the bound is of use
            near = [(order, whole) for predicted, order, whole in starts if predicted <= NEAR * lowest]
            ranked.insert(0, packed(model, problem, near, self.bound, self._until))
        return ranked

    def _solved(self, computation: ComputationOrder) -> list[Order]:
        """Orders of one computation, best first; what it holds, and may hold at the least, is noted down."""
        hints = self._hints(computation)
        hosts = computation.hosts if self._hosts_matter(computation) else None
        if hosts is None:
            solution = solve(computation.problem, SOLVING * self._left(), hints, self._progress)
            orders = list(solution.candidates)
        else:
            solution = solve(hosts.full, SOLVING * self._left(), list(map(hosts.with_ends, hints)), self._progress)
            orders = list(map(hosts.without_ends, solution.candidates))
        self.remark = self.remark or solution.remark
        bound = solution.lower_bound_bytes - computation.host_bytes - self._inner_slack(computation)
        held = computation.problem.peak(orders[0])
        self._held[computation.computation.id] = held
        self._slack[computation.computation.id] = held - max(0, bound)
        self.bound = max(0, bound)
        return list(dict.fromkeys([*orders, *hints]))

    def _raise_bound(self, computation: ComputationOrder, order: Order, enough: float) -> None:
        """Proves more of the last computation, by other prices for results' memory, until it is enough."""
        hosts = computation.hosts
        if hosts is None or self._usable is not None:
            return
        slack = self._inner_slack(computation)
        order = hosts.with_ends(order)
        until = time.monotonic() + PRICING * self._left()
        self.bound = max(self.bound, bound_by_nodes(hosts, order, math.ceil(enough) + slack, until) - slack)
        for prices in hosts.prices():
            left = until - time.monotonic()
            if left < 0 or self.bound >= enough:
                break
            solution = solve(hosts.priced(prices), min(PRICE_SECONDS, left), [order])
            self.bound = max(self.bound, solution.lower_bound_bytes - sum(prices) - slack)

    def _hints(self, computation: ComputationOrder) -> list[Order]:
        """The orders of XLA's own schedulers, where they are orders of the same instructions."""
        hints = [computation.default]
        for module in self._known:
            order = computation.order_of([i.name for c in module.computations for i in c.instructions])
            if order is not None and computation.problem.is_order(order):
                hints.append(order)
        return list(dict.fromkeys(hints))

    def _hosts_matter(self, computation: ComputationOrder) -> bool:
        return computation.host_bytes > HOSTS_MATTER * computation.problem.peak(computation.default)

    def _inner_slack(self, computation: ComputationOrder) -> int:
        return max((self._slack.get(c, 0) for node in computation.nodes for c in node.called), default=0)

    def _left(self) -> float:
        return max(0.0, self._until - time.perf_counter())
