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

from .algebra import Simplification, simplify
from .barriers import Ordering, depth_first, ordering, run_in_order
from .chunks import chunks_of, largest_step
from .compile import Build, Compiled, builds_of, compile_flat, compile_program
from .cost import Estimate, estimate
from .inside import Moved, Place, inner_programs, move_in, move_slices, moved_arrays, with_bodies
from .library import suits_library
from .machine import machine_of
from .program import Program, nbytes
from .reasons import Hindrance, hindrances
from .recompute import Recomputation, Recomputed, most_held, recomputations
from .schedule.search import find_order, temporaries_at_least
from .sizes import format_bytes
from .stream import Fold, LoopPlan, rewrite
from .stream.reductions import Form, reduces_lanes
from .structures import Structure, Structures
from .target import Target
from .trace import trace_flat

Var = jex_core.Var
Hints = dict[Var, list[int]]
Progress = Callable[[str], None]

CROSSED, CROSSED_SLOWER, CROSSED_EQNS = 2, 2.0, 300
"""How many axes are tried with another one inside, how much longer they may take alone, and up to how many eqns."""

ROUNDS, SHORTLIST, CONFIRMATIONS = 4, 3, 6
LARGE_PROGRAM = 1000
"""Eqns beyond which tracing a candidate takes long enough to make do with fewer."""

CAPTURED_FROM = 256 << 10
"""Bytes of captured arrays that are worth a word, as XLA evaluates at compile time what depends on them alone."""

EFFORT, COMPILE_EFFORT = 25_000, 200
"""Eqns that may be compiled before no more loops are taken apart, and what each compile counts for beside its eqns.

Some twenty to forty seconds; what one axis alone reaches is searched through whatever it takes.
"""

DEEPEST = 2
"""How many loops inside one another are taken apart."""

BODY_SHARES = (0.6, 0.25, 0.0)
"""How much of the room under a limit is tried for what happens inside a loop."""

WORK_BUDGET, WORK_FOR_FREE = 50.0, 0.05
"""How many times as long a rewritten function may take, and how many seconds nobody minds: both estimated."""

LIBRARY_GAIN, LIBRARY_TRIES = 1.3, 3
"""How much faster a chunk runs in the plain build, by what it may be estimated to take longer; how many are tried.

Of 22 rewritten reports that it suits, 18 ran faster in it: 0.79 times as long in the geometric mean.
"""

ORDER_SECONDS = 2.0
"""For the search of an order, where one could do."""

MARGIN = 0.97
"""How much of the limit an estimate may fill before it is not even tried."""


MUCH_FASTER, HOPE = 1.3, 2.0
"""How much faster a candidate has to look to be compiled though it should take up to so many times the limit."""


TWICE_HOPE = 1.1
"""How much less than by the share of bytes that is held what computes twice may take, and is compiled all the same."""

MUCH_SLOWER = 1.5
"""How many times as long loops have to be estimated to take for computing some of it twice to be tried as well."""

ORDER_HOPE = 1.3
"""Up to how many times the limit an order of our own is estimated to take and is compiled all the same."""


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A rewritten program, traced and estimated.

    Attributes:
      structure, chunk_bytes, chunks: its loops and their chunks; None where only bodies are rewritten.
      bodies: what loops and branches of the program have got as their bodies.
      moved: what is made inside them now.
      simplified: what is not made any more.
      recomputed: what is dropped and made again later.
      program: what its eqns are the eqns of, where that is not the program that was searched.
      order: the order that its eqns are kept in by barriers, where it is not XLA's.
      scheduled_by: whose order its HLO instructions run in, where it is not XLA's default.
    """

    closed: jex_core.ClosedJaxpr
    estimate: Estimate
    structure: Structure | None
    chunk_bytes: int = 0
    chunks: Mapping[LoopPlan, int] = dataclasses.field(default_factory=dict)
    bodies: tuple[Candidate, ...] = ()
    moved: tuple[Moved, ...] = ()
    simplified: tuple[Simplification, ...] = ()
    recomputed: tuple[Recomputed, ...] = ()
    program: Program | None = None
    order: Ordering | None = None
    scheduled_by: str | None = None

    @functools.cached_property
    def suits_library(self) -> bool:
        """Whether it may run faster in XLA's plain build."""
        return suits_library(self.closed, self.estimate)


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """A candidate as XLA accounts for it.

    Attributes:
      program: what its eqns are the eqns of, or were before they were streamed.
      candidate: None for the program as written.
    """

    program: Program
    candidate: Candidate | None
    compiled: Compiled

    @property
    def peak_bytes(self) -> int:
        return self.compiled.bound_bytes

    @property
    def seconds(self) -> float:
        """An estimate that tells rewritten programs apart."""
        gain = LIBRARY_GAIN if self.compiled.build is Build.PLAIN else 1.0
        return self.candidate.estimate.seconds / gain if self.candidate else 0.0


