"""The best order that XLA confirms: its own two schedulers' against those that the solver finds."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence

from ..compile import Build, Compiled, compile_program
from ..hlo.module import Module, parse_module
from ..program import Program
from ..sizes import format_bytes
from ..target import Target
from .confirm import (
    DEFAULT,
    MEMORY,
    MEMORY_OPTIMISED,
    STEERED,
    Progress,
    Scheduled,
    confirmed_by_xla,
    in_two,
    in_xlas_orders,
)
from .donated import can_ask_otherwise, compile_with_results, results_as_made, without_donations
from .ease import eased
from .halves import Halves, halves
from .orders import Orders
from .pack import CLOSE, WORTH
from .remade import remade, worth_remaking
from .thin import thinned

CONFIRMATIONS = 2
"""How many orders are compiled at the most: the second where the first does not come to what was predicted."""

DONATED_SHARE = 0.3
"""The share of the time for orders that keep donations, where there are any; the rest is for those that are set."""


EASING = 0.08
"""The share of the time for putting instructions back to where XLA had them."""


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
    search = _Search(in_xlas_orders(program, build, target, progress), build, target, progress)
    if search.module.donations:
        orders = search.keeping_donations(DONATED_SHARE * seconds)
        search.without_donations((1 - DONATED_SHARE) * seconds)
    else:
        orders = search.setting(seconds)
    bound = _peak_bound(search.default.compiled, orders.bound)
    if len(search.xlas) == 1 and search.lowest * (1 - CLOSE) > bound:
        progress(f"compiling {program.name} in the order of {MEMORY}")
        other = compile_program(program, build, target, MEMORY_OPTIMISED)
        search.confirmed.append(Scheduled(MEMORY, program, other))
    best = min(search.confirmed, key=lambda s: s.peak_bytes)  # of equals the first: XLA's default before all others
    return Found(best, tuple(search.confirmed), min(best.peak_bytes, bound), search.spent, orders.remark)


def _peak_bound(default: Compiled, temp_bound: int) -> int:
    """No order's peak is lower, whether donated arguments are written over or results get memory of their own.

    In memory of their own they may hold all temporaries, but are there themselves in the end.
    """
    donated = default.peak_bytes - default.temp_bytes + temp_bound
    if not default.alias_bytes:
        return donated
    apart = default.argument_bytes + default.constant_bytes + max(default.output_bytes, temp_bound)
    return min(donated, apart)


class _Search:
    """Adds up what is compiled.

    Attributes:
      confirmed: what was compiled, XLA's default order first.
      xlas: those in XLA's own orders.
      enough: a peak that would be worth something.
      spent: seconds of search.
    """

    def __init__(self, confirmed: list[Scheduled], build: Build, target: Target, progress: Progress) -> None:
        self.confirmed = confirmed
        self.xlas = tuple(confirmed)
        self.module = confirmed[0].compiled.parsed
        self.enough = int(self.lowest - WORTH * min(s.temp_bytes for s in confirmed))
        self.spent = 0.0
        self._build, self._target, self._progress = build, target, progress

    @property
    def default(self) -> Scheduled:
        return self.confirmed[0]

    @property
    def lowest(self) -> int:
        return min(s.peak_bytes for s in self.confirmed)

    def keeping_donations(self, seconds: float) -> Orders:
        """Asks for results in the order in which they had best be made; donated arguments keep to their results."""
        orders = self._orders(self.xlas, seconds)
        order, predicted = orders.ranked[0]
        program = self.default.program
        if predicted < self._room(self.default) and can_ask_otherwise(program, self.module):
            self._progress("confirming an order by which donations are kept")
            results = results_as_made(self.module, order.sequences[self.module.entry_id])
            steered = compile_with_results(program, results, self.module, self._build, self._target, MEMORY_OPTIMISED)
            self.confirmed.append(Scheduled(STEERED, *steered))
        return orders

    def without_donations(self, seconds: float) -> None:
        """Sets an order for what comes before the donated arguments are written over; for all of it where it must."""
        if any(self._in_two(cut, seconds) for cut in halves(self.default.program, self.module)):
            return
        room = self._room(self.default) - self.default.compiled.alias_bytes
        orders = self._orders(self.xlas, seconds, room, forgetting=True)
        self.confirmed += self._set(self.default.program, orders, room)

    def setting(self, seconds: float) -> Orders:
        """Sets an order for a program without donations."""
        orders = self._orders(self.xlas, seconds)
        self.confirmed += self._set(self.default.program, orders, self._room(self.default))
        return orders

    def _in_two(self, cut: Halves, seconds: float) -> bool:
        """Sets an order for the first half alone. False where two halves need more, or would not do the same."""
        if self.default.compiled.argument_bytes + cut.handed_bytes >= self.enough:
            return False
        self._progress(
            f"compiling {self.default.program.name} in two: before donated arguments are written over, and that"
        )
        second = Scheduled(DEFAULT, cut.second, compile_program(cut.second, self._build, self._target))
        if second.peak_bytes >= self.enough:
            return False
        firsts = in_xlas_orders(cut.first, self._build, self._target, self._progress)
        if cut.joined(firsts[0].compiled, second.compiled, self.default.compiled) is None:
            return False
        room = min(self._room(firsts[0]), *(s.temp_bytes for s in firsts))
        firsts += self._set(cut.first, self._orders(firsts, seconds, room), room)
        first = min(firsts, key=lambda s: s.peak_bytes)
        joined = cut.joined(first.compiled, second.compiled, self.default.compiled)
        if joined is not None:
            self.confirmed.append(in_two(first, second, joined, self.default.program))
        return True

    def _orders(
        self, xlas: Sequence[Scheduled], seconds: float, usable: int | None = None, forgetting: bool = False
    ) -> Orders:
        """Orders of a program that was compiled in XLA's own ones.

        Args:
          forgetting: its donations, as XLA does when an order is set.
        """
        default = xlas[0].compiled
        remake = functools.cache(functools.partial(_remade, default, forgetting))
        again = worth_remaking(remake(frozenset()), default.temp_bytes)
        known = [remake(again), *(_remade(s.compiled, forgetting, again) for s in xlas[1:])]
        start = time.perf_counter()
        orders = Orders(known[0], known, again, (1 - EASING) * seconds, self._progress, usable)
        if orders.is_settable:
            best, *rest = orders.ranked
            order, predicted = thinned(remake, *best) if again else best
            order, predicted = eased(remake(order.remade), order, predicted, EASING * seconds)
            orders.ranked = [(order, predicted), *(other for other in rest if other[1] >= predicted)]
        self.spent += time.perf_counter() - start
        return orders

    def _room(self, compiled: Scheduled) -> int:
        """Bytes of temporaries by which a program would come to what is enough."""
        return self.enough - compiled.peak_bytes + compiled.temp_bytes

    def _set(self, program: Program, orders: Orders, room: int) -> list[Scheduled]:
        """A program in the best of some orders, as XLA confirms them; nothing where none of them has room."""
        promising = [(order, temps) for order, temps in orders.ranked if temps < room]
        if not promising:
            return []
        self._progress(f"confirming {format_bytes(promising[0][1])} of temporaries")
        return confirmed_by_xla(program, self._build, self._target, promising[:CONFIRMATIONS])


def _remade(compiled: Compiled, forgetting: bool, names: frozenset[str]) -> Module:
    """A compiled program's module in which some instructions run once for each reader."""
    module = parse_module(remade(compiled.module, names)) if names else compiled.parsed
    return without_donations(module) if forgetting else module
