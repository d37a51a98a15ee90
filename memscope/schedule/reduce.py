"""Exact reductions of an ordering problem, and the way back from an order of what is left.

A node that frees and never holds may run as early as it can, and one that holds and never frees as late as it can:
neither is a choice, so neither stays in the problem. In a gradient most nodes are of one kind or the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from .problem import Lifetime, Loan, Order, OrderProblem
from .reach import Reach

EXTRA = 5
"""How many times as much is negligible where a node needs it alone: that never adds up."""


@dataclasses.dataclass(frozen=True)
class _Gone:
    """A node that was taken out: it runs right after the last, or right before the first, of `beside`.

    Without any it runs before, or after, all the rest.
    """

    node: int
    side: Literal["after", "before"]
    beside: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A smaller problem whose optimum is that of the original without its negligible storages.

    Attributes:
      problem: what is left to decide.
      nodes: for each of its nodes, the node of the original.
    """

    problem: OrderProblem
    nodes: tuple[int, ...]
    _gone: tuple[_Gone, ...]

    def expand(self, order: Sequence[int]) -> Order:
        """An order of the original problem; its peak is the same but for negligible storages."""
        line = [self.nodes[node] for node in order]
        for gone in reversed(self._gone):
            line.insert(_place(line, gone), gone.node)
        return tuple(line)

    def restrict(self, order: Sequence[int]) -> Order:
        """The order in which the nodes that are left stand in an order of the original."""
        index = {node: i for i, node in enumerate(self.nodes)}
        return tuple(index[node] for node in order if node in index)


def _place(line: list[int], gone: _Gone) -> int:
    if gone.side == "before":
        return next((i for i, node in enumerate(line) if node in gone.beside), len(line))
    return next((i + 1 for i in reversed(range(len(line))) if line[i] in gone.beside), 0)


def reduce(problem: OrderProblem, negligible: int = 0) -> Reduction:
    """Takes out every node whose best place is known.

    Args:
      problem: the original.
      negligible: storages of up to so many bytes are left out, and up to `EXTRA` times as many that a node needs only
        while it runs; so the optimum of what is left is a lower bound.

    Raises:
      ValueError: the precedences have a cycle.
    """
    state = _State(problem, negligible)
    # What runs early goes to predecessors and what runs late to successors: those are dealt with before it.
    rank = state.rank
    waiting = set(range(problem.size))
    while waiting:
        touched: set[int] = set()
        for node in sorted(waiting, key=rank.__getitem__):
            touched |= state.run_early(node)
        for node in sorted(waiting | touched, key=rank.__getitem__, reverse=True):
            touched |= state.run_late(node)
        waiting = touched
    return state.result()


