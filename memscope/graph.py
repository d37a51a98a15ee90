"""The optimised, scheduled HLO module as a graph: what computes what, and the bytes that each result holds."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from .hlo.assignment import Position
from .hlo.dataflow import RUNS_COMPUTATIONS, Dataflow
from .hlo.module import Computation as HloComputation
from .hlo.module import Index, Instruction

if TYPE_CHECKING:
    from .profile import Buffer

Role = Literal["entry", "fusion", "body", "condition", "branch", "call"]
EdgeKind = Literal["data", "control"]
Describe = Callable[[Instruction], tuple[str, str | None]]

_OPENS = RUNS_COMPUTATIONS | {"fusion"}
# They compute nothing: an edge leads past them, from what computes a value to what reads it.
_FOLDED = frozenset({"tuple", "get-tuple-element", "bitcast"})


@dataclasses.dataclass(frozen=True)
class Node:
    """An HLO instruction.

    Attributes:
      name: of the instruction.
      opcode: of HLO, as in "fusion".
      op: the JAX primitive it comes from where that is known, else the opcode.
      dtype, shape: of its result; of the largest array in it where that is a tuple.
      arrays: how many arrays its result is made of.
      bytes: of the buffers that its results lie in; 0 inside a fusion, where nothing has a buffer.
      buffers: the names (as in `Profile.buffers`) of these, largest first.
      source: the user's own line, as in "knn.py:12", or None.
      is_result: the computation returns it, or a part of it.
      on_peak_path: it is a step of `Profile.peak_path`.
      live_at_peak: one of its buffers holds memory at the peak.
      opens: the names of the computations that it runs: a fusion's own, a loop's body and condition, ...
    """

    name: str
    opcode: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    arrays: int = 1
    bytes: int = 0
    buffers: tuple[str, ...] = ()
    source: str | None = None
    is_result: bool = False
    on_peak_path: bool = False
    live_at_peak: bool = False
    opens: tuple[str, ...] = ()

    @property
    def buffer(self) -> str | None:
        """The largest of its buffers."""
        return self.buffers[0] if self.buffers else None

    @property
    def is_input(self) -> bool:
        """It stands for a value that is there already: a parameter, a part of one, or a constant."""
        return self.opcode in ("parameter", "constant", "get-tuple-element")


@dataclasses.dataclass(frozen=True)
class Edge:
    """`tail` comes before `head`: by the data it hands on, or by XLA's order alone ("control")."""

    tail: str
    head: str
    kind: EdgeKind = "data"
    on_peak_path: bool = False


@dataclasses.dataclass(frozen=True)
class Computation:
    """A graph of its own: the program itself, a fusion, a loop's body or condition, a branch.

    Attributes:
      role: what it is to the instruction that runs it.
      caller: that instruction, or None for the program itself.
      parent: the computation that instruction lies in, or None.
      nodes: in the order of the schedule.
      edges: by their heads, in that order too.
    """

    name: str
    role: Role
    caller: str | None
    parent: str | None
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    @functools.cached_property
    def node(self) -> dict[str, Node]:
        """Its nodes by name."""
        return {n.name: n for n in self.nodes}


@dataclasses.dataclass(frozen=True)
class HloGraph:
    """A module's computations as graphs, the program itself first.

    `tuple` and `bitcast` are left out, and so is `get-tuple-element` but for one of a loop body's or branch's own
    parameter, which stands there for that part of the state in place of the parameter. Edges lead past what is
    left out: from the instruction that computes a value to those that read it.

    Attributes:
      peak: the instruction that makes the largest buffer at the peak, or None.
    """

    computations: tuple[Computation, ...]
    peak: str | None

    @property
    def entry(self) -> Computation:
        """The program itself."""
        return self.computations[0]

    @functools.cached_property
    def by_name(self) -> dict[str, Computation]:
        """The computations by name."""
        return {c.name: c for c in self.computations}

    @functools.cached_property
    def home(self) -> dict[str, Computation]:
        """The computation that each instruction lies in."""
        return {n.name: c for c in self.computations for n in c.nodes}

    @property
    def nodes(self) -> Iterator[Node]:
        """Every node of every computation."""
        return itertools.chain.from_iterable(c.nodes for c in self.computations)

    @functools.cached_property
    def largest(self) -> int:
        """The most bytes that one node holds."""
        return max((n.bytes for n in self.nodes), default=0)


@dataclasses.dataclass(frozen=True, eq=False)
class GraphSource:
    """What a graph is built from.

    Attributes:
      owners: the Buffer that the value defined at a position lies in.
      describe: the op and the user's line of an instruction.
    """

    flow: Dataflow
    owners: Mapping[Position, Buffer]
    describe: Describe


