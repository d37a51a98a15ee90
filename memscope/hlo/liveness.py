"""Which buffers are alive at each step, and how many bytes they hold together."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from .assignment import Allocation, Assignment, Position, Slot
from .dataflow import Dataflow
from .gpu_sharing import may_take_over_on_gpu
from .heap import ALIGNMENT, GPU_ALIGNMENT, best_fit, block_of_groups, temporary_blocks
from .module import Instruction, Module, Shape
from .place import Group, Kind, Rules, Sharing, result_values, text_order
from .ranges import Schedule, Span, flatten, live_ranges

ToSteps = Callable[[Span], Span | None]

# They compute nothing and hold nothing: not worth a step of the timeline.
SILENT = frozenset({"parameter", "constant", "get-tuple-element", "tuple", "bitcast"})


@dataclasses.dataclass(frozen=True, eq=False)
class LiveBuffer:
    """A piece of memory and the values that share it by construction.

    Attributes:
      values: the positions that define them, in the order of the schedule.
      offset: in bytes, in its allocation, or in the simulated heap; None where it is not known.
      spans: the steps at which it is alive, first and last inclusive.
      parameter: the number of the argument it is, or None.
    """

    values: tuple[Position, ...]
    shape: Shape
    bytes: int
    kind: Kind
    spans: tuple[Span, ...]
    parameter: int | None = None
    allocation: int | None = None
    offset: int | None = None

    @property
    def defined_at(self) -> int:
        return min(start for start, _ in self.spans)

    @property
    def freed_at(self) -> int:
        return max(end for _, end in self.spans)

    def alive_at(self, step: int) -> bool:
        return any(start <= step <= end for start, end in self.spans)


@dataclasses.dataclass(frozen=True, eq=False)
class Liveness:
    """The buffers of a module over its schedule.

    Attributes:
      steps: the instructions that do work; those of a loop's body stand, once, before the loop.
      temporaries: bytes of temporaries at each step; where placed, the bytes of their allocations in use, so
        that two values that lie on one another count once.
      heap_bytes: of the heap that the temporaries are simulated in; None where XLA gave its own placement.
    """

    flow: Dataflow
    steps: tuple[Instruction, ...]
    buffers: tuple[LiveBuffer, ...]
    temporaries: tuple[int, ...]
    heap_bytes: int | None = None


def liveness(module: Module, assignment: Assignment | None, on_gpu: bool = False) -> Liveness:
    """Live ranges of every buffer: in XLA's own sizes and places, or from the module alone without them.

    Args:
      on_gpu: what shares memory without an assignment is by the rules of XLA's GPU compiler, not its CPU compiler.
    """
    placed = None if assignment is None else {s.position for a in assignment.allocations for s in a.slots}
    flow = Dataflow(module, placed)
    schedule = flatten(module)
    ranges = live_ranges(flow, schedule)
    steps, to_steps = _steps(schedule)
    if assignment is None:
        rules = Rules(flow, may_take_over_on_gpu if on_gpu else None)
        groups = rules.place(schedule, ranges, text_order(module, schedule))
        blocks = temporary_blocks(groups)
        heap = best_fit([block_of_groups(b) for b in blocks], GPU_ALIGNMENT if on_gpu else ALIGNMENT)
        offsets = {g.values[0]: offset for b, offset in zip(blocks, heap.offsets, strict=True) for g in b}
        buffers, temporaries = _unplaced(groups, offsets, to_steps, len(steps))
        return Liveness(flow, steps, tuple(buffers), tuple(temporaries), heap.bytes)
    buffers = _placed(flow, assignment, schedule, ranges, to_steps)
    temporaries = _occupied(assignment, ranges, to_steps, len(steps))
    return Liveness(flow, steps, tuple(buffers), tuple(temporaries))


def _steps(schedule: Schedule) -> tuple[tuple[Instruction, ...], ToSteps]:
    """The instructions worth a step, and the way from times of the schedule to steps."""
    times = [t for t, i in enumerate(schedule.instructions) if i.opcode not in SILENT]
    times = times or [len(schedule.instructions) - 1]

    def to_steps(span: Span) -> Span | None:
        start, end = bisect.bisect_left(times, span[0]), bisect.bisect_right(times, span[1]) - 1
        return (start, end) if start <= end else None

    return tuple(schedule.instructions[t] for t in times), to_steps


def _placed(
    flow: Dataflow, assignment: Assignment, schedule: Schedule, ranges: dict[Position, Span], to_steps: ToSteps
) -> list[LiveBuffer]:
    sharing = Sharing()
    seen: dict[Position, int] = {s.position: s.value for a in assignment.allocations for s in a.slots}
    for value, position in assignment.shared:
        sharing.join(seen.setdefault(position, value), value)
    members: dict[object, list[tuple[Allocation, Slot]]] = {}
    for allocation in assignment.allocations:
        for slot in allocation.slots:
            members.setdefault(sharing.root(slot.value), []).append((allocation, slot))
    results = result_values(flow)
    buffers = []
    for group in members.values():
        group.sort(key=lambda m: schedule.time.get(m[1].position[0], 0))
        allocation, slot = group[0]
        shape = flow.module.instructions[slot.position[0]].shape.at(slot.position[1])
        if shape.is_tuple:
            continue
        values = tuple(s.position for _, s in group)
        spans = _to_steps((ranges[v] for v in values if v in ranges), to_steps)
        if spans:
            kind = _kind(allocation, bool(results & set(values)))
            size = max(s.bytes for _, s in group)
            buffers.append(
                LiveBuffer(values, shape, size, kind, spans, allocation.parameter, allocation.index, slot.offset)
            )
    return buffers


def _kind(allocation: Allocation, is_result: bool) -> Kind:
    if allocation.parameter is not None:
        return "argument"
    if allocation.is_constant:
        return "constant"
    return "output" if is_result else "temporary"


def _to_steps(spans: Iterable[Span], to_steps: ToSteps) -> tuple[Span, ...]:
    """Spans of steps, those that touch made one."""
    merged: list[Span] = []
    for span in sorted(s for s in map(to_steps, spans) if s is not None):
        if merged and span[0] <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], span[1])
        else:
            merged.append(span)
    return tuple(merged)


def _occupied(assignment: Assignment, ranges: dict[Position, Span], to_steps: ToSteps, steps: int) -> list[int]:
    """Bytes of the temporary allocations that some live value covers, at each step."""
    total = np.zeros(steps, np.int64)
    for allocation in assignment.allocations:
        if allocation.is_temporary:
            spans = [(s, to_steps(ranges[s.position])) for s in allocation.slots if s.position in ranges]
            total += _covered([(s, span) for s, span in spans if span is not None], steps)
    return [int(t) for t in total]


def _covered(slots: list[tuple[Slot, Span]], steps: int) -> np.ndarray:
    edges = np.unique([e for s, _ in slots for e in (s.offset, s.offset + s.bytes)]).astype(np.int64)
    lengths = np.diff(edges)
    changes: list[list[tuple[Slot, int]]] = [[] for _ in range(steps + 1)]
    for slot, (start, end) in slots:
        changes[start].append((slot, 1))
        changes[end + 1].append((slot, -1))
    users = np.zeros(len(lengths), np.int64)
    covered = np.zeros(steps, np.int64)
    for step in range(steps):
        for slot, sign in changes[step]:
            first, last = np.searchsorted(edges, (slot.offset, slot.offset + slot.bytes))
            users[first:last] += sign
        unchanged = step > 0 and not changes[step]
        covered[step] = covered[step - 1] if unchanged else lengths[users > 0].sum()
    return covered


def _unplaced(
    groups: Iterable[Group], offsets: Mapping[Position, int], to_steps: ToSteps, steps: int
) -> tuple[list[LiveBuffer], list[int]]:
    change = np.zeros(steps + 1, np.int64)
    buffers = []
    for group in groups:
        spans = _to_steps(group.spans, to_steps)
        if not spans:
            continue
        buffers.append(
            LiveBuffer(
                group.values, group.shape, group.bytes, group.kind, spans, group.parameter,
                offset=offsets.get(group.values[0]),
            )
        )  # fmt: skip
        if group.kind == "temporary" and not group.hosted:
            for start, end in spans:
                change[start] += group.bytes
                change[end + 1] -= group.bytes
    return buffers, [int(b) for b in np.cumsum(change[:-1])]
