"""The loops of a plan with what a limit leaves unused spent on rows that are kept for later loops."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..chunks import chunks_of
from ..cost import eqn_work, estimate
from ..machine import Machine
from ..sizes import format_bytes
from ..stream import LoopPlan, Resident, Streaming, rewrite
from ..stream.resident import Body, Slice, kept_bytes, readers_of, slices_of
from ..stream.tasks import Task
from ..structures import Structure
from ..trace import trace_flat
from .candidate import Candidate, Found

if TYPE_CHECKING:
    from .search import Search

WORTH = 1.02
"""How much extra work loops have to take for any of it to be worth keeping."""

GAIN = 0.98
"""How much of the work has to be left at most for another compile."""

SLACK = 1 / 256
"""Of a limit, what is left free beside the rows that are kept."""

SMALLER = 1
"""How many smaller sizes of chunks are looked at too, as they leave more room and go into it in smaller steps."""

LESS_ROWS = 0.9
"""How many of the rows that should fit are tried after more of them did not."""

SLICES, TOGETHER = 64, 3
"""How many intermediates of a loop are looked at, those that take most work, and how many are kept at once."""

READS = 0.01
"""How much of what another loop is spared a loop has to be for it to read rows."""

LESS, AS_FAST = 8, 1.01
"""How many times smaller chunks the loops take that have no share in the rows, where that costs next to no time."""


@dataclasses.dataclass(frozen=True)
class Option:
    """What could be kept, all rows of it, and how much work is spared then."""

    resident: Resident
    work: float

    def spared(self, room: int) -> float:
        """Of the work, what so many bytes spare."""
        return self.work * min(1.0, room / (self.resident.step_bytes * self.resident.steps))


class ResidentRows:
    """What the loops of one search could keep for one another."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._options: dict[Structure, list[Option]] = {}
        self._made: dict[tuple[Candidate, Resident], Candidate] = {}
        self._without: dict[Candidate, Candidate] = {}
        self._before: dict[Candidate, Found] = {}
        self._confirmed: list[Found] = []

    def beside(self, found: Found, limit: int) -> Found:
        """What was found, with rows kept in what the limit leaves; itself where that spares nothing or does not fit."""
        found = found if found.candidate is None else self._before.get(found.candidate, found)
        base = found.candidate
        if base is None or not self._is_plain(base):
            return found
        known = [f for f in (found, *self._confirmed) if f.peak_bytes <= limit]
        best = min(known, key=lambda f: f.seconds, default=found)
        room = limit - int(SLACK * limit)
        tried = min(self._within_room(found, base, room), key=lambda c: c.estimate.seconds, default=None)
        for _ in range(1 if self._search.program.is_large else 2):
            if tried is None or tried.resident is None or not _improves(tried, best.candidate or base):
                break
            rows = tried.resident.bytes
            self._search.progress(f"keeping {format_bytes(rows)} of rows that a later loop would compute again")
            kept = self._search.confirm(tried, found.compiled.build)
            self._confirmed.append(kept)
            self._before[tried] = found
            if kept.peak_bytes <= limit:
                best, left = kept, rows + room - kept.peak_bytes - tried.estimate.packing_bytes
            else:  # XLA holds some of them twice, or more beside them than before
                fewer = (room - found.peak_bytes) / max(1, kept.peak_bytes - found.peak_bytes)
                left = int(LESS_ROWS * min(1.0, fewer) * rows)
            tried = self._keeping(tried, tried.resident, left)
        return best

    def _within_room(self, found: Found, base: Candidate, room: int) -> Iterator[Candidate]:
        """The loops, and the same in smaller chunks, each with what spares most in what is left of so many bytes."""
        search = self._search
        assert base.structure is not None
        smaller = [size for size in search.chunk_sizes if size < base.chunk_bytes][-SMALLER:]
        others = [search.candidate(base.structure, size, base.form) for size in smaller]
        for each in (base,) if search.program.is_large else dict.fromkeys((base, *others)):
            share = each.estimate.temp_bytes / max(1, base.estimate.temp_bytes)
            taken = search.fixed_bytes + int(share * (found.peak_bytes - search.fixed_bytes))
            left = room - taken - each.estimate.packing_bytes
            option = max(self._options_of(base.structure), key=lambda option: option.spared(left), default=None)
            kept = None if option is None else self._keeping(each, option.resident, left)
            if kept is not None:
                yield kept

    def _is_plain(self, base: Candidate) -> bool:
        """Loops over the program that is searched, by themselves, which do some of it twice."""
        search = self._search
        loops_alone = base.structure is not None and base.program is None and not base.bodies and base.resident is None
        return not search.depth and loops_alone and base.estimate.work > WORTH * search.original_estimate.work

    def _keeping(self, base: Candidate, rows: Resident, room: int) -> Candidate | None:
        """The loops with as many of some rows as so many bytes hold, in whole chunks; None where that is none."""
        chunk, most = base.chunks[rows.maker], rows.maker.steps
        steps = max(0, room) // rows.step_bytes
        resident = dataclasses.replace(rows, steps=most if steps >= most else steps // chunk * chunk)
        if not resident.steps:
            return None
        plain = self._without.get(base, base)
        if (plain, resident) not in self._made:
            usual, *less = (self._traced(plain, resident, chunks) for chunks in _chunks(plain, resident))
            small = (c for c in less if c.estimate.seconds <= AS_FAST * usual.estimate.seconds)
            made = next(small, usual)
            self._made[plain, resident] = made
            self._without[made] = plain
        return self._made[plain, resident]

    def _traced(self, base: Candidate, resident: Resident, chunks: Mapping[LoopPlan, int]) -> Candidate:
        search = self._search
        assert base.structure is not None
        run = rewrite(base.structure.streaming, chunks, base.form, resident)
        closed = trace_flat(run, search.program, search.target.platform)
        made = estimate(closed, search.machine)
        return dataclasses.replace(base, closed=closed, estimate=made, chunks=chunks, resident=resident)

    def _options_of(self, structure: Structure) -> list[Option]:
        if structure not in self._options:
            self._options[structure] = list(options(structure.streaming, self._search.machine))
        return self._options[structure]


def _improves(candidate: Candidate, other: Candidate) -> bool:
    """True for enough less work in no more time, by the estimate."""
    return (
        candidate.estimate.work <= GAIN * other.estimate.work and candidate.estimate.seconds <= other.estimate.seconds
    )


def _chunks(base: Candidate, resident: Resident) -> list[Mapping[LoopPlan, int]]:
    """The chunks that loops have, and smaller ones for those without a share in the rows."""
    assert base.structure is not None
    streaming = base.structure.streaming
    small = chunks_of(streaming, base.chunk_bytes // LESS)
    sharing = (resident.maker, *resident.readers)
    tied = {loop for tie in streaming.tied for loop in tie}
    less = {loop: chunk if loop in sharing or loop in tied else small[loop] for loop, chunk in base.chunks.items()}
    return [base.chunks, less] if less != base.chunks else [less]


def options(streaming: Streaming, machine: Machine) -> Iterator[Option]:
    """What each loop could keep: the slice that spares most work a byte, then with others that spare more beside it."""
    program = streaming.program
    for maker, readers in readers_of(streaming):
        slices = slices_of(program, maker)
        bodies = {reader: Body(program, reader) for reader in readers}
        tasks = {task for body in bodies.values() for task in body.tasks}
        work = {task: eqn_work(program.eqns[task.eqn], machine) for task in tasks}
        again = [v for v, task in slices.items() if task in tasks and kept_bytes(v, 1)]
        again = sorted(again, key=lambda v: -work[slices[v]])[:SLICES]
        best = Option(Resident(maker, (), (), maker.steps), 0.0)
        for _ in range(TOGETHER):
            others = (_with(best, slice_, bodies, work) for slice_ in again if slice_ not in best.resident.values)
            more = [option for option in others if option.work > best.work]
            if not more:
                break
            best = max(more, key=functools.partial(_worth, best))
            yield best


def _with(option: Option, more: Slice, bodies: Mapping[LoopPlan, Body], work: Mapping[Task, float]) -> Option:
    """An option with one more slice."""
    values = (*option.resident.values, more)
    spared = {}
    for loop, body in bodies.items():
        left = set(body.without(values))
        spared[loop] = sum(work[task] for task in body.tasks if task not in left)
    least = READS * max(spared.values())
    readers = {loop: less for loop, less in spared.items() if less > least}
    resident = dataclasses.replace(option.resident, readers=tuple(readers), values=values)
    return Option(resident, sum(readers.values()))


def _worth(before: Option, option: Option) -> float:
    """Work that is spared for each byte more."""
    return (option.work - before.work) / (option.resident.step_bytes - before.resident.step_bytes)