def hlo_graph(source: GraphSource, peak: str | None, path: Sequence[str]) -> HloGraph:
    """The graph of a module.

    Args:
      peak: the HLO instruction that makes the largest buffer at the peak.
      path: the instructions of the peak path, in their order.
    """
    named = {c.name: c for c in source.flow.module.computations}
    found = [_Builder(source, source.flow.module.entry, path).computation("entry", None, None)]
    for outer in found:  # grows while what is found is opened
        for node in outer.nodes:
            for number, name in enumerate(node.opens):
                if name in named:  # one that several instructions run is shown for the first of them
                    inner = _Builder(source, named.pop(name), path)
                    found.append(inner.computation(_role(node.opcode, number), node.name, outer.name))
    return HloGraph(tuple(found), peak)


def _role(opcode: str, number: int) -> Role:
    """What the computation that stands first, second, ... among those of an instruction is to it."""
    match opcode:
        case "fusion":
            return "fusion"
        case "while":
            return "condition" if number else "body"
        case "conditional":
            return "branch"
    return "call"


class _Builder:
    """Builds one computation's graph."""

    def __init__(self, source: GraphSource, hlo: HloComputation, path: Sequence[str]) -> None:
        self.source, self.hlo, self.path = source, hlo, frozenset(path)
        self.path_edges = frozenset(itertools.pairwise(path))
        self.instructions = {i.id: i for i in hlo.instructions}
        self.results = frozenset(self.producers(hlo.root))

    def computation(self, role: Role, caller: str | None, parent: str | None) -> Computation:
        kept = [i for i in self.hlo.instructions if self.is_kept(i)]
        nodes = tuple(self.node(i) for i in kept)
        edges = {(e.tail, e.head): e for i in kept for e in self.edges(i)}  # control first: data wins
        return Computation(self.hlo.name, role, caller, parent, nodes, tuple(edges.values()))

    def is_kept(self, instruction: Instruction) -> bool:
        if instruction.opcode == "parameter":
            return not instruction.shape.is_tuple or instruction.id not in self.split_parameters
        return instruction.opcode not in _FOLDED or self.is_part_of_parameter(instruction)

    @functools.cached_property
    def split_parameters(self) -> frozenset[int]:
        """Tuple parameters that only `get-tuple-element` reads."""
        whole = {o for i in self.hlo.instructions if i.opcode != "get-tuple-element" for o in i.operands}
        taken = {o for i in self.hlo.instructions if i.opcode == "get-tuple-element" for o in i.operands}
        return frozenset(taken - whole)

    def is_part_of_parameter(self, instruction: Instruction) -> bool:
        if instruction.opcode != "get-tuple-element" or instruction.shape.is_tuple:
            return False
        operand = self.instructions[instruction.operands[0]]
        return operand.opcode == "parameter" and operand.id in self.split_parameters

    def producers(self, instruction_id: int, index: Index = ()) -> Iterator[int]:
        """The kept instructions that compute what is found at an index of an instruction's result."""
        instruction = self.instructions[instruction_id]
        if self.is_kept(instruction):
            yield instruction_id
        elif instruction.opcode == "tuple":
            parts = instruction.operands[index[0] : index[0] + 1] if index else instruction.operands
            for part in parts:
                yield from self.producers(part, index[1:])
        elif instruction.opcode == "get-tuple-element":
            yield from self.producers(instruction.operands[0], (instruction.tuple_index, *index))
        elif instruction.operands:
            yield from self.producers(instruction.operands[0], index)

    def edges(self, instruction: Instruction) -> Iterator[Edge]:
        if instruction.opcode in _FOLDED:  # a part of the parameter: the parameter itself is not there
            return
        for operand in instruction.controls:
            yield from self.edges_from(operand, instruction, "control")
        for operand in instruction.operands:
            yield from self.edges_from(operand, instruction, "data")

    def edges_from(self, operand: int, instruction: Instruction, kind: EdgeKind) -> Iterator[Edge]:
        for tail in self.producers(operand):
            ends = self.instructions[tail].name, instruction.name
            yield Edge(*ends, kind, ends in self.path_edges)

    def node(self, instruction: Instruction) -> Node:
        buffers = self.buffers(instruction)
        op, line = self.source.describe(instruction)
        largest = max((s for _, s in instruction.shape.leaves()), key=lambda s: s.bytes, default=instruction.shape)
        by_id = self.source.flow.module.by_id
        return Node(
            name=instruction.name,
            opcode=instruction.opcode,
            op=op,
            dtype=largest.dtype,
            shape=largest.dimensions,
            arrays=sum(1 for _ in instruction.shape.leaves()),
            bytes=sum(b.bytes for b in buffers),
            buffers=tuple(b.name for b in buffers),
            source=line,
            is_result=instruction.id in self.results,
            on_peak_path=instruction.name in self.path,
            live_at_peak=any(b.live_at_peak and b.bytes for b in buffers),
            opens=tuple(by_id[c].name for c in instruction.called) if instruction.opcode in _OPENS else (),
        )

    def buffers(self, instruction: Instruction) -> list[Buffer]:
        values = (self.source.flow.value((instruction.id, index)) for index, _ in instruction.shape.leaves())
        owners = (self.source.owners.get(value) for value in values)
        return sorted({b.name: b for b in owners if b is not None}.values(), key=lambda b: -b.bytes)