class Effort:
    """What planning has taken so far, whichever search of one function it went to."""

    def __init__(self) -> None:
        self.spent = 0

    def compiles(self, jaxpr: jex_core.Jaxpr) -> None:
        self.spent += COMPILE_EFFORT + eqn_count(jaxpr)

    @property
    def is_over(self) -> bool:
        return self.spent > EFFORT


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
        self._twice: dict[Recomputation, Search] = {}
        self._outer: dict[tuple[tuple[Place, Candidate], ...], Search] = {}
        self._confirmed: dict[tuple[Candidate, Build], Found] = {}
        self._by_chunks: dict[tuple[Structure, Form, tuple[tuple[LoopPlan, int], ...]], Candidate] = {}
        self._candidates: dict[tuple[Structure, int, Form], Candidate] = {}
        self._steps: dict[Candidate, dict[Place, Search]] = {}
        self._crossings: dict[tuple[Candidate, int], Candidate | None] = {}

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
            return {build: job.result() for build, job in jobs.items()}

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
            ordered = self._ordered_within(limit)
            if ordered is not None:
                return ordered, True
        if self._simpler is not None:
            simpler, fits = self._simpler.run(limit, portable)
            return self._with_simplified(simpler), fits
        return self._rewritten(limit, portable)

    def _rewritten(self, limit: int, portable: bool) -> tuple[Found, bool]:
        """The same by loops, or where those don't do by computing some of it twice."""
        if "floor" in self.__dict__ and self.floor.peak_bytes > limit:
            return self.floor, False
        best, fits = self._descend(limit)
        if fits:
            best = self._fastest_known(best, limit)
            return self._faster_twice(best, limit, portable) or best, True
        for way in (self._inside, functools.partial(self._recomputed, portable=portable), self._nested):
            found = way(limit)
            if found is not None and found.peak_bytes <= limit:
                return found, True
        if self.floor.peak_bytes > limit:
            return self.floor, False
        # The way down that looks best for this limit ended above it; the one to the floor does not.
        candidate = self.floor.candidate
        if candidate is None or candidate.structure is None or candidate.bodies:
            return self.floor, True
        again = self._best_of([candidate.structure], limit)
        return (again if again.peak_bytes <= limit else self.floor), True

    def _fastest_known(self, best: Found, limit: int) -> Found:
        """The best under a limit, or what was found for another one where that fits too and looks faster."""
        known = [f for f in self._confirmed.values() if f.peak_bytes <= limit and f.candidate is not None]
        return min((best, *known), key=lambda found: _bucket(found.seconds))

    @functools.cached_property
    def floor(self) -> Found:
        """The lowest that can be reached."""
        if self._simpler is not None:
            return self._with_simplified(self._simpler.floor)
        lowest, _ = self._descend(1)
        ways = (self._inside, self._nested, self._lowest_twice)
        others = [found for way in ways if (found := way(1)) is not None]
        ordered = self._ordered_within(lowest.peak_bytes)
        if ordered is not None:
            others.append(ordered)
        return min((lowest, *self._confirmed.values(), *others), key=lambda found: found.peak_bytes)

    # Without what need not be computed.

    @functools.cached_property
    def _simplification(self) -> tuple[Program, tuple[Simplification, ...]]:
        return simplify(self.program, self.target)

    @functools.cached_property
    def _simpler(self) -> Search | None:
        """The search over the program that computes the same with less; None where no rule knows one."""
        program, found = self._simplification
        for each in found:
            self.progress(f"{each.op}{f' at {each.source}' if each.source else ''}: {each.why}")
        form = "without what need not be made"
        return Search(program, self.target, self.progress, self.depth, self.effort, form) if found else None

    def _with_simplified(self, found: Found) -> Found:
        """What the simpler search found, as a rewrite of this program."""
        closed = found.program.closed
        candidate = found.candidate or Candidate(closed, estimate(closed, self.machine), None)
        simplified = (*self._simplification[1], *candidate.simplified)
        return dataclasses.replace(found, candidate=dataclasses.replace(candidate, simplified=simplified))

    # In another order.

    def _ordered_within(self, limit: int) -> Found | None:
        """The program in another order, where that fits; a limit that no order reaches takes no compile to see."""
        if self.depth or self._least_in_any_order > limit:
            return None
        return self.ordered if self.ordered is not None and self.ordered.peak_bytes <= limit else None

    @functools.cached_property
    def _least_in_any_order(self) -> float:
        """Bytes that the call takes in whatever order; of barriers on a GPU, a guess on the low side."""
        if self.target.platform == "cpu":
            return self._fixed_bytes + temporaries_at_least(self.original.module)
        if self._stretches is None:
            return math.inf
        reordered = self.program.jaxpr.replace(eqns=[self.program.eqns[i] for i in self._stretches.order])
        predicted = estimate(jex_core.ClosedJaxpr(reordered, self.program.closed.consts), self.machine).temp_bytes
        return (self._fixed_bytes + predicted) / ORDER_HOPE

    @functools.cached_property
    def _stretches(self) -> Ordering | None:
        return ordering(self.program, depth_first(self.program)) if self.target.platform == "cuda" else None

    @functools.cached_property
    def ordered(self) -> Found | None:
        """The program as written, in an order of our own; None where that takes no less."""
        found = self._in_stretches() if self.target.platform == "cuda" else self._in_schedule()
        return found if found is not None and found.peak_bytes < self._lowest_as_written.peak_bytes else None

    def _in_schedule(self) -> Found | None:
        """With its HLO instructions in the order that needs the least (OLLA, arXiv 2210.12924, section 3.2)."""
        found = find_order(self.program, self.exact, self.target, ORDER_SECONDS, self.progress)
        self.effort.compiles(self.program.jaxpr)
        # One with its results in another order is another program, whose arguments a plan does not know.
        best = min((s for s in found.confirmed if s.program is self.program), key=lambda s: s.temp_bytes)
        if best is found.default:
            return None
        candidate = Candidate(self.program.closed, self.original_estimate, None, scheduled_by=best.by)
        return Found(self.program, candidate, best.compiled)

    def _in_stretches(self) -> Found | None:
        """With barriers between its eqns where large values die."""
        order = self._stretches
        if order is None:
            return None
        closed = trace_flat(run_in_order(self.program, order), self.program, self.target.platform)
        self.progress(f"compiling with {len(order.stretches)} stretches of it one after another")
        self.effort.compiles(closed.jaxpr)
        compiled = compile_flat(jex_core.jaxpr_as_fun(closed), self.program, self.exact, self.target)
        return Found(self.program, Candidate(closed, self.original_estimate, None, order=order), compiled)

    # With some of it computed twice.

    @functools.cached_property
    def _recomputations(self) -> tuple[Recomputation, ...]:
        """The ways to compute some of it twice that should take less, by work; the bodies of loops have none."""
        if self.depth:
            return ()
        found = recomputations(self.program, self.target)
        return tuple(r for r in found if self._held_share(r) <= MARGIN and self._affords(r.estimate))

    def _held_share(self, recomputation: Recomputation) -> float:
        return recomputation.held_bytes / max(1, most_held(self.program))

    def _near(self, recomputations: Sequence[Recomputation], limit: int) -> list[Recomputation]:
        """Some that may fit, from the least work to the lowest; what is compiled already is no guess."""
        fitting = [r for r in recomputations if self._twice_at_least(r) <= limit]
        return list(dict.fromkeys([*fitting[:1], *fitting[len(fitting) // 2 :][:1], *fitting[-1:]]))

    def _twice_at_least(self, recomputation: Recomputation) -> int:
        """The peak of one of them so far as it is known; a guess on the low side before it is compiled."""
        if recomputation not in self._twice:
            return self._fixed_bytes + int(self._held_share(recomputation) * self.original.temp_bytes / TWICE_HOPE)
        search = self._twice[recomputation]
        ordered = search.__dict__.get("ordered")
        return min(found.peak_bytes for found in (search._lowest_as_written, ordered) if found is not None)

    def _recomputed(self, limit: int, portable: bool = False) -> Found | None:
        """The least work that fits, or the lowest where none does; what an estimate rules out takes no compile."""
        lowest: Found | None = None
        for each in self._near(self._recomputations, limit) or self._recomputations[-1:]:
            found = self._computing_twice(each, limit, portable)
            if lowest is None or found.peak_bytes < lowest.peak_bytes:
                lowest = found
            if found.peak_bytes <= limit:
                break
        return lowest

    def _lowest_twice(self, limit: int) -> Found | None:
        """The lowest of all of them, or the first that fits."""
        lowest: Found | None = None
        for each in self._recomputations:
            as_written = self._computing_twice(each, limit, portable=True)
            bar = as_written.peak_bytes if lowest is None else min(lowest.peak_bytes, as_written.peak_bytes)
            found = self._computing_twice(each, max(limit, bar - 1), portable=False)
            if lowest is None or found.peak_bytes < lowest.peak_bytes:
                lowest = found
            if lowest.peak_bytes <= limit:
                break
        return lowest

    def _faster_twice(self, best: Found, limit: int, portable: bool) -> Found | None:
        """Some of it computed twice, where loops take much longer than that and it fits as well."""
        if best.seconds <= MUCH_SLOWER * self.original_estimate.seconds:
            return None
        faster = [r for r in self._recomputations if MUCH_FASTER * r.estimate.seconds < best.seconds]
        tried = (self._computing_twice(r, limit, portable) for r in self._near(faster, limit))
        return next((found for found in tried if found.peak_bytes <= limit), None)

    def _computing_twice(self, recomputation: Recomputation, limit: int, portable: bool) -> Found:
        """One of them in XLA's order, or in one of our own where only that fits."""
        if recomputation not in self._twice:
            form = "with some of it computed twice"
            program = recomputation.program
            self._twice[recomputation] = Search(program, self.target, self.progress, self.depth, self.effort, form)
        search = self._twice[recomputation]
        found = search.as_written(limit) or (None if portable else search._ordered_within(limit))
        found = found or search._lowest_as_written
        candidate = found.candidate or Candidate(recomputation.program.closed, recomputation.estimate, None)
        recomputed = (*recomputation.recomputed, *candidate.recomputed)
        return dataclasses.replace(found, candidate=dataclasses.replace(candidate, recomputed=recomputed))

    # Inside loops and branches.

    @functools.cached_property
    def _bodies(self) -> tuple[Program, dict[Place, Search]]:
        """The program with large loop constants moved into the bodies, and a search for each body worth one."""
        worth = self._worth
        moved = move_slices(move_in(self.program, self.target, worth), self.target, worth)
        bodies = {
            place: Search(body, self.target, self.progress, self.depth + 1, self.effort)
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
            room = int(share * (limit - self._fixed_bytes))
            made = {place: search._body_within(room) for place, search in bodies.items()}
            rewritten = {place: candidate for place, candidate in made.items() if candidate is not None}
            if not rewritten and moved is self.program:
                continue
            if self.effort.is_over and lowest is not None:
                break
            outer = self._with_bodies(rewritten)
            if not self._affords(outer.original_estimate):
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
            self._nests[outer] = Search(program, self.target, self.progress, self.depth + 1, self.effort)
        found = self._nests[outer]._inside(limit)
        if found is None or found.candidate is None or not self._affords(found.candidate.estimate):
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
            return min(self._confirmed.values(), key=lambda found: found.peak_bytes, default=self._lowest_as_written)
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
        found, _ = self.run(self._fixed_bytes + max(1, room))
        return found.candidate

    def _around(self, limit: int, bodies: tuple[Candidate, ...], moved: tuple[Moved, ...]) -> Found:
        """This program, some of whose bodies are rewritten, within a limit; the lowest where it does not fit."""
        found = self._fastest_build(limit) or self._lowest_known(limit)
        candidate = found.candidate or Candidate(self.program.closed, self.original_estimate, None)
        return dataclasses.replace(found, candidate=dataclasses.replace(candidate, bodies=bodies, moved=moved))

    def _descend(self, limit: int) -> tuple[Found, bool]:
        """Round after round, what looks best for a limit; and whether it fits."""
        lowest = self._lowest_as_written
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
        if self._simpler is not None:
            return self._simpler.choices(limit)
        ranked = self._ranked(self.grow(None), limit)[:SHORTLIST]
        tried = dict.fromkeys(self.candidate(s, size) for s in ranked for size in self._chunk_sizes)
        with_peaks = [(c, self._predicted_peak(c)) for c in tried if self.worth_running(c)]
        return [(c, peak) for c, peak in with_peaks if peak < self.original.peak_bytes]

    def _ranked(self, structures: list[Structure], limit: int) -> list[Structure]:
        """Those that should fit first, then by time, then by temporaries."""

        def key(structure: Structure) -> tuple[Any, ...]:
            tried = [self.candidate(structure, size) for size in self.machine.ranking_chunks]
            fitting = [c for c in tried if self._predicted_peak(c) <= limit]
            if not fitting:
                small = self.candidate(structure, self._chunk_sizes[0])
                fitting = [small] if self._predicted_peak(small) <= limit else []
            if not fitting:
                return 1, small.estimate.temp_bytes, small.estimate.seconds
            best = min(fitting, key=lambda c: c.estimate.seconds)
            ratio = round(best.estimate.seconds / self.original_estimate.seconds, 1)
            return 0, ratio, _fold_count(structure), best.estimate.temp_bytes

        return sorted(structures, key=key)

    def _predicted_peak(self, candidate: Candidate) -> int:
        """With what a dot takes beside XLA's account, so that the run has room for it where there is a choice."""
        return self._fixed_bytes + candidate.estimate.temp_bytes + candidate.estimate.packing_bytes

    @property
    def _fixed_bytes(self) -> int:
        o = self.original
        return o.argument_bytes + o.output_bytes - o.alias_bytes + o.constant_bytes

    def _best_of(self, ranked: list[Structure], limit: int) -> Found:
        """The fastest candidate that fits, as XLA confirms; the lowest where none does."""
        shortlist = ranked[: SHORTLIST if len(self.program.eqns) < LARGE_PROGRAM else 1]
        tried = dict.fromkeys(
            self.candidate(structure, size, form)
            for structure in shortlist
            for form in _forms(structure)
            for size in self._chunk_sizes
        )
        crossed = self._crossed(min(tried, key=lambda c: c.estimate.seconds), ranked) if tried else []
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
        largest = dict.fromkeys(ranked, self._chunk_sizes[-1])
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
            excess = (found.peak_bytes - self._fixed_bytes) / max(1, limit - self._fixed_bytes)
            largest[option.structure] = int(option.chunk_bytes / max(1.5, min(excess, 64)))
        if narrow is not None:
            return narrow
        smallest = [c for s in ranked[:2] if self.worth_running(c := self.candidate(s, self._chunk_sizes[0]))]
        return min(map(self.confirm, smallest), key=lambda found: found.peak_bytes, default=self._lowest_as_written)

    def _hopeful(self, candidates: Sequence[Candidate], options: Sequence[Candidate], limit: int) -> list[Candidate]:
        """The fastest that should just not fit, where it is much faster than all that should: estimates may be high."""
        slowest = min((c.estimate.seconds for c in options), default=math.inf) / MUCH_FASTER
        near = (c for c in candidates if limit * MARGIN < self._predicted_peak(c) <= limit * HOPE)
        return sorted((c for c in near if c.estimate.seconds < slowest), key=lambda c: c.estimate.seconds)[:1]

    def _crossed(self, best: Candidate, structures: Sequence[Structure]) -> list[Candidate]:
        """One axis step by step where a step is large, and in each another one in chunks that caches hold.

        An attention head at a time, and in it some queries: as many rows in each product as in a chunk of all heads,
        in a fraction of the bytes.
        """
        if self.depth or best.chunk_bytes <= self.machine.cached or len(self.program.eqns) > CROSSED_EQNS:
            return []
        steps = [
            self.candidate(s, self._chunk_sizes[0])
            for s in structures
            if largest_step(s.streaming) > self.machine.cached
        ]
        steps = [c for c in steps if c.estimate.seconds <= CROSSED_SLOWER * best.estimate.seconds]
        outers = sorted(steps, key=lambda c: c.estimate.seconds)[:CROSSED]
        usual, cached = self.machine.usual_chunk, self.machine.cached
        sizes = [size for size in self.machine.chunk_sizes if usual / 4 <= size <= 2 * cached]
        return [crossed for outer in outers for size in sizes if (crossed := self._across(outer, size)) is not None]

    def _across(self, outer: Candidate, chunk_bytes: int) -> Candidate | None:
        """`outer` with its loops' bodies in chunks along what is fastest there."""
        key = outer, chunk_bytes
        if key not in self._crossings:
            self._crossings[key] = self._make_across(outer, chunk_bytes)
        return self._crossings[key]

    def _make_across(self, outer: Candidate, chunk_bytes: int) -> Candidate | None:
        program = self.program.rewritten(outer.closed)
        if outer not in self._steps:
            self._steps[outer] = {
                place: Search(body, self.target, self.progress, self.depth + 1, self.effort)
                for place, body in inner_programs(program).items()
            }
        inner: dict[Place, Candidate] = {}
        for place, search in self._steps[outer].items():
            cut = [search.candidate(structure, chunk_bytes) for structure in search.grow(None)]
            if cut:
                inner[place] = min(cut, key=lambda c: c.estimate.seconds)
        if not inner:
            return None
        made = with_bodies(program, self.target, {place: c.closed for place, c in inner.items()})
        return Candidate(
            closed=made.closed,
            estimate=estimate(made.closed, self.machine),
            structure=outer.structure,
            chunk_bytes=chunk_bytes,
            chunks=outer.chunks,
            bodies=tuple(inner.values()),
            program=made,
        )

    def _in_library(self, options: Sequence[Candidate], limit: int) -> Found | None:
        """The fastest of these whose plain build fits, by the bound on its scratch; None where there is none."""
        if self.library is None or self.depth or not options or not options[0].suits_library:
            return None
        slowest = LIBRARY_GAIN * options[0].estimate.seconds
        suited = [o for o in options if o.estimate.seconds <= slowest and o.suits_library]
        most: dict[Structure | None, float] = {}
        for _ in range(LIBRARY_TRIES if len(self.program.eqns) < LARGE_PROGRAM else 1):
            option = next((o for o in suited if o.chunk_bytes <= most.get(o.structure, self._chunk_sizes[-1])), None)
            if option is None:
                return None
            found = self.confirm(option, self.library)
            if found.peak_bytes <= limit:
                return found
            excess = (found.peak_bytes - self._fixed_bytes) / max(1, limit - self._fixed_bytes)
            most[option.structure] = option.chunk_bytes / max(1.5, excess)
        return None

    @property
    def _lowest_as_written(self) -> Found:
        return Found(self.program, None, min(self.builds.values(), key=lambda c: c.bound_bytes))

    def worth_running(self, candidate: Candidate) -> bool:
        """Within the work budget: what takes many times as long has to be written in another way."""
        return self._affords(candidate.estimate)

    def _affords(self, estimate: Estimate) -> bool:
        return estimate.seconds <= WORK_BUDGET * self.original_estimate.seconds + WORK_FOR_FREE

    def confirm_fastest(self, candidate: Candidate, limit: int) -> Found:
        """Compiles one of `choices` in the build that it should run faster in, of those that fit the limit."""
        if self._simpler is not None:
            return self._with_simplified(self._simpler.confirm_fastest(candidate, limit))
        if self.library is not None and candidate.suits_library:
            found = self.confirm(candidate, self.library)
            if found.peak_bytes <= limit:
                return found
        return self.confirm(candidate)

    def known(self, candidate: Candidate, limit: int) -> Found | None:
        """What `confirm_fastest` would give, where that is compiled already."""
        if self._simpler is not None:
            found = self._simpler.known(candidate, limit)
            return None if found is None else self._with_simplified(found)
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
                compiled = compile_program(candidate.program, build, self.target)
            else:
                compiled = compile_flat(jex_core.jaxpr_as_fun(candidate.closed), self.program, build, self.target)
            self._confirmed[candidate, build] = Found(candidate.program or self.program, candidate, compiled)
        return self._confirmed[candidate, build]

    def hindrances(self) -> list[Hindrance]:
        """What is in the way of intermediates, also inside loops and branches, so far as the search has come."""
        if self._simpler is not None:
            return self._simpler.hindrances()
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
                    closed, estimate(closed, self.machine), structure, chunk_bytes, chunks
                )
            self._candidates[key] = self._by_chunks[same]
        return self._candidates[key]

    @property
    def _chunk_sizes(self) -> tuple[int, ...]:
        """Fewer to choose among where each takes long to trace."""
        sizes = self.machine.chunk_sizes
        return sizes if len(self.program.eqns) < LARGE_PROGRAM else sizes[::2]


def eqn_count(jaxpr: jex_core.Jaxpr) -> int:
    """Eqns of a jaxpr and of the bodies in it."""
    return len(jaxpr.eqns) + sum(
        eqn_count(inner) for eqn in jaxpr.eqns for inner in jex_core.jaxprs_in_params(eqn.params)
    )


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
