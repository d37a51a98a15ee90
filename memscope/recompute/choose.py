"""The rewritten programs worth a look, from the least work to the fewest bytes.

What to compute again to run within a limit is the question of Checkmate (Jain et al., "Checkmate: Breaking the Memory
Wall with Optimal Tensor Rematerialization", arXiv 1910.02653). A minimum cut answers it for one peak and one number of
segments; a few of those are tried.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..cost import Estimate, estimate
from ..machine import machine_of
from ..program import Program, aval_of, nbytes
from ..target import Target
from ..trace import trace_flat
from .again import run_again
from .kept import Cut, cut, most_held, widest
from .prices import Level

SEGMENTS = (1, 2, 4, 8, 16)
ROUNDS = 2
"""How often what was rewritten is cut again, at the peak that it has then."""

SMALL = 1 / 64
"""Of the largest array: smaller ones are not worth a word."""


@dataclasses.dataclass(frozen=True)
class Recomputed:
    """An array that is dropped after its early readers and made again for its late ones.

    Attributes:
      shape, dtype, bytes: of the array.
      op: the primitive that makes it, at the user's line `source`.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    op: str
    source: str | None


@dataclasses.dataclass(frozen=True, eq=False)
class Recomputation:
    """A program that computes the same with some of it twice.

    Attributes:
      held_bytes: the most that its eqns hold at once in their order, whatever XLA fuses: good to compare programs of
        one function by, where what is fused changes with what is kept.
    """

    program: Program
    recomputed: tuple[Recomputed, ...]
    estimate: Estimate
    held_bytes: int


def recomputations(program: Program, target: Target) -> tuple[Recomputation, ...]:
    """Those that hold less at once than the program as written, by work; each holds less than the one before."""
    before = Recomputation(program, (), estimate(program.closed, machine_of(target)), most_held(program))
    found = [before]
    rounds = 1 if program.is_large else ROUNDS
    for level in Level:
        round_ = [before]
        for _ in range(rounds):
            lowest = min(round_, key=lambda r: r.held_bytes)
            round_ = list(_once_more(lowest, level, target))
            better = [r for r in round_ if r.held_bytes < lowest.held_bytes]
            if not better:
                break
            found += better
    return tuple(r for r in _worth(found) if r is not before)


def _worth(found: list[Recomputation]) -> tuple[Recomputation, ...]:
    """By work, each with fewer bytes than the one before."""
    kept: list[Recomputation] = []
    for each in sorted(found, key=lambda r: (r.estimate.work, r.held_bytes)):
        if not kept or each.held_bytes < kept[-1].held_bytes:
            kept.append(each)
    return tuple(kept)


def _once_more(given: Recomputation, level: Level, target: Target) -> Iterator[Recomputation]:
    program = given.program
    late = widest(program)
    segments = SEGMENTS[1::2] if program.is_large else SEGMENTS
    cuts = {choice.again: choice for k in segments if (choice := cut(program, late, k, level)).instead}
    for choice in cuts.values():
        closed = trace_flat(run_again(program, choice, target.platform), program, target.platform)
        rewritten = program.rewritten(closed)
        recomputed = (*given.recomputed, *_described(program, choice))
        yield Recomputation(rewritten, recomputed, estimate(closed, machine_of(target)), most_held(rewritten))


def _described(program: Program, choice: Cut) -> tuple[Recomputed, ...]:
    """What of some size was kept before and is not now, largest first."""
    found = []
    largest = max(map(nbytes, choice.instead))
    for v in sorted(choice.instead, key=nbytes, reverse=True):
        if nbytes(v) < SMALL * largest:
            break
        index, aval = program.producer[v], aval_of(v)
        name = program.eqns[index].primitive.name
        found.append(Recomputed(tuple(aval.shape), str(aval.dtype), nbytes(v), name, program.sources[index]))
    return tuple(found)
