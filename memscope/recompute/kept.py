"""What to keep across the peak: a minimum cut between what the early eqns make and what the late ones read.

The network is that of min-cut rematerialisation (as in AOTAutograd's partitioner for PyTorch): every value made
early is an edge whose capacity is its bytes, every operand an edge that can't be cut; what must not be computed again
hangs on the source, what the late eqns read on the sink. A second edge, from the source to a value, prices its being
computed again. One cut alone makes all of it again at once, which is as large as what was kept; so the early eqns
are taken in segments, and a value that the next segment reads counts as one that is not computed again
(Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174, section 3).
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from jax.extend import core as jex_core

from ..program import Program, is_var, nbytes
from ..schedule.flow import SINK, SOURCE, UNCUT, Network
from .prices import Level, price

Var = jex_core.Var


@dataclasses.dataclass(frozen=True)
class Cut:
    """A choice.

    Attributes:
      late: the index of the first eqn after the peak.
      again: what is computed again after it, some of it for the rest of it alone.
      instead: of that, what the late eqns read, which was kept before.
    """

    late: int
    again: frozenset[Var]
    instead: tuple[Var, ...]


def widest(program: Program) -> int:
    """The index before which most bytes are held for that eqn and later ones."""
    held = _held(program, len(program.eqns))
    return max(range(len(held)), key=held.__getitem__, default=0)


def most_held(program: Program) -> int:
    """The most bytes that are held for later eqns at once; results of the program apart."""
    return max(_held(program, len(program.eqns)), default=0)


def cut(program: Program, late: int, segments: int, level: Level) -> Cut:
    """The cut that keeps the fewest bytes across the eqn `late`, the early eqns in so many segments."""
    crossing = _crossing(program, late)
    apart = _apart(program, late, _starts(program, crossing, late, segments))
    network, made = Network(2), _early(program, late)
    nodes = {v: (network.add_node(), network.add_node()) for v in made}
    for v, (before, after) in nodes.items():
        eqn = program.eqns[program.producer[v]]
        cost = price(eqn, level)
        free = v in program.outputs
        network.add_edge(before, after, 0 if free else nbytes(v))
        network.add_edge(SOURCE, before, UNCUT if cost is None or v in apart else cost)
        for a in dict.fromkeys(a for a in eqn.invars if is_var(a) and a in nodes):
            network.add_edge(nodes[a][1], before, UNCUT)
    for v in crossing:
        network.add_edge(nodes[v][1], SINK, UNCUT)
    network.maximise()
    side = network.sink_side()
    again = frozenset(v for v, (before, _) in nodes.items() if before in side)
    return Cut(late, again, tuple(v for v in crossing if v in again))


def _early(program: Program, late: int) -> list[Var]:
    return [v for eqn in program.eqns[:late] for v in eqn.outvars]


def _crossing(program: Program, late: int) -> list[Var]:
    """What the late eqns read of what the early ones make, results of the program apart."""
    made = (v for v in _early(program, late) if v not in program.outputs)
    return [v for v in made if program.consumers.get(v, (0,))[-1] >= late]


def _held(program: Program, end: int) -> list[int]:
    """Of each of the first `end` eqns, the bytes that earlier ones make for it or for later ones before `end`."""
    change = [0] * (end + 1)
    for v, index in program.producer.items():
        readers = program.consumers.get(v, ())
        last = readers[bisect_left(readers, end) - 1] if readers and readers[0] < end else index
        if v not in program.outputs and index < last:
            change[index + 1] += nbytes(v)
            change[last + 1] -= nbytes(v)
    return list(itertools.accumulate(change[:end]))


def _starts(program: Program, crossing: Sequence[Var], late: int, segments: int) -> list[int]:
    """Where segments after the first start: each makes about as much that is kept, and reads little of the others."""
    totals = list(itertools.accumulate(nbytes(v) for v in crossing))
    if segments == 1 or not totals:
        return []
    held = _held(program, late)
    positions = [program.producer[v] for v in crossing]
    goals = [positions[bisect_left(totals, totals[-1] * k / segments)] + 1 for k in range(segments + 1)]
    starts = []
    for before, goal, after in zip(goals, goals[1:], goals[2:], strict=False):
        near = range(max(1, (before + goal) // 2 + 1), min(late, (goal + after) // 2 + 1))
        starts.append(min(near, key=lambda i: (held[i], abs(i - goal)), default=goal))
    return sorted(set(starts))


def _apart(program: Program, late: int, starts: Sequence[int]) -> set[Var]:
    """What is read early in a later segment than it is made in."""
    return {
        v
        for v in _early(program, late)
        if any(
            bisect_right(starts, reader) > bisect_right(starts, program.producer[v])
            for reader in program.consumers.get(v, ())
            if reader < late
        )
    }
