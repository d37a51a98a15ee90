"""One computation of an HLO module as an ordering problem, with XLA's own rules of what shares memory with what.

A node is an instruction that does work; those that only name or regroup values run as soon as they can. A loop or
branch is one node: what its computations hold while they run is that node's extra bytes, and what they share with
their caller is the caller's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from ..hlo.assignment import Position
from ..hlo.dataflow import RUNS_COMPUTATIONS, Dataflow, positions
from ..hlo.module import Computation, Instruction, Module
from ..hlo.place import may_take_over, result_values, sharing_values
from ..hlo.ranges import flatten, reads
from .hosts import Hosts, hosts_of
from .problem import Loan, Order, OrderProblem, Storage

# They compute nothing and hold nothing of their own.
_SILENT = frozenset({"parameter", "constant", "get-tuple-element", "tuple", "bitcast"})


Group = tuple[Position, ...]
"""Values that share memory by construction."""


@dataclasses.dataclass(frozen=True, eq=False)
class ComputationOrder:
    """A computation, and the problem of its order.

    Attributes:
      nodes: the instructions that the problem's nodes stand for, in the order of the schedule they were read from.
      problem: temporaries alone.
      hosts: memory of the call's results in which temporaries may lie; None where there is none.
    """

    computation: Computation
    nodes: tuple[Instruction, ...]
    problem: OrderProblem
    hosts: Hosts | None

    @property
    def host_bytes(self) -> int:
        """Bytes of temporaries that lie in results' memory at one time, at the most."""
        return 0 if self.hosts is None else self.hosts.bytes

    @property
    def default(self) -> Order:
        """The order of the schedule that the problem was read from."""
        return tuple(range(len(self.nodes)))

    def sequence(self, order: Order) -> tuple[str, ...]:
        """The names of all the computation's instructions, in an order of its nodes."""
        waiting = {i: len(before) for i, before in self._before.items()}
        names: list[str] = []

        def run(instruction: Instruction) -> None:
            names.append(instruction.name)
            for user in self._users.get(instruction.id, ()):
                waiting[user.id] -= 1
                if not waiting[user.id] and user.opcode in _SILENT:
                    run(user)

        for instruction in self.computation.instructions:
            if instruction.opcode in _SILENT and not self._before[instruction.id]:
                run(instruction)
        for node in order:
            run(self.nodes[node])
        return tuple(names)

    @functools.cached_property
    def _before(self) -> dict[int, frozenset[int]]:
        """The instructions that each one waits for."""
        return {i.id: frozenset((*i.operands, *i.controls)) for i in self.computation.instructions}

    @functools.cached_property
    def _users(self) -> dict[int, list[Instruction]]:
        """The instructions that wait for each one."""
        users: dict[int, list[Instruction]] = {}
        for instruction in self.computation.instructions:
            for before in self._before[instruction.id]:
                users.setdefault(before, []).append(instruction)
        return users

    def order_of(self, names: Sequence[str]) -> Order | None:
        """The nodes in the order of these names; None where some are missing."""
        time = {name: t for t, name in enumerate(names)}
        if not all(node.name in time for node in self.nodes):
            return None
        return tuple(sorted(range(len(self.nodes)), key=lambda n: time[self.nodes[n].name]))


@dataclasses.dataclass(frozen=True)
class _Access:
    """A node that touches a piece of memory, and whether it writes it."""

    node: int
    writes: bool


class OrderingProblems:
    """The problems of all computations of a scheduled module that run as code of their own."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.flow = Dataflow(module)
        self._schedule = flatten(module)
        self._home = {i.id: c for c in module.computations for i in c.instructions}
        self._results = result_values(self.flow)

    @property
    def computations(self) -> tuple[Computation, ...]:
        """Callees first."""
        return tuple(c for c in self.module.computations if c.id in self._schedule.spans)

    def problem(self, computation: Computation, extra: Mapping[int, int]) -> ComputationOrder:
        """The problem of one computation.

        Args:
          extra: bytes that each computation it runs holds while it runs, by computation id.
        """
        return _Builder(self, computation, extra).built()

    @functools.cached_property
    def groups(self) -> list[Group]:
        """The values of the module, in sets of those that share memory by construction."""
        values = [
            (i.id, index)
            for i in self._schedule.instructions
            for index in positions(i.shape)
            if self.flow.value((i.id, index)) == (i.id, index)
        ]
        return sharing_values(self.flow, values)

    @functools.cached_property
    def accesses(self) -> dict[Position, list[tuple[Instruction, bool]]]:
        """For each value, the instructions that touch it, and whether they write it."""
        touched: dict[Position, list[tuple[Instruction, bool]]] = {}
        for instruction in self._schedule.instructions:
            if instruction.opcode not in _SILENT:
                for read in dict.fromkeys(map(self.flow.value, reads(self.module, instruction))):
                    touched.setdefault(read, []).append((instruction, False))
            for index, _ in instruction.shape.leaves():
                if self.flow.value((instruction.id, index)) == (instruction.id, index):
                    touched.setdefault((instruction.id, index), []).append((instruction, True))
        return touched

    def owner(self, group: Group) -> Computation:
        """The outermost computation that touches the memory of a group."""
        homes = [self._home[i.id] for value in group for i, _ in self.accesses.get(value, ())]
        return min(homes, key=lambda c: len(list(self._callers(c))), default=self.module.entry)

    def level(self, instruction: Instruction, computation: Computation) -> Instruction | None:
        """The instruction of `computation` that runs `instruction`, itself perhaps; None where none does."""
        home = self._home[instruction.id]
        while home is not computation:
            caller = self.flow.callers.get(home.id)
            if caller is None:
                return None
            instruction, home = caller, self._home[caller.id]
        return instruction

    def bytes(self, group: Group) -> int:
        """Bytes of the memory of a group."""
        index = group[0][1]
        return self.module.instructions[group[0][0]].shape.at(index).bytes

    def is_result(self, group: Group) -> bool:
        """Whether the caller finds part of the call's result there."""
        return not self._results.isdisjoint(group)

    def is_temporary(self, group: Group) -> bool:
        """Whether XLA sets the memory aside for as long as the call takes."""
        constant = any(self.module.instructions[i].opcode == "constant" for i, _ in group)
        return not (constant or self.is_argument(group) or self.is_result(group))

    def is_argument(self, group: Group) -> bool:
        """Whether the caller hands the memory over."""
        arguments = {p.id for p in self.module.entry.parameters.values()}
        return any(i in arguments for i, _ in group)

    def _callers(self, computation: Computation) -> Iterator[Instruction]:
        caller = self.flow.callers.get(computation.id)
        while caller is not None:
            yield caller
            caller = self.flow.callers.get(self._home[caller.id].id)


