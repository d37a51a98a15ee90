"""Lower bounds on the peak of any order, by minimum cuts.

What has run before a node is a down-set: with a node, all its predecessors. The bytes held while node `v` runs after
the down-set `D` are a submodular function of `D`, so the least over all `D` is a minimum cut, and no order gets by with
less at `v`. The largest of these minima over all nodes bounds every order's peak. This sees much more than what must
be alive at `v` in any case: that something must be held, though it is open what.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence

from .flow import SINK, SOURCE, UNCUT, Network
from .problem import Loan, OrderProblem
from .reach import Reach, bits, members


@dataclasses.dataclass(frozen=True)
class Cut:
    """The least held while a node runs, in bytes, and the down-set before it that has it, as bits."""

    bytes: int
    before: int


class Cuts:
    """Minimum cuts of one problem."""

    def __init__(self, problem: OrderProblem) -> None:
        self.problem = problem
        self.reach = Reach(problem.predecessors)
        self.everything = (1 << problem.size) - 1
        self._storages = [(s.bytes, bits(s.starts), bits(s.ends)) for s in problem.storages]
        self._loans: list[list[Loan]] = [[] for _ in problem.predecessors]
        for loan in problem.loans:
            self._loans[loan.node].append(loan)
        self._least: dict[int, _Least] = {}

    def least(self, node: int) -> Cut:
        """The least held while the node runs, whatever ran before."""
        return self._of(node).cut()

    def least_with(self, node: int, other: int, *, before: bool, limit: int = UNCUT) -> Cut | None:
        """The least held while the node runs, with another that it doesn't depend on run before it, or else after.

        None where that is above the limit.
        """
        return self._of(node).forced(other, before, limit)

    def least_within(self, node: int, low: int, high: int, *, late: bool = False) -> Cut:
        """The least held while the node runs, over the down-sets between `low` and `high`.

        Of several that have it the smallest is given, or with `late` the largest.
        """
        return _Least(self._options(node, low, self.everything & ~high)).cut(late=late)

    def _of(self, node: int) -> _Least:
        if node not in self._least:
            self._least[node] = _Least(self._options(node, 0, 0))
        return self._least[node]

    def _options(self, node: int, done: int, later: int) -> list[_Option]:
        """The ways to take loans at the node, of which the best counts."""
        done |= self.reach.ancestors[node]
        later |= self.reach.descendants[node] | 1 << node
        saving, loans = self._savings(node, done, later)
        extra = self.problem.extra[node] if self.problem.extra else 0
        options = [self._option(node, done, later, loan) for loan in loans or (None,)]
        for option in options:
            option.held += extra - saving
        return options

    def _savings(self, node: int, done: int, later: int) -> tuple[int, list[Loan]]:
        """Bytes that loans at the node may save whatever ran before, or else loans of which one may be taken."""
        here = 1 << node
        loans = []
        for loan in self._loans[node]:
            ends, starts = self._storages[loan.lender][2], self._storages[loan.borrower][1]
            if ends & later == here and not starts & done:
                loans.append(loan)
        saved = [self.problem.saved(loan) for loan in loans]
        if len({loan.borrower for loan in loans}) != 1:
            return min(
                _most(saved, [loan.lender for loan in loans]), _most(saved, [loan.borrower for loan in loans])
            ), []
        sure = [s for s, loan in zip(saved, loans, strict=True) if not self._storages[loan.lender][2] & ~(done | here)]
        return (max(saved), []) if max(sure, default=0) == max(saved) else (0, loans)

    def _option(self, node: int, done: int, later: int, loan: Loan | None) -> _Option:
        option = _Option(self.reach, self.problem, done, self.everything & ~(done | later))
        here = 1 << node
        for size, starts, ends in self._storages:
            started, unended = starts & (done | here), ends & later
            if started and unended:
                option.held += size
            elif (started or starts & option.free) and (unended or ends & option.free):
                option.hold(size, None if started else starts & option.free, None if unended else ends & option.free)
        if loan is not None:  # saved if all other users of the lender have run
            saved = self.problem.saved(loan)
            option.held -= saved
            others = self._storages[loan.lender][2] & option.free
            if others:
                option.hold(saved, None, others)
        return option


def _most(saved: Sequence[int], keys: Iterable[int]) -> int:
    best: dict[int, int] = {}
    for key, s in zip(keys, saved, strict=True):
        best[key] = max(best.get(key, 0), s)
    return sum(best.values())


class _Option:
    """A network whose source side, at a minimum cut, is the down-set.

    Attributes:
      held: bytes that are held beside those of the cut.
      done: what runs before in any case.
      free: nodes that may run before or after.
    """

    def __init__(self, reach: Reach, problem: OrderProblem, done: int, free: int) -> None:
        self.held = 0
        self.done = done
        self.free = free
        self.index = {node: i for i, node in enumerate(members(free), 2)}
        self.network = Network(len(self.index) + 2)
        for node, i in self.index.items():
            for earlier in problem.predecessors[node]:
                if earlier in self.index:
                    self.network.add_edge(i, self.index[earlier], UNCUT)

    def hold(self, size: int, starts: int | None, ends: int | None) -> None:
        """Costs `size` if some start is in the down-set and some end is not; None stands for that being so."""
        tail = SOURCE if starts is None else self._joint(starts, some=True)
        head = SINK if ends is None else self._joint(ends, some=False)
        self.network.add_edge(tail, head, size)

    def _joint(self, nodes: int, *, some: bool) -> int:
        """A node that is in the down-set if some, or else all, of the nodes are."""
        if nodes & (nodes - 1) == 0:
            return self.index[nodes.bit_length() - 1]
        joint = self.network.add_node()
        for node in members(nodes):
            ends = (self.index[node], joint) if some else (joint, self.index[node])
            self.network.add_edge(*ends, UNCUT)
        return joint

    def down_set(self, network: Network, late: bool) -> int:
        if late:
            side = network.sink_side()
            return self.done | bits(node for node, i in self.index.items() if i not in side)
        side = network.source_side()
        return self.done | bits(node for node, i in self.index.items() if i in side)


class _Least:
    """The least over the ways to take loans at one node."""

    def __init__(self, options: list[_Option]) -> None:
        self._options = options
        self._best = min(options, key=lambda option: option.held + option.network.maximise())
        self._cut: Cut | None = None

    def cut(self, *, late: bool = False) -> Cut:
        if self._cut is None:
            best = self._best
            self._cut = Cut(best.held + best.network.value, best.down_set(best.network, late))
        return self._cut

    def forced(self, other: int, before: bool, limit: int) -> Cut | None:
        best: Cut | None = None
        for option in self._options:
            if option.held + option.network.value > limit:
                continue
            network = option.network.forced(option.index[other], source=before)
            bytes_ = option.held + network.maximise(limit - option.held)
            if bytes_ <= limit and (best is None or bytes_ < best.bytes):
                best = Cut(bytes_, option.down_set(network, late=not before))
        return best


def lower_bound(cuts: Cuts, ceiling: Sequence[int], deadline: float) -> int:
    """A lower bound on the peak of any order.

    Args:
      cuts: of the problem.
      ceiling: for each node, bytes that some order holds while it runs; its bound is no higher, so most need no cut.
      deadline: by `time.monotonic`; the bound is valid when it comes, and the better the later. One cut is made.
    """
    best = 0
    for node in sorted(range(cuts.problem.size), key=lambda node: -ceiling[node]):
        if ceiling[node] <= best:
            break
        best = max(best, cuts.least(node).bytes)
        if time.monotonic() > deadline:
            break
    return best


def touched_bound(problem: OrderProblem) -> int:
    """A lower bound at a glance: a node holds all that it reads and writes, but for what it takes over."""
    held = list(problem.extra or (0,) * problem.size)
    for storage in problem.storages:
        for node in storage.starts & storage.ends:
            held[node] += storage.bytes
    for node, lender in {(loan.node, loan.lender) for loan in problem.loans}:
        held[node] -= problem.storages[lender].bytes
    return max(held, default=0)
