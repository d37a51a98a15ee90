"""The search: which intermediates to stream, in what chunks, so that the program fits.

Seeds are the largest live intermediates, each along each of its axes. From a seed the rules give all that
flows along the same axis, and so the loops; an estimate ranks them, XLA confirms the best. A round that
does not reach the limit keeps what it found and goes on from there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jax.extend import core as jex_core

from ..chunks import chunks_of
from ..compile import Build, Compiled, builds_of, compile_flat, compile_program, compiled_or_refused
from ..cost import Estimate, estimate
from ..inside import Moved, Place, inner_programs, move_in, move_slices, moved_arrays, with_bodies
from ..library import suits_library
from ..machine import machine_of
from ..program import Program, nbytes
from ..reasons import Hindrance, hindrances
from ..sizes import format_bytes
from ..stream import Fold, LoopPlan, rewrite
from ..stream.reductions import Form, reduces_lanes
from ..structures import Structure, Structures
from ..target import Target
from ..trace import trace_flat
from .candidate import LIBRARY_GAIN, Candidate, Effort, Found
from .crossing import Crossings
from .order import Reordered
from .rearranged import Rearrangement
from .resident import ResidentRows
from .simpler import Simpler
from .twice import Twice

Var = jex_core.Var
Hints = dict[Var, list[int]]
Progress = Callable[[str], None]

ROUNDS, SHORTLIST, CONFIRMATIONS = 4, 3, 6

CAPTURED_FROM = 256 << 10
"""Bytes of captured arrays that are worth a word, as XLA evaluates at compile time what depends on them alone."""

DEEPEST = 2
"""How many loops inside one another are taken apart."""

BODY_SHARES = (0.6, 0.25, 0.0)
"""How much of the room under a limit is tried for what happens inside a loop."""

WORK_BUDGET, WORK_FOR_FREE = 50.0, 0.05
"""How many times as long a rewritten function may take, and how many seconds nobody minds: both estimated."""

LIBRARY_TRIES = 3
"""How many candidates are tried in the plain build."""

MARGIN = 0.97
"""How much of the limit an estimate may fill before it is not even tried."""


MUCH_FASTER, HOPE = 1.3, 2.0
"""How much faster a candidate has to look to be compiled though it should take up to so many times the limit."""


class Search:
    """Everything known so far about shrinking one program on one target; asked for one limit after another."""

    def __init__(
        self,
        program: Program,
        target: Target,
        progress: Progress = lambda line: None,
        depth: int = 0,
        effort: Effort | None = None,
        form: str = "as written",
    ) -> None:
        self.program = program
        self.form = form
        self.depth = depth
        self.effort = effort or Effort()
        self.target = target
        self.machine = machine_of(target)
        self.exact, *others = builds_of(target)
        self.library = next(iter(others), None)
        self.progress = progress
        self._hopeless_below = 0
        self._nests: dict[Candidate, Search] = {}
        self._outer: dict[tuple[tuple[Place, Candidate], ...], Search] = {}
        self._confirmed: dict[tuple[Candidate, Build], Found] = {}
        self._by_chunks: dict[tuple[Structure, Form, tuple[tuple[LoopPlan, int], ...]], Candidate] = {}
        self._candidates: dict[tuple[Structure, int, Form], Candidate] = {}
        self._crossings = Crossings(self)
        self._reordered = Reordered(self)
        self._twice = Twice(self)
        self._resident = ResidentRows(self)
        self._rearrangement = Rearrangement(self)
        self._simpler = Simpler(self)

    def within(self, body: Program) -> Search:
        """A search over what happens inside one of the program's loops or branches."""
        return Search(body, self.target, self.progress, self.depth + 1, self.effort)

    def beside(self, program: Program, form: str) -> Search:
        """A search over another program that computes the same."""
        return Search(program, self.target, self.progress, self.depth, self.effort, form)

    # The program as written.

    @functools.cached_property
    def builds(self) -> dict[Build, Compiled]:
        """The program as written, in each build of the target."""
        self.progress(f"compiling {self.program.name} {self.form} ({len(self.program.eqns)} eqns)")
        self.effort.compiles(self.program.jaxpr)
        captured = sum(nbytes(v) for v in self.program.jaxpr.constvars)
        if captured > CAPTURED_FROM:
            self.progress(
                f"{format_bytes(captured)} of arrays that the function captures are compiled in as constants, which "
                "can take XLA minutes: pass them as arguments instead"
            )
        with ThreadPoolExecutor(2) as pool:
            jobs = {b: pool.submit(compile_program, self.program, b, self.target) for b in builds_of(self.target)}
            return {build: self.unless_refused(job.result, build) for build, job in jobs.items()}

    def unless_refused(
        self, compile_it: Callable[[], Compiled], build: Build, rewritten: Estimate | None = None
    ) -> Compiled:
        """What `compile_it` makes of the program or a rewritten form; what fits nowhere where XLA refuses it."""
        temp_bytes = (rewritten or self.original_estimate).temp_bytes
        compiled = compiled_or_refused(compile_it, self.program, build, temp_bytes)
        if compiled.refused is not None:
            self.progress(f"{compiled.refused}: going on without it")
        return compiled

    @property
    def original(self) -> Compiled:
        return self.builds[self.exact]

    @functools.cached_property
    def original_estimate(self) -> Estimate:
        return estimate(self.program.closed, self.machine)

    def as_written(self, limit: int) -> Found | None:
        """The program unchanged, where one of its builds fits.

        The reference build comes first, as its account is exact; not where it has to materialise what the
        plain build fuses, which makes it slow too.
        """
        exact, *others = self.builds.values()
        smaller = [build for build in others if 2 * build.temp_bytes < exact.temp_bytes]
        order = [*smaller, exact, *(build for build in others if build not in smaller)]
        return next((Found(self.program, None, build) for build in order if build.bound_bytes <= limit), None)

    def _fastest_build(self, limit: int) -> Found | None:
        """The program unchanged, in the plain build where its library suits it."""
        plain = None if self.library is None else self.builds[self.library]
        if plain and plain.bound_bytes <= limit and suits_library(self.program.closed, self.original_estimate):
            return Found(self.program, None, plain)
        return self.as_written(limit)

    # Under a limit.

    def run(self, limit: int, portable: bool = False) -> tuple[Found, bool]:
        """The best that fits, or the lowest that can be reached; and whether it fits.

        Args:
          portable: without an order of instructions that only an executable of this process can have.
        """
        unchanged = self.as_written(limit)
        if unchanged is not None:
            return unchanged, True
        if not portable:
            ordered = self._reordered.within(limit)
            if ordered is not None:
                return ordered, True
        if self._simpler.search is not None:
            simpler, fits = self._simpler.search.run(limit, portable)
            return self._simpler.described(simpler), fits
        found, fits = self.rewritten(limit, portable)
        return (found, fits) if fits or portable else (self.floor, False)

    def unsplit(self, limit: int, portable: bool) -> Found:
        """The program as it is, in XLA's order or in one that fits, whether it fits or not."""
        ordered = None if portable else self._reordered.within(limit)
        return self.as_written(limit) or ordered or self.lowest_as_written

    @property
    def lowest_in_any_order(self) -> int:
        """Bytes of its peak as it is, so far as orders of it have been compiled."""
        return int(min(self.lowest_as_written.peak_bytes, self._reordered.known_bytes))

    def rewritten(self, limit: int, portable: bool) -> tuple[Found, bool]:
        """The same by loops, or where those don't do by computing some of it twice."""
        if "_portable_floor" in self.__dict__ and self._portable_floor.peak_bytes > limit:
            return self._portable_floor, False
        best, fits = self._descend(limit)
        if fits:
            best = self._fastest_known(best, limit)
            best = self._rearrangement.better_than(best, limit, portable) or self._resident.beside(best, limit)
            return self._twice.faster_than(best, limit, portable) or best, True
        for way in (self._inside, functools.partial(self._twice.within, portable=portable), self._nested):
            found = way(limit)
            if found is not None and found.peak_bytes <= limit:
                return found, True
        if self._portable_floor.peak_bytes > limit:
            return self._portable_floor, False
        # The way down that looks best for this limit ended above it; the one to the floor does not.
        candidate = self._portable_floor.candidate
        if candidate is None or candidate.structure is None or candidate.bodies:
            return self._portable_floor, True
        again = self._best_of([candidate.structure], limit)
        return (again if again.peak_bytes <= limit else self._portable_floor), True

    def _fastest_known(self, best: Found, limit: int) -> Found:
        """The best under a limit, or what was found for another one where that fits too and looks faster."""
        known = [f for f in self._confirmed.values() if f.peak_bytes <= limit and f.candidate is not None]
        return min((best, *known), key=lambda found: _bucket(found.seconds))

    @functools.cached_property
    def floor(self) -> Found:
        """The lowest that can be reached."""
        if self._simpler.search is not None:
            return self._simpler.described(self._simpler.search.floor)
        ordered = self._reordered.within(self._portable_floor.peak_bytes - 1)
        return self._portable_floor if ordered is None else ordered

    @functools.cached_property
    def _portable_floor(self) -> Found:
        """The lowest that can be reached in XLA's own order."""
        lowest, _ = self._descend(1)
        others = [self._inside(1), self._nested(1), self._twice.lowest()]
        found = (lowest, *self._confirmed.values(), *(other for other in others if other is not None))
        return min(found, key=lambda found: found.peak_bytes)

    # Inside loops and branches.

    @functools.cached_property
    def _bodies(self) -> tuple[Program, dict[Place, Search]]:
        """The program with large loop constants moved into the bodies, and a search for each body worth one."""
        worth = self._worth
        moved = move_slices(move_in(self.program, self.target, worth), self.target, worth)
        bodies = {
            place: self.within(body)
            for place, body in inner_programs(moved).items()
            if largest_value(body.jaxpr) > worth
        }
        return moved, bodies

    @property
    def _worth(self) -> int:
        """Bytes from which an array that a loop reads, or makes, is worth a look."""
        return max(1, self.original.temp_bytes // 32)

    def _inside(self, limit: int) -> Found | None:
        """The best with the bodies of loops and branches rewritten; None where there is none worth it."""
        if self.effort.is_over:
            return None
        moved, bodies = self._bodies
        lowest: Found | None = None
        for share in BODY_SHARES if bodies else (0.0,):
            room = int(share * (limit - self.fixed_bytes))
            made = {place: search._body_within(room) for place, search in bodies.items()}
            rewritten = {place: candidate for place, candidate in made.items() if candidate is not None}
            if not rewritten and moved is self.program:
                continue
            if self.effort.is_over and lowest is not None:
                break
            outer = self._with_bodies(rewritten)
            if not self.affords(outer.original_estimate):
                continue
            found = outer._around(limit, tuple(rewritten.values()), moved_arrays(self.program, self._worth))
            if lowest is None or found.peak_bytes < lowest.peak_bytes:
                lowest = found
            if found.peak_bytes <= limit:
                break
        return lowest

    def _nested(self, limit: int) -> Found | None:
        """The lowest that one axis leads to, cut along another one inside its loops; None where there is no such."""
        streamed = [found for found in self._confirmed.values() if found.candidate is not None]
        if not streamed or self.depth == DEEPEST or self.effort.is_over:
            return None
        lowest = min(streamed, key=lambda found: found.peak_bytes).candidate
        assert lowest is not None
        outer = self._roomier(lowest)
        if outer not in self._nests:
            program = self.program.rewritten(outer.closed)
            self._nests[outer] = self.within(program)
        found = self._nests[outer]._inside(limit)
        if found is None or found.candidate is None or not self.affords(found.candidate.estimate):
            return None
        loops = dataclasses.replace(found.candidate, structure=outer.structure, chunks=outer.chunks)
        return dataclasses.replace(found, candidate=loops)

    def _roomier(self, candidate: Candidate) -> Candidate:
        """The same loops, in longer blocks where they keep states: what happens in each can be cut in blocks again.

        Two levels of checkpoints keep the fewest states with blocks of about T^(2/3) steps, not T^(1/2).
        """
        structure = candidate.structure
        if structure is None or not structure.streaming.tied:
            return candidate
        tied = structure.streaming.tied[0][0]
        wanted = candidate.chunks[tied] * (tied.steps / candidate.chunks[tied]) ** (1 / 3)
        roomier = (self.candidate(structure, size) for size in self.machine.chunk_sizes)
        return next((c for c in roomier if c.chunks[tied] >= wanted), candidate)

    def _lowest_known(self, limit: int) -> Found:
        """What fits a limit by streaming alone, or the lowest that was found on the way."""
        if self._hopeless_below >= limit:
            return min(self._confirmed.values(), key=lambda found: found.peak_bytes, default=self.lowest_as_written)
        found, fits = self._descend(limit)
        if not fits:
            self._hopeless_below = max(self._hopeless_below, limit)
        return found

    def _with_bodies(self, rewritten: Mapping[Place, Candidate]) -> Search:
        """A search over the program with these bodies, the same one each time that they are asked for."""
        key = tuple(rewritten.items())
        if key not in self._outer:
            closed = {place: candidate.closed for place, candidate in rewritten.items()}
            program = with_bodies(self._bodies[0], self.target, closed)
            self._outer[key] = Search(program, self.target, self.progress, DEEPEST, self.effort)
        return self._outer[key]

    def _body_within(self, room: int) -> Candidate | None:
        """This program, a body, rewritten so that its temporaries take no more than `room`, or as little as can be."""
        found, _ = self.run(self.fixed_bytes + max(1, room))
        return found.candidate

    def _around(self, limit: int, bodies: tuple[Candidate, ...], moved: tuple[Moved, ...]) -> Found:
        """This program, some of whose bodies are rewritten, within a limit; the lowest where it does not fit."""
        found = self._fastest_build(limit) or self._lowest_known(limit)
        candidate = found.candidate or Candidate(self.program.closed, self.original_estimate, None)
        return dataclasses.replace(found, candidate=dataclasses.replace(candidate, bodies=bodies, moved=moved))

    def _descend(self, limit: int) -> tuple[Found, bool]:
        """Round after round, what looks best for a limit; and whether it fits."""
        lowest = self.lowest_as_written
        state: Structure | None = None
        for round_ in range(ROUNDS):
            if round_ and self.depth and self.effort.is_over:
                break
            grown = self.grow(state)
            if not grown:
                break
            best = self._best_of(self._ranked(grown, limit), limit)
            if best.peak_bytes <= limit:
                return best, True
            if best.peak_bytes >= lowest.peak_bytes:
                break
            lowest = best
            assert best.candidate is not None
            state = best.candidate.structure
        return lowest, False

    def choices(self, limit: int) -> list[tuple[Candidate, int]]:
        """What a person may choose among, each with its predicted peak: what ranks first, in every size of chunk."""
        if self._simpler.search is not None:
            return self._simpler.search.choices(limit)
        ranked = self._ranked(self.grow(None), limit)[:SHORTLIST]
        tried = dict.fromkeys(self.candidate(s, size) for s in ranked for size in self.chunk_sizes)
        with_peaks = [(c, self._predicted_peak(c)) for c in tried if self.worth_running(c)]
        return [(c, peak) for c, peak in with_peaks if peak < self.original.peak_bytes]

    def _ranked(self, structures: list[Structure], limit: int) -> list[Structure]:
        """Those that should fit first, then by time, then by temporaries."""

        def key(structure: Structure) -> tuple[Any, ...]:
            tried = [self.candidate(structure, size) for size in self.machine.ranking_chunks]
            fitting = [c for c in tried if self._predicted_peak(c) <= limit]
            if not fitting:
                small = self.candidate(structure, self.chunk_sizes[0])
                fitting = [small] if self._predicted_peak(small) <= limit else []
            if not fitting:
                return 1, small.estimate.temp_bytes, small.estimate.seconds
            best = min(fitting, key=lambda c: c.estimate.seconds)
            ratio = round(best.estimate.seconds / self.original_estimate.seconds, 1)
            return 0, ratio, _fold_count(structure), best.estimate.temp_bytes

        return sorted(structures, key=key)

    def _predicted_peak(self, candidate: Candidate) -> int:
        """With what a dot takes beside XLA's account, so that the run has room for it where there is a choice."""
        return self.fixed_bytes + candidate.estimate.temp_bytes + candidate.estimate.packing_bytes

    @property
    def fixed_bytes(self) -> int:
        o = self.original
        return o.argument_bytes + o.output_bytes - o.alias_bytes + o.constant_bytes

    def _best_of(self, ranked: list[Structure], limit: int) -> Found:
        """The fastest candidate that fits, as XLA confirms; the lowest where none does."""
        shortlist = ranked[: 1 if self.program.is_large else SHORTLIST]
        tried = dict.fromkeys(
            self.candidate(structure, size, form)
            for structure in shortlist
            for form in _forms(structure)
            for size in self.chunk_sizes
        )
        fastest = min(tried, key=lambda c: c.estimate.seconds, default=None)
        crossed = self._crossings.around(fastest, ranked) if fastest else []
        worth = [c for c in (*tried, *crossed) if self.worth_running(c)]
        options = sorted(
            (c for c in worth if self._predicted_peak(c) <= limit * MARGIN),
            key=lambda candidate: (
                _bucket(candidate.estimate.seconds),
                _fold_count(candidate.structure),
                _oddity(candidate.chunk_bytes, self.machine.usual_chunk),
            ),
        )
        in_library = self._in_library(options, limit)
        if in_library is not None:
            return in_library
        options = [*self._hopeful(worth, options, limit), *options]
        largest = dict.fromkeys(ranked, self.chunk_sizes[-1])
        narrow: Found | None = None
        tries = 0
        for option in options:
            assert option.structure is not None
            if option.chunk_bytes > largest[option.structure] or tries == CONFIRMATIONS:
                continue
            tries += 1
            found = self.confirm(option)
            if found.peak_bytes + option.estimate.packing_bytes <= limit:
                return found
            if found.peak_bytes <= limit:
                narrow = narrow or found
                continue
            # What XLA needs beyond the limit tells how much smaller the chunks have to be.
            excess = (found.peak_bytes - self.fixed_bytes) / max(1, limit - self.fixed_bytes)
            largest[option.structure] = int(option.chunk_bytes / max(1.5, min(excess, 64)))
        if narrow is not None:
            return narrow
        smallest = [c for s in ranked[:2] if self.worth_running(c := self.candidate(s, self.chunk_sizes[0]))]
        return min(map(self.confirm, smallest), key=lambda found: found.peak_bytes, default=self.lowest_as_written)

    def _hopeful(self, candidates: Sequence[Candidate], options: Sequence[Candidate], limit: int) -> list[Candidate]:
        """The fastest that should just not fit, where it is much faster than all that should: estimates may be high."""
        slowest = min((c.estimate.seconds for c in options), default=math.inf) / MUCH_FASTER
        near = (c for c in candidates if limit * MARGIN < self._predicted_peak(c) <= limit * HOPE)
        return sorted((c for c in near if c.estimate.seconds < slowest), key=lambda c: c.estimate.seconds)[:1]

    def _in_library(self, options: Sequence[Candidate], limit: int) -> Found | None:
        """The fastest of these whose plain build fits, by the bound on its scratch; None where there is none."""
        if self.library is None or self.depth or not options or not options[0].suits_library:
            return None
        slowest = LIBRARY_GAIN * options[0].estimate.seconds
        suited = [o for o in options if o.estimate.seconds <= slowest and o.suits_library]
        most: dict[Structure | None, float] = {}
        for _ in range(1 if self.program.is_large else LIBRARY_TRIES):
            option = next((o for o in suited if o.chunk_bytes <= most.get(o.structure, self.chunk_sizes[-1])), None)
            if option is None:
                return None
            found = self.confirm(option, self.library)
            if found.peak_bytes <= limit:
                return found
            excess = (found.peak_bytes - self.fixed_bytes) / max(1, limit - self.fixed_bytes)
            most[option.structure] = option.chunk_bytes / max(1.5, excess)
        return None

    @property
    def lowest_as_written(self) -> Found:
        return Found(self.program, None, min(self.builds.values(), key=lambda c: c.bound_bytes))

    def worth_running(self, candidate: Candidate) -> bool:
        """Within the work budget: what takes many times as long has to be written in another way."""
        return self.affords(candidate.estimate)

    def affords(self, estimate: Estimate) -> bool:
        return estimate.seconds <= WORK_BUDGET * self.original_estimate.seconds + WORK_FOR_FREE

    def confirm_fastest(self, candidate: Candidate, limit: int) -> Found:
        """Compiles one of `choices` in the build that it should run faster in, of those that fit the limit."""
        if self._simpler.search is not None:
            return self._simpler.described(self._simpler.search.confirm_fastest(candidate, limit))
        if self.library is not None and candidate.suits_library:
            found = self.confirm(candidate, self.library)
            if found.peak_bytes <= limit:
                return found
        return self.confirm(candidate)

    def known(self, candidate: Candidate, limit: int) -> Found | None:
        """What `confirm_fastest` would give, where that is compiled already."""
        if self._simpler.search is not None:
            found = self._simpler.search.known(candidate, limit)
            return None if found is None else self._simpler.described(found)
        if self.library is not None and candidate.suits_library:
            plain = self._confirmed.get((candidate, self.library))
            if plain is None or plain.peak_bytes <= limit:
                return plain
        return self._confirmed.get((candidate, self.exact))

    def confirm(self, candidate: Candidate, build: Build | None = None) -> Found:
        """Compiles a candidate, in the exact build where no other is named: that of the library's is a bound."""
        build = build or self.exact
        if (candidate, build) not in self._confirmed:
            chunks = format_bytes(candidate.chunk_bytes)
            self.progress(f"compiling with {_loops(candidate)} in chunks of {chunks}")
            self.effort.compiles(candidate.closed.jaxpr)
            if candidate.program is not None:
                compile_it = functools.partial(compile_program, candidate.program, build, self.target)
            else:
                run = jex_core.jaxpr_as_fun(candidate.closed)
                compile_it = functools.partial(compile_flat, run, self.program, build, self.target)
            compiled = self.unless_refused(compile_it, build, candidate.estimate)
            self._confirmed[candidate, build] = Found(candidate.program or self.program, candidate, compiled)
        return self._confirmed[candidate, build]

    def hindrances(self) -> list[Hindrance]:
        """What is in the way of intermediates, also inside loops and branches, so far as the search has come."""
        if self._simpler.search is not None:
            return self._simpler.search.hindrances()
        inside = self.__dict__["_bodies"][1].values() if "_bodies" in self.__dict__ else ()
        own = hindrances(self.program, self._structures.obstacles)
        return [*own, *(h for search in inside for h in search.hindrances())]

    # Structures.

    def grow(self, state: Structure | None) -> list[Structure]:
        """The structures one seed beyond `state`."""
        return self._structures.grow(state)

    @functools.cached_property
    def _structures(self) -> Structures:
        return Structures(self.program, [v for v, _ in self.original_estimate.live], self.progress)

    # Candidates.

    def candidate(self, structure: Structure, chunk_bytes: int, form: Form = Form.BLOCKS) -> Candidate:
        """The structure in chunks whose largest array is about `chunk_bytes`, traced."""
        key = (structure, chunk_bytes, form)
        if key not in self._candidates:
            chunks = chunks_of(structure.streaming, chunk_bytes)
            same = (structure, form, tuple(chunks.items()))
            if same not in self._by_chunks:
                closed = trace_flat(rewrite(structure.streaming, chunks, form), self.program, self.target.platform)
                self._by_chunks[same] = Candidate(
                    closed, estimate(closed, self.machine), structure, chunk_bytes, chunks, form
                )
            self._candidates[key] = self._by_chunks[same]
        return self._candidates[key]

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """Fewer to choose among where each takes long to trace."""
        sizes = self.machine.chunk_sizes
        return sizes[::2] if self.program.is_large else sizes


def largest_value(jaxpr: jex_core.Jaxpr) -> int:
    """Bytes of the largest result of an eqn, here or in a body."""
    own = max((nbytes(v) for eqn in jaxpr.eqns for v in eqn.outvars), default=0)
    inner = (largest_value(body) for eqn in jaxpr.eqns for body in jex_core.jaxprs_in_params(eqn.params))
    return max((own, *inner))


def _bucket(seconds: float) -> int:
    """Times that an estimate can't tell apart: within 5%."""
    return round(math.log(max(seconds, 1e-9)) / 0.05)


def _fold_count(structure: Structure | None) -> int:
    """Results that each chunk brings up to date, all of them, rather than writes its part of."""
    loops = () if structure is None else structure.streaming.loops
    return sum(isinstance(sink, Fold) for loop in loops for sink in loop.sinks)


def _oddity(chunk_bytes: int, usual: int) -> float:
    """How far chunks are from the size that runs fastest most often, in powers of two."""
    return abs(math.log2(chunk_bytes / usual))


def _forms(structure: Structure) -> tuple[Form, ...]:
    """The forms worth telling apart for these loops."""
    program = structure.streaming.program
    tasks = (program.eqns[task.eqn] for loop in structure.streaming.loops for task in loop.body)
    if any(reduces_lanes(program, eqn) for eqn in tasks):
        return Form.LANES, Form.BLOCKS
    return (Form.BLOCKS,)


def _loops(candidate: Candidate) -> str:
    count = len(candidate.chunks)
    return "1 loop" if count == 1 else f"{count} loops"
