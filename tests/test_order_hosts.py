"""Temporaries in results' memory: who fits where, and that no bound claims too much."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from memscope.schedule.hosts import Hosts, bound_by_cases, bound_by_nodes, hosts_of
from memscope.schedule.problem import Loan, Order, OrderProblem, Storage

from .random_orders import least_peak, random_problem


def chain(loans: tuple[Loan, ...] = ()) -> OrderProblem:
    """0 writes t, 1 reads t and writes the result, 2 writes s and 3 reads it; then an end, and a start."""
    return OrderProblem(
        predecessors=((5,), (0, 5), (5,), (2, 5), (0, 1, 2, 3, 5), ()),
        storages=(Storage(8, (0,), (1,)), Storage(8, (2,), (3,)), Storage(8, (1,), (4,))),
        loans=loans,
    )


def test_a_temporary_that_the_result_is_made_from_fits_only_where_it_may_be_written_over() -> None:
    apart, over = (hosts_of(chain(loans), 2, [(2,)], []) for loans in ((), (Loan(1, 0, 2),)))
    assert apart is not None
    assert over is not None
    assert apart.hosts[0].guests == {1}
    assert over.hosts[0].guests == {0, 1}


def test_a_donated_argument_that_is_read_by_what_replaces_it_leaves_no_room() -> None:
    problem = OrderProblem(
        predecessors=((3,), (0, 3), (0, 1, 3), ()),
        storages=(Storage(8, (0,), (1,)), Storage(8, (), (1, 3)), Storage(8, (1,), (2,))),
    )
    assert hosts_of(problem, 1, [(1, 2)], []) is None


def test_larger_temporaries_find_no_host() -> None:
    problem = chain()
    small = OrderProblem(problem.predecessors, (*problem.storages[:2], Storage(4, (1,), (4,))))
    assert hosts_of(small, 2, [(2,)], []) is None
    inside = hosts_of(small, 2, [(2,)], [3, 5])
    assert inside is not None
    assert (inside.bytes, inside.hosts[0].most_inside) == (3, 3)


def test_a_temporary_that_no_node_of_the_computation_touches_is_in_nobodys_way() -> None:
    problem = chain()
    hosts = hosts_of(OrderProblem(problem.predecessors, (Storage(4, (), ()), *problem.storages)), 3, [(3,)], [])
    assert hosts is not None
    assert bound_by_nodes(hosts, (5, 0, 1, 2, 3, 4), enough=100, deadline=math.inf) == 8


def random_hosts(random: Random) -> Hosts | None:
    """Some values of a random problem become results, in memory that temporaries may use as well."""
    base = random_problem(random, largest=6)
    end, start = base.size, base.size + 1
    results = [k for k in range(len(base.storages)) if random.random() < 0.35]
    order = [k for k in range(len(base.storages)) if k not in results] + results
    place = {k: n for n, k in enumerate(order)}
    storages = [base.storages[k] for k in order]
    temporaries = len(storages) - len(results)
    for n in range(temporaries, len(storages)):
        storages[n] = Storage(storages[n].bytes, storages[n].writers, (*storages[n].readers, end))
    loans = tuple(Loan(loan.node, place[loan.lender], place[loan.borrower]) for loan in base.loans)
    predecessors = (*((*before, start) for before in base.predecessors), (*range(end), start), ())
    problem = OrderProblem(predecessors, tuple(storages), loans)
    return hosts_of(problem, temporaries, [(n,) for n in range(temporaries, len(storages))], [])


def unhosted(hosts: Hosts, order: Order) -> int:
    """The least for temporaries in an order: every one in every host that it may lie in, or in none, is tried."""
    problem = hosts.problem
    time = {node: t for t, node in enumerate(order)}
    own = sorted(set(range(len(problem.storages))) - {s for host in hosts.hosts for s in host.storages})
    spans = [(min(time[n] for n in storage.starts), max(time[n] for n in storage.ends)) for storage in problem.storages]
    taken = {(loan.lender, loan.borrower) for loan in problem.taken(order)}

    def apart(a: int, b: int) -> bool:
        (start, end), (other_start, other_end) = spans[a], spans[b]
        return start > other_end - ((b, a) in taken) or other_start > end - ((a, b) in taken)

    options = [[None, *(h for h, host in enumerate(hosts.hosts) if t in host.guests)] for t in own]
    best = None
    for choice in itertools.product(*options):
        inside: dict[int, list[int]] = {h: list(host.storages) for h, host in enumerate(hosts.hosts)}
        for t, h in zip(own, choice, strict=True):
            if h is not None:
                inside[h].append(t)
        if all(apart(a, b) for lying in inside.values() for a, b in itertools.combinations(lying, 2)):
            free = {t for t, h in zip(own, choice, strict=True) if h is None}
            held = [
                sum(problem.storages[t].bytes for t in free if spans[t][0] <= step <= spans[t][1])
                for step in range(len(order))
            ]
            for lender, borrower in taken:
                if {lender, borrower} <= free:
                    held[spans[borrower][0]] -= min(problem.storages[lender].bytes, problem.storages[borrower].bytes)
            best = max(held) if best is None else min(best, max(held))
    assert best is not None
    return best


def all_orders(problem: OrderProblem) -> list[Order]:
    return [order for order in itertools.permutations(range(problem.size)) if problem.is_order(order)]


@pytest.mark.parametrize("seed", range(60))
def test_no_bound_is_above_what_the_best_order_needs(seed: int) -> None:
    random = Random(seed)
    hosts = next(h for h in (random_hosts(random) for _ in range(100)) if h is not None)
    needed = min(unhosted(hosts, order) for order in all_orders(hosts.problem))
    highest = [host.most for host in hosts.hosts]
    for prices in (highest, *hosts.prices(), [random.randint(0, most) for most in highest]):
        assert least_peak(hosts.priced(prices)) - sum(prices) <= needed
    order = random.choice(all_orders(hosts.problem))
    assert bound_by_nodes(hosts, order, enough=1 << 40, deadline=math.inf) <= needed
    for enough in (needed, needed + 1, needed + 3, 2 * needed):
        assert bound_by_cases(hosts, order, 0, enough, deadline=math.inf) <= needed


def test_a_node_does_without_memory_that_nothing_can_lie_in_while_it_runs() -> None:
    """One after another; 0 fits into the result 5 and is gone before the peak, 1 and 2 fit into the result 6."""
    sizes_and_users = (
        (6, 0, (1,)),
        (4, 1, (2, 5)),
        (4, 2, (3, 5)),
        (20, 3, (4,)),
        (1, 4, (5,)),
        (6, 5, (6, 7)),
        (4, 6, (7,)),
    )
    storages = tuple(Storage(size, (writer,), readers) for size, writer, readers in sizes_and_users)
    problem = OrderProblem(((8,), *((n, 8) for n in range(6)), (*range(7), 8), ()), storages)
    hosts = hosts_of(problem, 5, [(5,), (6,)], [])
    assert hosts is not None
    order = (8, *range(8))
    assert max(least_peak(hosts.priced(prices)) - sum(prices) for prices in (*hosts.prices(), (6, 4))) == 20
    assert bound_by_nodes(hosts, order, enough=100, deadline=math.inf) == unhosted(hosts, order) == 25


def test_two_that_meet_do_not_both_lie_in_one_results_memory() -> None:
    """A large one beside the first, another one beside the second, and a result that is written at the end.

    The first is read where the second is written: the result's memory holds one of them, and the other one counts.
    """
    sizes_and_users = (
        (4, 0, (1, 3)),
        (20, 1, (2,)),
        (1, 2, (3,)),
        (4, 3, (4, 6)),
        (20, 4, (5,)),
        (1, 5, (6,)),
        (1, 6, (7,)),
        (4, 7, (8,)),
    )
    storages = tuple(Storage(size, (writer,), readers) for size, writer, readers in sizes_and_users)
    problem = OrderProblem(((9,), *((n, 9) for n in range(7)), (*range(8), 9), ()), storages)
    hosts = hosts_of(problem, 7, [(7,)], [])
    assert hosts is not None
    order = (9, *range(9))
    assert bound_by_nodes(hosts, order, enough=100, deadline=math.inf) == 21
    assert bound_by_cases(hosts, order, 21, 25, deadline=math.inf) == unhosted(hosts, order) == 24