class _Builder:
    def __init__(self, problems: OrderingProblems, computation: Computation, extra: Mapping[int, int]) -> None:
        self._of, self._computation = problems, computation
        self._nodes = tuple(i for i in computation.instructions if i.opcode not in _SILENT)
        self._number = {i.id: n for n, i in enumerate(self._nodes)}
        self._extra = tuple(
            max((extra.get(c, 0) for c in i.called), default=0) if i.opcode in RUNS_COMPUTATIONS else 0
            for i in self._nodes
        )

    def built(self) -> ComputationOrder:
        inside = [g for g in self._of.groups if self._is_temporary(g)]
        predecessors = self._predecessors()
        problem = self._problem(predecessors, [self._storage(g) for g in inside], inside)
        return ComputationOrder(
            computation=self._computation,
            nodes=self._nodes,
            problem=problem,
            hosts=self._hosts(predecessors, inside) if self._computation is self._of.module.entry else None,
        )

    def _is_temporary(self, group: Group) -> bool:
        return self._of.is_temporary(group) and self._of.owner(group) is self._computation

    def _predecessors(self) -> list[set[int]]:
        """What must run before each node: what it reads, and whatever touches memory before it writes over it."""
        after: dict[int, set[int]] = {}  # the nodes that each instruction waits for
        for instruction in self._computation.instructions:
            waits: set[int] = set()
            for before in (*instruction.operands, *instruction.controls):
                waits |= {self._number[before]} if before in self._number else after.get(before, set())
            after[instruction.id] = waits
        predecessors = [after[node.id] for node in self._nodes]
        for group in self._of.groups:
            if len(group) > 1:
                for earlier, later in _kept_apart(self._accesses(group)):
                    predecessors[later].add(earlier)
        return predecessors

    def _accesses(self, group: Group) -> list[_Access]:
        """The nodes that touch the memory of a group, in the order of the schedule; reads first."""
        found = []
        for value in group:
            for instruction, writes in self._of.accesses.get(value, ()):
                here = self._of.level(instruction, self._computation)
                if here is not None and here.id in self._number:
                    found.append(_Access(self._number[here.id], writes))
        return sorted(set(found), key=lambda a: (a.node, a.writes))

    def _storage(self, group: Group, *others: int) -> Storage:
        """A group's memory, and the nodes that touch it: with some others."""
        accesses = self._accesses(group)
        writers = tuple(dict.fromkeys(a.node for a in accesses if a.writes))
        readers = tuple(dict.fromkeys(a.node for a in accesses if not a.writes))
        return Storage(self._of.bytes(group), writers, readers + others)

    def _hosts(self, predecessors: list[set[int]], inside: list[Group]) -> Hosts | None:
        """The results' memory, as far as temporaries fit into it."""
        end, start = len(self._nodes), len(self._nodes) + 1
        waits = [*({*before, start} for before in predecessors), {*range(end), start}, set()]
        storages, groups, places = [self._storage(g) for g in inside], list(inside), []
        for group in filter(self._of.is_result, self._of.groups):
            given = tuple(v for v in group if self._of.is_argument((v,)))
            made = tuple(v for v in group if v not in given)
            parts = [(part, by) for part, by in ((given, start), (made, end)) if part]
            places.append(tuple(range(len(storages), len(storages) + len(parts))))
            storages += [self._storage(part, by) for part, by in parts]
            groups += [part for part, _ in parts]
        own = set(inside)
        inner = [self._of.bytes(g) for g in self._of.groups if g not in own and self._of.is_temporary(g)]
        return hosts_of(self._problem(waits, storages, groups), len(inside), places, inner)

    def _problem(self, predecessors: list[set[int]], storages: list[Storage], groups: list[Group]) -> OrderProblem:
        alone = {group[0]: k for k, group in enumerate(groups) if len(group) == 1}
        loans = [
            Loan(number, alone[operand], alone[result])
            for number, node in enumerate(self._nodes)
            for operand, result in may_take_over(self._of.flow, node)
            if operand in alone and result in alone
        ]
        extra = self._extra + (0,) * (len(predecessors) - len(self._nodes))
        return OrderProblem(tuple(tuple(sorted(p)) for p in predecessors), tuple(storages), tuple(loans), extra)


def _kept_apart(accesses: Sequence[_Access]) -> Iterator[tuple[int, int]]:
    """(earlier, later) node for each write and what touches the same memory next to it."""
    last: int | None = None
    since: list[int] = []
    for access in accesses:
        if access.writes:
            yield from ((node, access.node) for node in since if node != access.node)
            since = []
            if last is not None and last != access.node:
                yield last, access.node
            last = access.node
        else:
            since.append(access.node)
            if last is not None and last != access.node:
                yield last, access.node
