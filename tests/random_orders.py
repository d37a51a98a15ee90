"""Random ordering problems small enough for brute force, and the brute force."""

from __future__ import annotations

import dataclasses
import functools
from random import Random

from memscope.schedule.problem import Loan, Order, OrderProblem, Storage

SIZES = (1, 2, 3, 4, 8, 8, 8)


@dataclasses.dataclass
class _Value:
    bytes: int
    writers: list[int]
    readers: list[int]


def random_problem(random: Random, largest: int = 9) -> OrderProblem:
    """Up to `largest` nodes that read what others wrote, write anew, in the place of what they read, or over it."""
    size = random.randint(1, largest)
    before: list[set[int]] = [set() for _ in range(size)]
    values: list[_Value] = []
    loans: list[Loan] = []
    for node in range(size):
        reads = [v for v in values if random.random() < min(1.0, 1.7 / len(values))]
        for value in reads:
            before[node].update(value.writers)
        for value in reads:
            if random.random() < 0.15:  # an update in place: after all that read the value before
                before[node].update(value.readers)
                value.writers.append(node)
            else:
                value.readers.append(node)
        before[node].update(n for n in range(node) if random.random() < 0.06)
        for _ in range(random.choice((0, 1, 1, 1, 1, 2))):
            new = _Value(random.choice(SIZES), [node], [])
            values.append(new)
            loans += [
                Loan(node, values.index(value), len(values) - 1)
                for value in reads
                if random.random() < (0.7 if value.bytes == new.bytes else 0.05)
            ]
    label = random.sample(range(size), size)  # so that the numbers of the nodes say nothing
    predecessors: list[tuple[int, ...]] = [()] * size
    for node, nodes in enumerate(before):
        predecessors[label[node]] = tuple(label[n] for n in nodes)
    return OrderProblem(
        predecessors=tuple(predecessors),
        storages=tuple(
            Storage(v.bytes, tuple(label[n] for n in v.writers), tuple(label[n] for n in v.readers)) for v in values
        ),
        loans=tuple(dataclasses.replace(loan, node=label[loan.node]) for loan in loans),
        extra=tuple(random.choice((0, 0, 0, 1, 5)) for _ in range(size)) if random.random() < 0.5 else (),
    )


def random_order(random: Random, problem: OrderProblem) -> Order:
    order: list[int] = []
    while len(order) < problem.size:
        ready = [n for n in range(problem.size) if n not in order and set(problem.predecessors[n]) <= set(order)]
        order.append(random.choice(ready))
    return tuple(order)


def least_peak(problem: OrderProblem) -> int:
    """The optimum, by trying every set of nodes that may have run: what a node needs depends on that set alone."""

    @functools.cache
    def rest(done: frozenset[int]) -> int:
        ready = [n for n in range(problem.size) if n not in done and set(problem.predecessors[n]) <= done]
        return min((max(held_at(problem, done, n), rest(done | {n})) for n in ready), default=0)

    return rest(frozenset())


def held_at(problem: OrderProblem, done: frozenset[int], node: int) -> int:
    """Bytes held while the node runs after exactly the nodes in `done`."""
    order: list[int] = []
    for part in (done, {node}, set(range(problem.size)) - done - {node}):
        left = set(part)
        while left:
            ready = next(n for n in left if set(problem.predecessors[n]) <= set(order))
            order.append(ready)
            left.remove(ready)
    return problem.held(order)[order.index(node)]


def least_held(problem: OrderProblem, node: int) -> int:
    """The least held while the node runs, over all sets that may have run before it."""
    found: list[int] = []
    seen: set[frozenset[int]] = set()

    def visit(done: frozenset[int]) -> None:
        if done in seen:
            return
        seen.add(done)
        if set(problem.predecessors[node]) <= done:
            found.append(held_at(problem, done, node))
        for n in range(problem.size):
            if n != node and n not in done and set(problem.predecessors[n]) <= done:
                visit(done | {n})

    visit(frozenset())
    return min(found)
