"""The program as written, with some of it dropped early and computed again late: less is kept across the peak."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..recompute import Recomputation, most_held, recomputations
from .candidate import Candidate, Found

if TYPE_CHECKING:
    from .search import Search

MARGIN = 0.97
"""Of what is held at once, how much may be left for it to be worth computing any of it twice."""

TWICE_HOPE = 1.1
"""How much less than by the share of bytes that is held what computes twice may take, and is compiled all the same."""


class Twice:
    """The program of one search with some of it computed twice, in as many ways as a minimum cut finds."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._searches: dict[Recomputation, Search] = {}

    def within(self, limit: int, portable: bool) -> Found | None:
        """The least work that fits, or the lowest where none does; what an estimate rules out takes no compile."""
        lowest: Found | None = None
        for each in self._near(limit):
            found = self._found(each, limit, portable)
            if lowest is None or found.peak_bytes < lowest.peak_bytes:
                lowest = found
            if found.peak_bytes <= limit:
                break
        return lowest

    def lowest(self) -> Found | None:
        """What keeps the least, in XLA's own order; None where nothing is worth computing twice."""
        return self._found(self._ways[-1], 1, portable=True) if self._ways else None

    @functools.cached_property
    def _ways(self) -> Sequence[Recomputation]:
        """Those that should take less, by work; the bodies of loops have none."""
        search = self._search
        if search.depth:
            return ()
        found = recomputations(search.program, search.target)
        return tuple(r for r in found if self._share(r) <= MARGIN and search.affords(r.estimate))

    def _share(self, way: Recomputation) -> float:
        return way.held_bytes / max(1, most_held(self._search.program))

    def _near(self, limit: int) -> list[Recomputation]:
        """Some that may fit, from the least work to the lowest; what is compiled already is no guess."""
        fitting = [way for way in self._ways if self._at_least(way) <= limit]
        return list(dict.fromkeys([*fitting[:1], *fitting[len(fitting) // 2 :][:1], *fitting[-1:]]))

    def _at_least(self, way: Recomputation) -> int:
        """The peak of one of them, where that is known; a guess on the low side before it is compiled."""
        search = self._search
        if way in self._searches:
            return self._searches[way].lowest_in_any_order
        return search.fixed_bytes + int(self._share(way) * search.original.temp_bytes / TWICE_HOPE)

    def _found(self, way: Recomputation, limit: int, portable: bool) -> Found:
        """One of them in XLA's order, or in one of our own where only that fits."""
        if way not in self._searches:
            self._searches[way] = self._search.beside(way.program, "with some of it computed twice")
        found = self._searches[way].unsplit(limit, portable)
        candidate = found.candidate or Candidate(way.program.closed, way.estimate, None)
        recomputed = (*way.recomputed, *candidate.recomputed)
        return dataclasses.replace(found, candidate=dataclasses.replace(candidate, recomputed=recomputed))
