"""Lower bounds on the peak of any order, by minimum cuts.

What has run before a node is a down-set: with a node, all its predecessors. The bytes held while node `v` runs after
the down-set `D` are a submodular function of `D`, so the least over all `D` is a minimum cut, and no order gets by with
less at `v`. The largest of these minima over all nodes bounds every order's peak. This sees much more than what must
be alive at `v` in any case: that something must be held, though it is open what.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from .problem import Loan, Order, OrderProblem
from .reach import Reach, bits, members

_SOURCE, _SINK = 0, 1
_TOTAL = 1 << 29
"""What all capacities together may come to; SciPy counts flow in 32 bits."""
_UNCUT = 1 << 30


@dataclasses.dataclass(frozen=True)
class Cut:
    """The least held while a node runs: bytes, or slightly less, and the down-set before it that has it, as bits."""

    bytes: int
    before: int


class Cuts:
    """Minimum cuts of one problem."""

    def __init__(self, problem: OrderProblem) -> None:
        self.problem = problem
        self.reach = Reach(problem.predecessors)
        self._everything = (1 << problem.size) - 1
        sizes = [s.bytes for s in problem.storages]
        # Rounded down, so that a bound stays a bound; mostly the sizes have a large common divisor and it is exact.
        self._unit = max(math.gcd(*sizes), 1, -(-2 * sum(sizes) // _TOTAL))
        self._starts = [bits(s.starts) for s in problem.storages]
        self._ends = [bits(s.ends) for s in problem.storages]
        self._loans: list[list[Loan]] = [[] for _ in problem.predecessors]
        for loan in problem.loans:
            self._loans[loan.node].append(loan)
        self._least: dict[int, Cut] = {}

    def least(self, node: int) -> Cut:
        """The least held while the node runs, whatever ran before."""
        if node not in self._least:
            self._least[node] = self.least_within(node, 0, self._everything)
        return self._least[node]

    def least_within(self, node: int, low: int, high: int, *, late: bool = False) -> Cut:
        """The least held while the node runs, over the down-sets between `low` and `high`.

        Of several that have it the smallest is given, or with `late` the largest.
        """
        reach = self.reach
        done = low | reach.ancestors[node]
        later = 1 << node | reach.descendants[node] | self._everything & ~high
        extra = self.problem.extra[node] if self.problem.extra else 0
        saving, lenders = self._savings(node, done, later)
        options = [self._cut(node, done, later, lender, late) for lender in lenders or (None,)]
        best = min(options, key=lambda cut: cut.bytes)
        return Cut(best.bytes + extra - saving, best.before)

    def _savings(self, node: int, done: int, later: int) -> tuple[int, list[Loan]]:
        """Bytes that loans at the node may save whatever ran before, or else loans of which one may be taken."""
        here = 1 << node
        loans = [
            loan
            for loan in self._loans[node]
            if self._ends[loan.lender] & later == here and not self._starts[loan.borrower] & done
        ]
        if not loans:
            return 0, []
        saved = [self.problem.saved(loan) for loan in loans]
        if len({loan.borrower for loan in loans}) == 1:
            sure = [s for s, loan in zip(saved, loans, strict=True) if not self._ends[loan.lender] & ~(done | here)]
            return (max(saved), []) if max(sure, default=0) == max(saved) else (0, loans)
        return min(_most(saved, [loan.lender for loan in loans]), _most(saved, [loan.borrower for loan in loans])), []

    def _cut(self, node: int, done: int, later: int, loan: Loan | None, late: bool) -> Cut:
        here = 1 << node
        network = _Network(self.reach, self.problem, self._everything & ~(done | later))
        held = 0
        for storage, size in enumerate(s.bytes for s in self.problem.storages):
            starts, ends = self._starts[storage], self._ends[storage]
            started, unended = bool(starts & (done | here)), bool(ends & later)
            if started and unended:
                held += size
            elif (started or starts & network.free) and (unended or ends & network.free):
                network.storage(
                    size // self._unit,
                    None if started else starts & network.free,
                    None if unended else ends & network.free,
                )
        if loan is not None:
            saved = self.problem.saved(loan)
            held -= saved
            network.storage(saved // self._unit, None, self._ends[loan.lender] & network.free)
        flow, before = network.solve(late)
        return Cut(held + flow * self._unit, done | before)


def _most(saved: Sequence[int], keys: Iterable[int]) -> int:
    best: dict[int, int] = {}
    for key, s in zip(keys, saved, strict=True):
        best[key] = max(best.get(key, 0), s)
    return sum(best.values())


class _Network:
    """A network whose source side, at a minimum cut, is the down-set."""

    def __init__(self, reach: Reach, problem: OrderProblem, free: int) -> None:
        self.free = free
        self._index = {node: i for i, node in enumerate(members(free), 2)}
        self._size = len(self._index) + 2
        self._edges: dict[tuple[int, int], int] = {}
        for node, i in self._index.items():
            for earlier in problem.predecessors[node]:
                if earlier in self._index:
                    self._edges[i, self._index[earlier]] = _UNCUT

    def storage(self, size: int, starts: int | None, ends: int | None) -> None:
        """Costs `size` if some start is in the down-set and some end is not; None stands for that being so."""
        tail = _SOURCE if starts is None else self._any(starts)
        head = _SINK if ends is None else self._all(ends)
        self._edges[tail, head] = self._edges.get((tail, head), 0) + size

    def _any(self, nodes: int) -> int:
        if nodes & (nodes - 1) == 0:
            return self._index[nodes.bit_length() - 1]
        self._size += 1
        for node in members(nodes):
            self._edges[self._index[node], self._size - 1] = _UNCUT
        return self._size - 1

    def _all(self, nodes: int) -> int:
        if nodes & (nodes - 1) == 0:
            return self._index[nodes.bit_length() - 1]
        self._size += 1
        for node in members(nodes):
            self._edges[self._size - 1, self._index[node]] = _UNCUT
        return self._size - 1

    def solve(self, late: bool) -> tuple[int, int]:
        """The least cost, and a down-set that has it: the smallest, or the largest."""
        if not self._edges:
            return 0, self.free if late else 0
        tails, heads = np.array(list(self._edges), np.int32).T
        capacity = np.array(list(self._edges.values()), np.int32)
        graph = csr_array((capacity, (tails, heads)), (self._size, self._size))
        result = maximum_flow(graph, _SOURCE, _SINK)
        residual = graph - result.flow
        residual.data = np.maximum(residual.data, 0)
        residual.eliminate_zeros()
        if late:
            reached = breadth_first_order(residual.T.tocsr(), _SINK, return_predecessors=False)
        else:
            reached = breadth_first_order(residual, _SOURCE, return_predecessors=False)
        side = np.full(self._size, late)
        side[reached] = not late
        return int(result.flow_value), bits(node for node, i in self._index.items() if side[i])


def lower_bound(cuts: Cuts, orders: Collection[Order], deadline: float) -> int:
    """A lower bound on the peak of any order.

    Args:
      cuts: of the problem.
      orders: some orders; no node's bound is above what any of them holds there, so most need no cut.
      deadline: by `time.monotonic`; the bound is valid when it comes, and the better the later.
    """
    ceiling = [min(bytes_) for bytes_ in zip(*(_by_node(cuts.problem, order) for order in orders), strict=True)]
    best = 0
    for node in sorted(range(cuts.problem.size), key=lambda node: -ceiling[node]):
        if ceiling[node] <= best or time.monotonic() > deadline:
            break
        best = max(best, cuts.least(node).bytes)
    return best


def _by_node(problem: OrderProblem, order: Order) -> list[int]:
    held = [0] * problem.size
    for node, bytes_ in zip(order, problem.held(order), strict=True):
        held[node] = bytes_
    return held
