"""The loops of a plan as a person sees them: what exists in chunks, and what is left behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .axes import Window
from .chunks import fused_vars
from .program import Program, aval_of, nbytes
from .search import Candidate
from .stream import Carried, Fold, LoopPlan, Resident, Sink, Stack, sink_vars
from .stream.resident import Part, kept_bytes, parts_of


@dataclasses.dataclass(frozen=True)
class Stream:
    """An intermediate that exists one chunk at a time.

    Attributes:
      shape, dtype: of the whole array, which never exists.
      op: the primitive that makes it.
      axis: the axis it is cut along.
      bytes: of the whole array.
      source: the user's line, as in "knn.py:12".
    """

    shape: tuple[int, ...]
    dtype: str
    op: str
    axis: int
    bytes: int
    source: str | None


@dataclasses.dataclass(frozen=True)
class SinkInfo:
    """What a loop leaves behind.

    Attributes:
      kind: "stack" for a result written chunk by chunk, "state" for what steps hand on to the next, "same" for what
        every chunk finds alike, "online" and "centred" for sums about a running maximum or mean, else the combiner:
        "add", "max", ...
    """

    shape: tuple[int, ...]
    dtype: str
    op: str
    kind: str
    source: str | None


ONLINE_KINDS = {"exp": "online", "square": "centred"}


@dataclasses.dataclass(frozen=True)
class KeptRows:
    """The last rows of a stream, which one loop keeps and later ones take from there rather than compute them again.

    Attributes:
      shape, dtype, op, axis, source: as those of the stream.
      steps: the loop's steps that they belong to, the last ones.
      rows: how many of `axis`.
      bytes: of these rows.
      made: True in the loop that keeps them, False in one that takes them.
    """

    shape: tuple[int, ...]
    dtype: str
    op: str
    axis: int
    steps: int
    rows: int
    bytes: int
    made: bool
    source: str | None


@dataclasses.dataclass(frozen=True)
class Loop:
    """One loop of a rewritten function.

    Attributes:
      size: steps in all; chunk: steps in one iteration; trips: iterations, a smaller last one included.
      streams: what exists only in chunks, largest first.
      sinks: what the loop leaves behind.
      source: the user's line of the largest stream.
      kept: rows that it keeps for later loops, or takes from an earlier one; its chunks begin anew with them.
    """

    size: int
    chunk: int
    trips: int
    streams: tuple[Stream, ...]
    sinks: tuple[SinkInfo, ...]
    source: str | None
    kept: tuple[KeptRows, ...] = ()


def described_loops(candidate: Candidate) -> tuple[Loop, ...]:
    """The loops as a person sees them: what XLA fuses away is no stream, and one chunk is no loop."""
    inner = [loop for body in candidate.bodies for loop in described_loops(body)]
    if candidate.structure is None:
        return tuple(inner)
    streaming = candidate.structure.streaming
    described = [
        _describe(streaming.program, streaming.remade, *item, candidate.resident) for item in candidate.chunks.items()
    ]
    return (*(loop for loop in described if loop.trips > 1), *inner) or tuple(described)


def _describe(program: Program, remade: frozenset[Any], loop: LoopPlan, chunk: int, resident: Resident | None) -> Loop:
    streams: dict[Any, Stream] = {}
    sunk = {s.var for s in loop.sinks if isinstance(s, Stack)}
    fused = fused_vars(program, loop)
    for task in loop.body:
        eqn = program.eqns[task.eqn]
        for var, window in task.results(program):
            if isinstance(window, Window) and not (var in sunk or var in remade or var in fused):
                streams[var] = Stream(
                    aval_of(var).shape, str(aval_of(var).dtype), eqn.primitive.name, window.axis,
                    nbytes(var), program.sources[task.eqn],
                )  # fmt: skip
    by_size = tuple(sorted(streams.values(), key=lambda s: -s.bytes))
    online: dict[Sink, str] = {joined.total: ONLINE_KINDS[joined.online.kind] for joined in loop.joined}
    sinks = tuple(
        _sink_info(program, sink, var, online.get(sink) or _kind(sink))
        for sink in loop.sinks
        for var in sink_vars(sink)[:1]
    )
    first = by_size[0].source if by_size else (sinks[0].source if sinks else None)
    parts = parts_of(program, loop, resident)
    trips = sum(-(-part.steps // chunk) for part in parts)
    return Loop(loop.steps, chunk, trips, by_size, sinks, first, tuple(_kept_rows(program, parts[-1])))


def _kept_rows(program: Program, part: Part) -> Iterator[KeptRows]:
    for var, window in (*part.keeps, *part.takes):
        index, aval = program.producer[var], aval_of(var)
        yield KeptRows(
            aval.shape, str(aval.dtype), program.eqns[index].primitive.name, window.axis, part.steps,
            window.scale * part.steps, kept_bytes((var, window), part.steps), bool(part.keeps), program.sources[index],
        )  # fmt: skip


def _sink_info(program: Program, sink: Sink, var: Any, kind: str) -> SinkInfo:
    name = program.eqns[sink.task.eqn].primitive.name
    return SinkInfo(aval_of(var).shape, str(aval_of(var).dtype), name, kind, program.sources[sink.task.eqn])


def _kind(sink: Sink) -> str:
    if isinstance(sink, Stack):
        return "stack"
    if isinstance(sink, Fold):
        return "add" if sink.task.factor is None else sink.task.factor.fold or "add"
    return "state" if isinstance(sink, Carried) else "same"
