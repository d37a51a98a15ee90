"""Memory of a call's results, in which temporaries may lie while no result is there yet: what it leaves to be held.

XLA puts one temporary at a time into a result's memory, or several one after another, where it is no larger. So a bound
on temporaries alone would claim too much, and one that takes all this memory off claims too little. Between them lie
*prices*: let a host, the memory of one result, cost `u(h)`, whatever it is used for. A temporary weighs the cheapest
price of the hosts that it fits into, and no more than its size. At any time, those that lie in no host weigh at least

    sum of w(t) over all temporaries that are alive + sum of u(h) over hosts that hold a result - sum of all u(h)

as one that lies in `h` saves its size, `w(t)` of which is counted and `u(h)` pays for the rest. That is an ordering
problem again, and what bounds its peak bounds the temporaries, for any prices: high ones do where more temporaries
would fit than there are hosts, a price of nothing where there are more hosts than temporaries.

A temporary fits where it is no larger, and where some order has one of the two gone before the other is there. While
one node runs fewer fit: results that surely are there, and temporaries that surely are not, need no price. So prices
are set node by node as well (`Hosts.at`), and the bound of a node is one minimum cut (`bound_by_nodes`).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Collection, Iterable, Iterator, Sequence

from .bound import Cuts
from .problem import Order, OrderProblem, Storage
from .reach import Reach, bits, members
from .tighten import tighten

MOST_PRICES = 8
"""How many prices are thought of at the most."""

CRITICAL, MOST_CRITICAL = 12, 4
"""How many nodes are looked at one by one, those that run while the most is held; and under what a limit implies."""

LIMITS = 4
"""How many limits are asked for what they imply."""

CASES = 60
"""How many cases of what lies where are told apart for one limit."""


@dataclasses.dataclass(frozen=True)
class Host:
    """The memory of one result.

    Attributes:
      storages: of the problem: the result from when it is written, and the donated argument until it is last read.
      guests: the temporaries that may lie in it.
      most: bytes of the largest of them.
      most_inside: the same of those that the bodies of loops and branches make: they have no weight of their own.
    """

    storages: tuple[int, ...]
    guests: frozenset[int]
    most: int
    most_inside: int


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The results' memory of one computation.

    Attributes:
      problem: of temporaries and hosts; the nodes are those of the computation, one that reads all results at the end,
        and one more that brings the donated arguments before all others.
    """

    problem: OrderProblem
    hosts: tuple[Host, ...]

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes of temporaries that lie in results' memory at one time, at the most."""
        return sum(host.most for host in self.hosts)

    @functools.cached_property
    def full(self) -> OrderProblem:
        """The problem with each host at its highest price: every temporary counts in full."""
        return self.priced([host.most for host in self.hosts])

    def prices(self) -> Iterator[tuple[int, ...]]:
        """Prices to try beside the highest: nothing for the hosts of small temporaries."""
        steps = sorted({host.most for host in self.hosts})
        for limit in steps[-MOST_PRICES:]:
            yield tuple(host.most if host.most > limit else host.most_inside for host in self.hosts)

    def priced(self, prices: Sequence[int]) -> OrderProblem:
        """The problem whose peak, less the sum of the prices, no order's temporaries go below."""
        sizes = [storage.bytes for storage in self.problem.storages]
        for host, price in zip(self.hosts, prices, strict=True):
            for guest in host.guests:
                sizes[guest] = min(sizes[guest], price)
            for storage in host.storages:
                sizes[storage] = price
        return _resized(self.problem, sizes)

    def at(self, node: int, reach: Reach) -> Iterator[OrderProblem]:
        """The problem with prices that hold while the node runs; they are its `extra` there, with the sign turned.

        With those of the largest that may lie in each host, and of the largest that surely is alive: then the others
        weigh no more than that.

        Args:
          reach: which nodes run before which, in all orders in question.
        """
        guests = [list(self._guests_at(host, node, reach)) for host in self.hosts]
        sure = [[t for t in there if self._is_alive(t, node, reach)] for there in guests]
        for counted in (guests, sure) if guests != sure else (guests,):
            sizes = [storage.bytes for storage in self.problem.storages]
            extra = list(self.problem.extra or (0,) * self.problem.size)
            inside = bool(extra[node])
            for host, there, priced in zip(self.hosts, guests, counted, strict=True):
                least = host.most_inside if inside else 0
                price = max((least, *(self.problem.storages[t].bytes for t in priced)))
                for guest in there:
                    sizes[guest] = min(sizes[guest], price)
                for storage in host.storages:
                    sizes[storage] = price
                extra[node] -= price
            yield dataclasses.replace(_resized(self.problem, sizes), extra=tuple(extra))

    def without(self, number: int, guests: Collection[int]) -> Hosts:
        """The same if some temporaries do not lie in one of the hosts."""
        hosts = list(self.hosts)
        hosts[number] = dataclasses.replace(hosts[number], guests=hosts[number].guests.difference(guests))
        return dataclasses.replace(self, hosts=tuple(hosts))

    def largest_at(self, node: int, reach: Reach) -> Iterator[tuple[int, int]]:
        """(host, temporary) for the largest in each host that surely is alive while a node runs."""
        for number, host in enumerate(self.hosts):
            sure = [t for t in self._guests_at(host, node, reach) if self._is_alive(t, node, reach)]
            if sure:
                yield number, max(sure, key=lambda t: self.problem.storages[t].bytes)

    def _is_alive(self, temporary: int, node: int, reach: Reach) -> bool:
        """Whether a temporary is alive while a node runs, in all orders in question."""
        users, here = self._users[temporary], 1 << node
        return bool(users & (reach.ancestors[node] | here)) and bool(users & (reach.descendants[node] | here))

    def _guests_at(self, host: Host, node: int, reach: Reach) -> Iterable[int]:
        """The temporaries that may be alive while the node runs, and may lie in the host then."""
        before, after = reach.ancestors[node], reach.descendants[node]
        *given, made = (self._users[storage] for storage in host.storages)
        if made & before or any(users & after for users in given):
            return
        for guest in host.guests:
            users = self._users[guest]
            first, last = reach.first(members(users)), reach.last(members(users))
            sure_before = functools.reduce(int.__and__, (reach.ancestors[n] for n in first), -1)
            sure_after = functools.reduce(int.__and__, (reach.descendants[n] for n in last), -1)
            alive = users & ~after and users & ~before
            if alive and not made & sure_before and not any(users & sure_after for users in given):
                yield guest

    @functools.cached_property
    def _users(self) -> tuple[int, ...]:
        return tuple(bits(storage.users) for storage in self.problem.storages if isinstance(storage, Storage))

    def with_ends(self, order: Order) -> Order:
        """An order of the computation's nodes as one of the problem's."""
        return (len(order) + 1, *order, len(order))

    def without_ends(self, order: Order) -> Order:
        """The other way round."""
        return tuple(node for node in order if node < self.problem.size - 2)


