"""The orders of a module's computations, callees first, and what XLA would need for them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence

from ..hlo.module import Module, parse_module
from .bound import touched_bound
from .confirm import Progress
from .from_hlo import ComputationOrder, OrderingProblems
from .hosts import bound_by_cases, bound_by_nodes
from .pack import WORTH, packed
from .predict import HeapModel, ModuleOrder
from .problem import Order
from .remade import remade, worth_remaking
from .solve import solve

HOSTS_MATTER = 0.002
"""The share of its peak that a computation may save by temporaries in results' memory, for that to be thought of."""

SOLVING = 0.4
"""The share of the time for the search that goes into live bytes; the rest is for the gaps between buffers."""

PRICING, PRICE_SECONDS, CASES_SECONDS = 0.5, 0.5, 0.3
"""How much of the time left goes into a bound where results' memory matters, and seconds for one set of prices, and for
telling cases apart."""

HOPE = 1.1
"""How much larger than what is of use a heap may be for walks to start from it: they seldom save more."""

NEAR = 1.05
"""How much larger than the smallest an order's heap may be for the walks to smaller ones to start from it as well."""


def temporaries_at_least(module: bytes) -> int:
    """Bytes of temporaries that no order of a serialized module does without: a quick look, far from the best bound."""
    plain = parse_module(module)
    parsed = parse_module(remade(module, worth_remaking(plain, 0)))
    entry = OrderingProblems(parsed).problem(parsed.entry, {})
    return max(0, touched_bound(entry.problem) - entry.host_bytes)


class Orders:
    """The orders of a module's computations, callees first, and what they would need.

    Args:
      known: the module in XLA's own orders.
      remade: what runs once for each reader in these modules, but not in the one that XLA makes.
      usable: the heap has to be below that for an order to be of any use, and nobody asks for the bound; None where
        that is not known.

    Attributes:
      ranked: orders of the module, each with its predicted bytes of temporaries, best first.
      bound: bytes of temporaries that no order does without.
      seconds: that it took.
      remark: what a reader should know about the search, or "".
    """

    def __init__(
        self,
        module: Module,
        known: Sequence[Module],
        remade: frozenset[str],
        seconds: float,
        progress: Progress,
        usable: int | None = None,
    ) -> None:
        self._module, self._known, self._remade, self._progress = module, known, remade, progress
        self._usable = usable
        self._problems = OrderingProblems(module)
        start = time.perf_counter()
        self._until = start + seconds
        self._held: dict[int, int] = {}  # by each computation, in its best order
        self._slack: dict[int, int] = {}  # how much less it may be able to do with
        self.remark = ""
        self.bound = 0
        self.ranked = self._ranked()
        self.seconds = time.perf_counter() - start

    @property
    def is_settable(self) -> bool:
        """Whether XLA takes an order for the module."""
        return not self._module.donations

    def _ranked(self) -> list[tuple[ModuleOrder, int]]:
        """The orders that are worth a look.

        With a chain and without: XLA's choice among equally large values is in one program better with it, in another
        one without.
        """
        chosen: dict[int, Sequence[str]] = {}
        for computation in self._problems.computations:
            problem = self._problems.problem(computation, self._held)
            orders = self._solved(problem)
            if computation is not self._module.entry:
                chosen[computation.id] = problem.sequence(orders[0])
        model, settable = HeapModel(self._module), self.is_settable
        starts: list[tuple[int, Order, ModuleOrder]] = []
        for order, chained in itertools.product(orders, (False, True) if settable else (False,)):
            whole = ModuleOrder({**chosen, computation.id: problem.sequence(order)}, chained, self._remade)
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
        until = min(until, time.monotonic() + CASES_SECONDS)
        self.bound = bound_by_cases(hosts, order, self.bound + slack, math.ceil(enough) + slack, until) - slack

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
