"""Loops across two axes: one step by step, and in each step another one in chunks that caches hold.

An attention head at a time, and in it some queries: as many rows in each product as in a chunk of all heads, in a
fraction of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..chunks import largest_step
from ..cost import estimate
from ..inside import Place, inner_programs, with_bodies
from ..structures import Structure
from .candidate import Candidate

if TYPE_CHECKING:
    from .search import Search

CROSSED, CROSSED_SLOWER, CROSSED_EQNS = 2, 2.0, 300
"""How many axes are tried with another one inside, how much longer they may take alone, and up to how many eqns."""


class Crossings:
    """Those of one search, each traced once."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._steps: dict[Candidate, dict[Place, Search]] = {}
        self._made: dict[tuple[Candidate, int], Candidate | None] = {}

    def around(self, best: Candidate, structures: Sequence[Structure]) -> list[Candidate]:
        """The candidates, where the best one along a single axis has chunks that no cache holds."""
        search, machine = self._search, self._search.machine
        if search.depth or best.chunk_bytes <= machine.cached or len(search.program.eqns) > CROSSED_EQNS:
            return []
        large = (s for s in structures if largest_step(s.streaming) > machine.cached)
        steps = [search.candidate(s, search.chunk_sizes[0]) for s in large]
        steps = [c for c in steps if c.estimate.seconds <= CROSSED_SLOWER * best.estimate.seconds]
        outers = sorted(steps, key=lambda c: c.estimate.seconds)[:CROSSED]
        sizes = [size for size in machine.chunk_sizes if machine.usual_chunk / 4 <= size <= 2 * machine.cached]
        return [crossed for outer in outers for size in sizes if (crossed := self._across(outer, size)) is not None]

    def _across(self, outer: Candidate, chunk_bytes: int) -> Candidate | None:
        """`outer` with its loops' bodies in chunks along what is fastest there."""
        key = outer, chunk_bytes
        if key not in self._made:
            self._made[key] = self._make(outer, chunk_bytes)
        return self._made[key]

    def _make(self, outer: Candidate, chunk_bytes: int) -> Candidate | None:
        search = self._search
        program = search.program.rewritten(outer.closed)
        if outer not in self._steps:
            self._steps[outer] = {place: search.within(body) for place, body in inner_programs(program).items()}
        inner: dict[Place, Candidate] = {}
        for place, body in self._steps[outer].items():
            cut = [body.candidate(structure, chunk_bytes) for structure in body.grow(None)]
            if cut:
                inner[place] = min(cut, key=lambda c: c.estimate.seconds)
        if not inner:
            return None
        made = with_bodies(program, search.target, {place: c.closed for place, c in inner.items()})
        return Candidate(
            closed=made.closed,
            estimate=estimate(made.closed, search.machine),
            structure=outer.structure,
            chunk_bytes=chunk_bytes,
            chunks=outer.chunks,
            bodies=tuple(inner.values()),
            program=made,
        )