def bound_by_nodes(hosts: Hosts, order: Order, enough: int, deadline: float) -> int:
    """Bytes of temporaries outside results' memory that no order does without, by prices of each node's own.

    Args:
      order: a good one; the nodes are looked at that run while it holds the most.
      enough: no better bound than this is looked for.
      deadline: by `time.monotonic`; the bound is valid when it comes.
    """
    cuts, nodes = Cuts(hosts.full), _critical(hosts, order)
    low, high = _least(hosts, cuts, nodes[0]), enough
    for node in nodes[1:]:
        if low < enough and time.monotonic() < deadline:
            low = max(low, _least(hosts, cuts, node))
    for _ in range(LIMITS):
        limit = (low + high) // 2
        if low >= high or time.monotonic() > deadline:
            break
        tight = tighten(cuts, limit + hosts.bytes, nodes[:MOST_CRITICAL], deadline)
        if tight is None or _Cases(tight, limit, nodes[:MOST_CRITICAL], deadline).is_too_low(hosts):
            low = limit + 1
        else:
            high = limit
    return low


def bound_by_cases(hosts: Hosts, order: Order, low: int, enough: int, deadline: float) -> int:
    """The same, by telling apart in which results' memory temporaries lie.

    Args:
      low: a bound that is known.
    """
    cuts, nodes = Cuts(hosts.full), _critical(hosts, order)
    limits = (enough - 1, *((low * (LIMITS - n) + enough * n) // LIMITS for n in range(LIMITS - 1, 0, -1)))
    for limit in limits:
        if limit < low or time.monotonic() > deadline:
            break
        tight = tighten(cuts, limit + hosts.bytes, nodes[:MOST_CRITICAL], deadline)
        if tight is None or _Cases(tight, limit, nodes, deadline).are_all_too_low(hosts):
            return limit + 1
    return low


def _critical(hosts: Hosts, order: Order) -> list[int]:
    """The nodes that run while the most is held, the most first."""
    held = dict(zip(order, hosts.full.held(order), strict=True))
    return sorted(held, key=lambda node: -held[node])[:CRITICAL]


def _least(hosts: Hosts, cuts: Cuts, node: int) -> int:
    """The least outside results' memory while the node runs, under the precedences of the cuts' problem."""
    problems = (dataclasses.replace(p, predecessors=cuts.problem.predecessors) for p in hosts.at(node, cuts.reach))
    return max(Cuts(problem).least(node).bytes for problem in problems)


class _Cases:
    """Cases of which temporaries lie in which results' memory, each of them proved to need more than a limit.

    Args:
      cuts: of the problem with the precedences that the limit implies.
      nodes: those that are looked at.
    """

    def __init__(self, cuts: Cuts, limit: int, nodes: Sequence[int], deadline: float) -> None:
        self._cuts, self._limit, self._nodes, self._deadline = cuts, limit, nodes, deadline
        self._meetings = _Meetings(cuts.problem)
        self._left = CASES

    def is_too_low(self, hosts: Hosts) -> bool:
        """Whether that many bytes are too few, all cases in one."""
        return any(not self._is_over and _least(hosts, self._cuts, node) > self._limit for node in self._nodes)

    def are_all_too_low(self, hosts: Hosts, settled: frozenset[tuple[int, int]] = frozenset()) -> bool:
        """Whether that many bytes are too few however the hosts are used.

        Args:
          settled: (host, temporary) where it is known that the one lies in the other.
        """
        self._left -= 1
        least: dict[int, int] = {}
        for node in self._nodes:
            if self._is_over:
                return False
            least[node] = _least(hosts, self._cuts, node)
            if least[node] > self._limit:
                return True
        for node in sorted(least, key=lambda node: -least[node]):
            for host, guest in hosts.largest_at(node, self._cuts.reach):
                if (host, guest) not in settled:
                    elsewhere = hosts.without(host, (guest,))
                    return self.are_all_too_low(elsewhere, settled) and self.are_all_too_low(
                        self._with(hosts, host, guest), settled | {(host, guest)}
                    )
        return False

    @property
    def _is_over(self) -> bool:
        """Whether there is no time, or there are no cases left."""
        return self._left < 0 or time.monotonic() > self._deadline

    def _with(self, hosts: Hosts, host: int, guest: int) -> Hosts:
        """The same if a temporary lies in that host: in no other one, and nothing else while it is there."""
        others = [t for t in hosts.hosts[host].guests if t != guest and self._meetings.sure(t, guest)]
        found = hosts.without(host, others)
        for number in range(len(hosts.hosts)):
            found = found if number == host else found.without(number, (guest,))
        return found


def hosts_of(
    problem: OrderProblem, temporaries: int, places: Sequence[tuple[int, ...]], inner_sizes: Sequence[int]
) -> Hosts | None:
    """The hosts among the storages of a problem, each with its guests; None where there are none.

    Args:
      temporaries: how many of the storages, from the first on, are temporaries.
      places: for each result the storages that take turns in its memory.
      inner_sizes: bytes of the temporaries that the bodies of loops and branches make.
    """
    meetings = _Meetings(problem)
    size = [storage.bytes for storage in problem.storages]
    hosts = []
    for storages in places:
        room = size[storages[0]]
        fitting = (t for t in range(temporaries) if 0 < size[t] <= room)
        guests = frozenset(t for t in fitting if not any(meetings.sure(t, storage) for storage in storages))
        inside = max((s for s in inner_sizes if s <= room), default=0)
        most = max((inside, *(size[t] for t in guests)))
        if most:
            hosts.append(Host(storages, guests, most, inside))
    taken = {storage for host in hosts for storage in host.storages}
    counted = [bytes_ if k < temporaries or k in taken else 0 for k, bytes_ in enumerate(size)]
    return Hosts(_resized(problem, counted), tuple(hosts)) if hosts else None


def _resized(problem: OrderProblem, sizes: Sequence[int]) -> OrderProblem:
    storages = map(lambda storage, size: dataclasses.replace(storage, bytes=size), problem.storages, sizes)
    return dataclasses.replace(problem, storages=tuple(storages))


class _Meetings:
    """Which storages are alive together in every order."""

    def __init__(self, problem: OrderProblem) -> None:
        self._reach = Reach(problem.predecessors)
        self._users = [bits(storage.starts) for storage in problem.storages]
        self._after = [self._union(users, self._reach.descendants) for users in self._users]
        self._before = [self._union(users, self._reach.ancestors) for users in self._users]
        self._loans = {(loan.node, loan.lender, loan.borrower) for loan in problem.loans}

    @staticmethod
    def _union(nodes: int, of: Sequence[int]) -> int:
        union = 0
        for node in members(nodes):
            union |= of[node]
        return union

    def sure(self, a: int, b: int) -> bool:
        """Neither can be gone before the other is there; at a node that uses both, one may lend the other its place."""
        here = self._users[a] & self._users[b]
        if any({(node, a, b), (node, b, a)}.isdisjoint(self._loans) for node in members(here)):
            return True
        return bool(self._users[a] & self._after[b]) and bool(self._users[a] & self._before[b])
