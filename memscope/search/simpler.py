"""The program without what need not be computed: the same values by cheaper primitives."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from ..algebra import Simplification, simplify
from ..cost import estimate
from ..program import Program
from .candidate import Candidate, Found

if TYPE_CHECKING:
    from .search import Search


class Simpler:
    """The program of one search as the rules of algebra make it."""

    def __init__(self, search: Search) -> None:
        self._search = search

    @functools.cached_property
    def search(self) -> Search | None:
        """The search over it; None where no rule knows a cheaper way."""
        program, found = self._simplification
        for each in found:
            self._search.progress(f"{each.op}{f' at {each.source}' if each.source else ''}: {each.why}")
        return self._search.beside(program, "without what need not be made") if found else None

    @functools.cached_property
    def _simplification(self) -> tuple[Program, tuple[Simplification, ...]]:
        return simplify(self._search.program, self._search.target)

    def described(self, found: Found) -> Found:
        """What that search found, as a rewrite of the program as written."""
        closed = found.program.closed
        candidate = found.candidate or Candidate(closed, estimate(closed, self._search.machine), None)
        simplified = (*self._simplification[1], *candidate.simplified)
        return dataclasses.replace(found, candidate=dataclasses.replace(candidate, simplified=simplified))
