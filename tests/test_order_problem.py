"""Orders and what they hold, and the reductions that leave the optimum as it is."""

from __future__ import annotations

from random import Random

import pytest

from memscope.schedule.problem import Lifetime, Loan, OrderProblem, Storage
from memscope.schedule.reach import Reach
from memscope.schedule.reduce import reduce
from memscope.schedule.state import State

from .random_orders import held_at, least_peak, random_order, random_problem

SEEDS = range(150)

# 0 writes a, from which 1 and 2 compute b and c; 3 reads both.
DIAMOND = OrderProblem(
    predecessors=((), (0,), (0,), (1, 2)),
    storages=(Storage(4, (0,), (1, 2)), Storage(4, (1,), (3,)), Storage(2, (2,), (3,))),
    loans=(Loan(1, 0, 1),),
)


def test_a_storage_is_held_from_its_first_user_to_its_last() -> None:
    assert DIAMOND.held((0, 1, 2, 3)) == (4, 8, 10, 6)


def test_a_loan_saves_at_the_last_use_alone() -> None:
    assert DIAMOND.held((0, 2, 1, 3)) == (4, 6, 6, 6)
    assert DIAMOND.peak((0, 2, 1, 3)) == least_peak(DIAMOND) == 6


def test_a_storage_lends_and_borrows_once() -> None:
    problem = OrderProblem(
        predecessors=((), (0,)),
        storages=(Storage(3, (0,), (1,)), Storage(3, (0,), (1,)), Storage(3, (1,), ())),
        loans=(Loan(1, 0, 2), Loan(1, 1, 2)),
    )
    assert problem.held((0, 1)) == (6, 6)


def test_what_a_node_needs_while_it_runs_counts_there() -> None:
    problem = OrderProblem(((), ()), (Storage(2, (0,), (1,)),), extra=(7, 1))
    assert problem.held((0, 1)) == (9, 3)


def test_orders_that_break_a_precedence_are_none() -> None:
    assert DIAMOND.is_order((0, 2, 1, 3))
    assert not DIAMOND.is_order((1, 0, 2, 3))
    assert not DIAMOND.is_order((0, 1, 2))
    assert not DIAMOND.is_order((0, 1, 1, 3))


def test_reachability() -> None:
    reach = Reach(DIAMOND.predecessors)
    assert reach.ancestors == [0b0000, 0b0001, 0b0001, 0b0111]
    assert reach.descendants == [0b1110, 0b1000, 0b1000, 0b0000]
    assert reach.first({1, 2, 3}) == {1, 2}
    assert reach.last({0, 1, 2}) == {1, 2}


def test_a_cycle_is_an_error() -> None:
    with pytest.raises(ValueError, match="cycle"):
        Reach(((1,), (0,)))


@pytest.mark.parametrize("seed", SEEDS)
def test_running_node_by_node_holds_what_the_order_holds(seed: int) -> None:
    random = Random(seed)
    problem = random_problem(random)
    order = random_order(random, problem)
    held = problem.held(order)
    state = State(problem)
    for step, node in enumerate(order):
        if random.random() < 0.3:  # a detour leaves no trace
            detour = random.choice(sorted(state.ready))
            state.run(detour)
            state.back()
        assert state.step(node)[0] == held[step]
        assert held[step] == held_at(problem, frozenset(order[:step]), node)
        state.run(node)
    assert state.held == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_reductions_leave_the_optimum_as_it_is(seed: int) -> None:
    random = Random(seed)
    problem = random_problem(random)
    reduction = reduce(problem)
    assert least_peak(reduction.problem) == least_peak(problem)
    for _ in range(10):
        order = random_order(random, reduction.problem)
        expanded = reduction.expand(order)
        assert problem.is_order(expanded)
        assert problem.peak(expanded) <= reduction.problem.peak(order)
        assert reduction.restrict(expanded) == order


@pytest.mark.parametrize("seed", SEEDS)
def test_without_negligible_storages_the_optimum_is_a_lower_bound(seed: int) -> None:
    problem = random_problem(Random(seed))
    reduction = reduce(problem, negligible=2)
    assert least_peak(reduction.problem) <= least_peak(problem)
    assert all(storage.bytes > 2 for storage in reduction.problem.storages)


@pytest.mark.parametrize("seed", SEEDS)
def test_time_may_run_backwards(seed: int) -> None:
    random = Random(seed)
    problem = random_problem(random)
    order = random_order(random, problem)
    assert problem.reversed().held(order[::-1]) == problem.held(order)[::-1]


def test_a_chain_in_place_leaves_nothing_to_decide() -> None:
    problem = OrderProblem(
        predecessors=((), (0,), (1,)),
        storages=(Storage(4, (0,), (1,)), Storage(4, (1,), (2,)), Storage(4, (2,), ())),
        loans=(Loan(1, 0, 1), Loan(2, 1, 2)),
    )
    reduction = reduce(problem)
    assert reduction.problem.size == 1
    assert reduction.expand((0,)) == (0, 1, 2)


def test_a_lifetime_ends_with_the_last_of_its_ends() -> None:
    problem = OrderProblem(((), (0,), (0,)), (Lifetime(5, frozenset({0}), frozenset({1, 2})),))
    assert problem.held((0, 1, 2)) == (5, 5, 5)
