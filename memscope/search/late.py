"""The program as written, with factors that are known late applied after the sums: loops need not run twice."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from ..algebra import Scaled, scale_late
from ..program import Program
from .candidate import Found

if TYPE_CHECKING:
    from .search import Search

WORTH = 1.05
"""How much extra work loops have to take for it to be tried."""


class Late:
    """The program of one search with its late factors taken out of the sums."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def better_than(self, loops: Found, limit: int, portable: bool) -> Found | None:
        """Its loops, where those of the program as written do some work twice and these do less of it."""
        candidate, before = loops.candidate, self._search.original_estimate
        if candidate is None or candidate.estimate.work <= WORTH * before.work or self._beside is None:
            return None
        found, fits = self._beside.rewritten(limit, portable)
        if not fits or found.candidate is None or found.candidate.estimate.work >= candidate.estimate.work:
            return None
        scaled = (*self._scaled[1], *found.candidate.scaled)
        return dataclasses.replace(found, candidate=dataclasses.replace(found.candidate, scaled=scaled))

    @functools.cached_property
    def _scaled(self) -> tuple[Program, tuple[Scaled, ...]]:
        return scale_late(self._search.program, self._search.target)

    @functools.cached_property
    def _beside(self) -> Search | None:
        program, scaled = self._scaled
        return self._search.beside(program, "with late factors after the sums") if scaled else None
