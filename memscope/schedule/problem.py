"""Minimum-peak ordering as a problem of its own: nodes, what must run before what, and memory that is held meanwhile.

It knows nothing of HLO: one computation's instructions become one problem, and an order of nodes is the answer. This is
the lifetime half of OLLA (arXiv 2210.12924, sections 2.2 and 3), with the sharing of memory that XLA does.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

Order = tuple[int, ...]
"""The nodes in the order in which they run."""


@dataclasses.dataclass(frozen=True)
class Storage:
    """A piece of memory, held from the first node that touches it to the last.

    Attributes:
      bytes: its size.
      writers: nodes that write it; more than one where values share it by construction, as updates in place do.
      readers: nodes that read it.
    """

    bytes: int
    writers: tuple[int, ...]
    readers: tuple[int, ...]

    @functools.cached_property
    def users(self) -> frozenset[int]:
        return frozenset((*self.writers, *self.readers))

    @property
    def starts(self) -> frozenset[int]:
        return self.users

    @property
    def ends(self) -> frozenset[int]:
        return self.users


@dataclasses.dataclass(frozen=True)
class Lifetime:
    """A storage in its general form: held from the first of `starts` to the last of `ends`, both inclusive.

    A reduced problem needs it: the node that frees a storage may have gone, and those that run just before it stay.
    """

    bytes: int
    starts: frozenset[int]
    ends: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Loan:
    """At `node`, the storage `borrower` may take the place of `lender`, if `node` is the last to use that.

    Both are indices into `OrderProblem.storages`. `node` reads the lender and is the first to write the borrower.
    The smaller of the two is saved while the node runs; in XLA they are of one size.
    """

    node: int
    lender: int
    borrower: int


@dataclasses.dataclass(frozen=True)
class OrderProblem:
    """In which order do the nodes need the least memory?

    Attributes:
      predecessors: for each node, those that must run before it.
      storages: what is held, in bytes.
      loans: for each node in order of preference, those that save more first; a storage lends once and borrows once.
      extra: for each node, bytes that it needs only while it runs, as those inside a loop's body.
    """

    predecessors: tuple[tuple[int, ...], ...]
    storages: tuple[Storage | Lifetime, ...]
    loans: tuple[Loan, ...] = ()
    extra: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self.predecessors)

    @functools.cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        after: list[list[int]] = [[] for _ in self.predecessors]
        for node, before in enumerate(self.predecessors):
            for earlier in before:
                after[earlier].append(node)
        return tuple(map(tuple, after))

    def reversed(self) -> OrderProblem:
        """The same problem with time running backwards: its orders are the orders of this one, reversed."""
        return OrderProblem(
            predecessors=self.successors,
            storages=tuple(Lifetime(s.bytes, starts=s.ends, ends=s.starts) for s in self.storages),
            loans=tuple(Loan(loan.node, lender=loan.borrower, borrower=loan.lender) for loan in self.loans),
            extra=self.extra,
        )

    def is_order(self, order: Sequence[int]) -> bool:
        """Whether every node runs once, after its predecessors."""
        time = {node: t for t, node in enumerate(order)}
        if len(order) != self.size or len(time) != self.size:
            return False
        return all(time[p] < time[node] for node, before in enumerate(self.predecessors) for p in before)

    def held(self, order: Sequence[int]) -> tuple[int, ...]:
        """Bytes in use while each node of the order runs."""
        time = {node: t for t, node in enumerate(order)}
        spans = [_span(storage, time) for storage in self.storages]
        change = [0] * (self.size + 1)
        for storage, (start, end) in zip(self.storages, spans, strict=True):
            if start <= end:
                change[start] += storage.bytes
                change[end + 1] -= storage.bytes
        steps = list(itertools.accumulate(change[:-1]))
        for loan in self._taken(time, spans):
            steps[time[loan.node]] -= self.saved(loan)
        for node, more in enumerate(self.extra):
            steps[time[node]] += more
        return tuple(steps)

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes in use at once."""
        return max(self.held(order), default=0)

    @functools.cached_property
    def ranked_loans(self) -> tuple[Loan, ...]:
        """The loans, each taken if it may be when its turn comes."""
        return tuple(sorted(self.loans, key=self.saved, reverse=True))

    def saved(self, loan: Loan) -> int:
        """Bytes that a loan saves while its node runs."""
        return min(self.storages[loan.lender].bytes, self.storages[loan.borrower].bytes)

    def taken(self, order: Sequence[int]) -> list[Loan]:
        """The loans that are taken when the nodes run in this order."""
        time = {node: t for t, node in enumerate(order)}
        return self._taken(time, [_span(storage, time) for storage in self.storages])

    def _taken(self, time: dict[int, int], spans: list[tuple[int, int]]) -> list[Loan]:
        taken: list[Loan] = []
        lent: set[int] = set()
        borrowed: set[int] = set()
        for loan in self.ranked_loans:
            now = time[loan.node]
            fits = spans[loan.lender][1] == now == spans[loan.borrower][0]
            if fits and loan.lender not in lent and loan.borrower not in borrowed:
                lent.add(loan.lender)
                borrowed.add(loan.borrower)
                taken.append(loan)
        return taken


def _span(storage: Storage | Lifetime, time: dict[int, int]) -> tuple[int, int]:
    if not storage.starts or not storage.ends:
        return 0, -1
    return min(map(time.__getitem__, storage.starts)), max(map(time.__getitem__, storage.ends))
