"""The program as written, in another order: less is alive at once, and nothing is computed twice."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from jax.extend import core as jex_core

from ..barriers import Ordering, depth_first, ordering, run_in_order
from ..compile import compile_flat
from ..cost import estimate
from ..schedule.orders import temporaries_at_least
from ..schedule.search import find_order
from ..trace import trace_flat
from .candidate import Candidate, Found

if TYPE_CHECKING:
    from .search import Search

ORDER_SECONDS = 2.0
"""For the search of an order, where one could do."""

ORDER_HOPE = 1.3
"""Up to how many times the limit an order of our own is estimated to take and is compiled all the same."""


class Reordered:
    """The program of one search in an order of our own: of its HLO instructions, or of its eqns on a GPU."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def within(self, limit: int) -> Found | None:
        """It, where it fits; a limit that no order reaches takes no compile to see."""
        if self._search.depth or self._least > limit:
            return None
        return self._best if self._best is not None and self._best.peak_bytes <= limit else None

    @property
    def known_bytes(self) -> float:
        """Its peak, where it has been compiled; no bound otherwise."""
        best = self.__dict__.get("_best")
        return math.inf if best is None else best.peak_bytes

    @functools.cached_property
    def _least(self) -> float:
        """Bytes that the call takes in whatever order; of barriers on a GPU, a guess on the low side."""
        search = self._search
        if search.target.platform == "cpu":
            return search.fixed_bytes + temporaries_at_least(search.original.module)
        if self._stretches is None:
            return math.inf
        jaxpr = search.program.jaxpr.replace(eqns=[search.program.eqns[i] for i in self._stretches.order])
        predicted = estimate(jex_core.ClosedJaxpr(jaxpr, search.program.closed.consts), search.machine).temp_bytes
        return (search.fixed_bytes + predicted) / ORDER_HOPE

    @functools.cached_property
    def _best(self) -> Found | None:
        """None where that takes no less."""
        found = self._in_schedule() if self._search.target.platform == "cpu" else self._in_stretches()
        lowest = self._search.lowest_as_written.peak_bytes
        return found if found is not None and found.peak_bytes < lowest else None

    def _in_schedule(self) -> Found | None:
        """With its HLO instructions in the order that needs the least (OLLA, arXiv 2210.12924, section 3.2)."""
        search = self._search
        found = find_order(search.program, search.exact, search.target, ORDER_SECONDS, search.progress)
        search.effort.compiles(search.program.jaxpr)
        # One with its results in another order is another program, whose arguments a plan does not know; and a plan is
        # one executable.
        usable = (s for s in found.confirmed if s.program is search.program and not s.halves)
        best = min(usable, key=lambda s: s.peak_bytes)
        if best is found.default:
            return None
        candidate = Candidate(search.program.closed, search.original_estimate, None, scheduled_by=best.by)
        return Found(search.program, candidate, best.compiled)

    def _in_stretches(self) -> Found | None:
        """With barriers between its eqns where large values die."""
        search, order = self._search, self._stretches
        if order is None:
            return None
        closed = trace_flat(run_in_order(search.program, order), search.program, search.target.platform)
        search.progress(f"compiling with {len(order.stretches)} stretches of it one after another")
        search.effort.compiles(closed.jaxpr)
        run = jex_core.jaxpr_as_fun(closed)
        compile_it = functools.partial(compile_flat, run, search.program, search.exact, search.target)
        compiled = search.unless_refused(compile_it, search.exact)
        return Found(search.program, Candidate(closed, search.original_estimate, None, order=order), compiled)

    @functools.cached_property
    def _stretches(self) -> Ordering | None:
        program = self._search.program
        return ordering(program, depth_first(program)) if self._search.target.platform == "cuda" else None