class _State:
    """The problem while nodes are taken out of it.

    Reachability among the nodes that stay never changes: the predecessors of a node that goes are put before its
    successors.
    """

    def __init__(self, problem: OrderProblem, negligible: int) -> None:
        self._reach = Reach(problem.predecessors)
        self.rank = {node: i for i, node in enumerate(self._reach.topological)}
        self._before = [set(self._reach.last(set(nodes))) for nodes in problem.predecessors]
        self._after: list[set[int]] = [set() for _ in problem.predecessors]
        for node, before in enumerate(self._before):
            for earlier in before:
                self._after[earlier].add(node)
        self._least_extra = EXTRA * negligible
        self._extra = [self._rounded(more) for more in problem.extra or (0,) * problem.size]
        self._bytes = [s.bytes if s.bytes > negligible and s.starts and s.ends else 0 for s in problem.storages]
        held = [(s.starts, s.ends) if b else ((), ()) for s, b in zip(problem.storages, self._bytes, strict=True)]
        self._starts = [self._reach.first(starts) for starts, _ in held]
        self._ends = [self._reach.last(ends) for _, ends in held]
        self._starting: list[set[int]] = [set() for _ in problem.predecessors]
        self._ending: list[set[int]] = [set() for _ in problem.predecessors]
        for storage, (starts, ends) in enumerate(zip(self._starts, self._ends, strict=True)):
            for node in starts:
                self._starting[node].add(storage)
            for node in ends:
                self._ending[node].add(storage)
        self._loans_at: list[list[Loan]] = [[] for _ in problem.predecessors]
        for loan in filter(self._possible, problem.loans):
            self._loans_at[loan.node].append(loan)
        self._order: list[_Gone] = []
        self._gone = [False] * problem.size

    def _rounded(self, extra: int) -> int:
        return extra if extra > self._least_extra else 0

    def _possible(self, loan: Loan) -> bool:
        return loan.node in self._ends[loan.lender] and loan.node in self._starts[loan.borrower]

    def run_early(self, node: int) -> set[int]:
        """Takes the node out if it may as well run as soon as it can; gives the nodes that this may have changed."""
        if self._stays(node) or (len(self._before[node]) > 1 and self._ending[node]):
            return set()
        in_place = self._in_place(node)
        if in_place is None:
            return set()
        for loan in in_place:
            self._merge(loan)
        return self._remove(node, "after")

    def run_late(self, node: int) -> set[int]:
        """Takes the node out if it may as well run as late as it can; gives the nodes that this may have changed."""
        return set() if self._stays(node) or self._ending[node] else self._remove(node, "before")

    def _stays(self, node: int) -> bool:
        return self._gone[node] or self._extra[node] > 0

    def _in_place(self, node: int) -> list[Loan] | None:
        """Loans by which all that the node starts takes the place of what surely ends there; None without."""
        loans: dict[int, Loan] = {}
        lenders: set[int] = set()
        for loan in self._loans_at[node]:
            sure = self._ends[loan.lender] == {node} == self._starts[loan.borrower]
            alike = self._bytes[loan.lender] == self._bytes[loan.borrower]
            if sure and alike and loan.borrower not in loans and loan.lender not in lenders:
                loans[loan.borrower] = loan
                lenders.add(loan.lender)
        return list(loans.values()) if loans.keys() == self._starting[node] else None

    def _merge(self, loan: Loan) -> None:
        """Lets the lender go on under the borrower's name."""
        lender, borrower = loan.lender, loan.borrower
        for node in self._starts[lender]:
            self._loans_at[node] = [
                dataclasses.replace(other, borrower=borrower) if other.borrower == lender else other
                for other in self._loans_at[node]
            ]
        starts, ends = self._starts[lender], self._ends[borrower]
        self._set(lender, set(), set())
        self._set(borrower, starts, ends)

    def _set(self, storage: int, starts: set[int], ends: set[int]) -> None:
        for index, now, then in (
            (self._starting, self._starts[storage], starts),
            (self._ending, self._ends[storage], ends),
        ):
            for node in now - then:
                index[node].discard(storage)
            for node in then - now:
                index[node].add(storage)
        self._starts[storage], self._ends[storage] = starts, ends

    def _remove(self, node: int, side: Literal["after", "before"]) -> set[int]:
        before, after = frozenset(self._before[node]), frozenset(self._after[node])
        touched = {*before, *after}
        for storage in [*self._starting[node]]:
            starts = self._reach.first(self._starts[storage] - {node} | after)
            self._set(storage, starts, self._ends[storage])
            touched |= starts
        for storage in [*self._ending[node]]:
            ends = self._reach.last(self._ends[storage] - {node} | before)
            self._set(storage, self._starts[storage], ends)
            touched |= ends
        self._bridge(node)
        self._loans_at[node] = []
        self._gone[node] = True
        self._order.append(_Gone(node, side, before if side == "after" else after))
        return touched

    def _bridge(self, node: int) -> None:
        """Puts the node's predecessors before its successors."""
        for later in [*self._after[node]]:
            then = self._reach.last(self._before[later] - {node} | self._before[node])
            for earlier in self._before[later] - then:
                self._after[earlier].discard(later)
            for earlier in then - self._before[later]:
                self._after[earlier].add(later)
            self._before[later] = then
        for earlier in self._before[node]:
            self._after[earlier].discard(node)

    def result(self) -> Reduction:
        nodes = [node for node in self._reach.topological if not self._gone[node]]
        index = {node: i for i, node in enumerate(nodes)}
        loans = [loan for node in nodes for loan in self._loans_at[node] if self._possible(loan)]
        lent = {s for loan in loans for s in (loan.lender, loan.borrower)}
        extra = [self._extra[node] for node in nodes]
        kept: dict[int, Lifetime] = {}
        for storage, size in enumerate(self._bytes):
            starts, ends = (frozenset(index[n] for n in side[storage]) for side in (self._starts, self._ends))
            if starts == ends and len(starts) == 1 and storage not in lent:
                extra[next(iter(starts))] += size
            elif starts:
                kept[storage] = Lifetime(size, starts, ends)
        number = {storage: i for i, storage in enumerate(kept)}
        problem = OrderProblem(
            predecessors=tuple(tuple(sorted(index[n] for n in self._before[node])) for node in nodes),
            storages=tuple(kept.values()),
            loans=tuple(Loan(index[loan.node], number[loan.lender], number[loan.borrower]) for loan in loans),
            extra=tuple(map(self._rounded, extra)),
        )
        return Reduction(problem, tuple(nodes), tuple(self._order))
