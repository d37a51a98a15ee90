"""Memory of a call's results, in which temporaries may lie while no result is there yet: what it leaves to be held.

XLA puts one temporary at a time into a result's memory, or several one after another, where it is no larger. So a bound
on temporaries alone would claim too much, and one that takes all this memory off claims too little. Between them lie
*prices*: let a host, the memory of one result, cost `u(h)`, whatever it is used for. A temporary weighs the cheapest
price of the hosts that it fits into, and no more than its size. At any time, those that lie in no host weigh at least

    sum of w(t) over all temporaries that are alive + sum of u(h) over hosts that hold a result - sum of all u(h)

as one that lies in `h` saves its size, `w(t)` of which is counted and `u(h)` pays for the rest. That is an ordering
problem again, and what bounds its peak bounds the temporaries, for any prices: high ones do where more temporaries
would fit than there are hosts, a price of nothing where there are more hosts than temporaries.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from .problem import Order, OrderProblem

MOST_PRICES = 8
"""How many prices are thought of at the most."""


@dataclasses.dataclass(frozen=True)
class Host:
    """The memory of one result.

    Attributes:
      bytes: its size.
      storages: of the problem: the result from when it is written, and the donated argument until it is last read.
      most: bytes of the largest temporary that fits.
      most_inside: the same of those that the bodies of loops and branches make: they have no weight of their own.
    """

    bytes: int
    storages: tuple[int, ...]
    most: int
    most_inside: int


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The results' memory of one computation.

    Attributes:
      problem: of temporaries and hosts; the nodes are those of the computation, one that reads all results at the end,
        and one more that brings the donated arguments before all others.
      temporaries: how many of its storages, from the first on, are temporaries.
    """

    problem: OrderProblem
    temporaries: int
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
        offers = [(host.bytes, price) for host, price in zip(self.hosts, prices, strict=True)]
        price_of = {s: price for host, price in zip(self.hosts, prices, strict=True) for s in host.storages}
        storages = [
            dataclasses.replace(storage, bytes=price_of.get(number, _weight(storage.bytes, offers)))
            for number, storage in enumerate(self.problem.storages)
        ]
        return dataclasses.replace(self.problem, storages=tuple(storages))

    def with_ends(self, order: Order) -> Order:
        """An order of the computation's nodes as one of the problem's."""
        return (len(order) + 1, *order, len(order))

    def without_ends(self, order: Order) -> Order:
        """The other way round."""
        return tuple(node for node in order if node < self.problem.size - 2)


def _weight(size: int, offers: Sequence[tuple[int, int]]) -> int:
    return min((size, *(price for bytes_, price in offers if bytes_ >= size)))
