"""The program as written, with some of it computed at another point, so that loops need not run twice."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..algebra import scale_late
from ..program import Program, aval_of
from ..stream.early import pick_early
from .candidate import Found, Rearranged

if TYPE_CHECKING:
    from .search import Search

WAYS = (
    (scale_late, "scaled after it is summed up, not term by term, as its factor is only known at the end"),
    (pick_early, "its rows are computed by themselves once their numbers are known, not all rows a second time"),
)
"""What makes another program of one, of which eqns, and what that is for a person."""

FORM = "rearranged"
"""What the program of such a search is; it is not rearranged again."""

WORTH = 1.05
"""How much extra work loops have to take for it to be tried."""


class Rearrangement:
    """The program of one search, rearranged in all ways that there are."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def better_than(self, loops: Found, limit: int, portable: bool) -> Found | None:
        """Its loops, where those of the program as written do some work twice and these do less of it."""
        candidate, before = loops.candidate, self._search.original_estimate
        done = self._search.form == FORM
        if done or candidate is None or candidate.estimate.work <= WORTH * before.work or self._beside is None:
            return None
        found, fits = self._beside.rewritten(limit, portable)
        if not fits or found.candidate is None or found.candidate.estimate.work >= candidate.estimate.work:
            return None
        rearranged = (*self._rearranged[1], *found.candidate.rearranged)
        return dataclasses.replace(found, candidate=dataclasses.replace(found.candidate, rearranged=rearranged))

    @functools.cached_property
    def _rearranged(self) -> tuple[Program, tuple[Rearranged, ...]]:
        program = self._search.program
        done: list[Rearranged] = []
        for way, why in WAYS:
            other, eqns = way(program, self._search.target)
            done += _described(program, eqns, why)
            program = other
        return program, tuple(done)

    @functools.cached_property
    def _beside(self) -> Search | None:
        program, rearranged = self._rearranged
        return self._search.beside(program, FORM) if rearranged else None


def _described(program: Program, eqns: Iterable[int], why: str) -> Iterator[Rearranged]:
    for index in eqns:
        eqn = program.eqns[index]
        aval = aval_of(eqn.outvars[0])
        yield Rearranged(tuple(aval.shape), str(aval.dtype), eqn.primitive.name, program.sources[index], why)
