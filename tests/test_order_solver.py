"""The solver of ordering problems against brute force: bounds never above the optimum, orders valid and optimal."""

from __future__ import annotations

import importlib.util
import time
from random import Random

import pytest

from memscope.schedule import cpsat, solver
from memscope.schedule.bound import Cuts, lower_bound
from memscope.schedule.bracket import Bracket
from memscope.schedule.exhaust import Attempt, Search, first_to_tell
from memscope.schedule.flow import SINK, SOURCE, UNCUT, Network
from memscope.schedule.heuristics import bisect, depth_first, greedy
from memscope.schedule.problem import Loan, OrderProblem, Storage
from memscope.schedule.reach import members
from memscope.schedule.reduce import reduce
from memscope.schedule.solve import solve
from memscope.schedule.tighten import tighten

from .random_orders import least_held, least_peak, random_order, random_problem

SEEDS = range(150)
needs_ortools = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="OR-Tools is not installed: it comes with the extra `order`"
)


def soon() -> float:
    return time.monotonic() + 30


def order_within(problem: OrderProblem, limit: int) -> Attempt:
    return first_to_tell([Search(problem, limit, depth_first(problem))], soon())[1]


def ladder(steps: int) -> OrderProblem:
    """A gradient's shape: a chain forward, whose values the chain backward reads in reverse."""
    forward = [Storage(8, (i,), (i + 1, 2 * steps - 1 - i)) for i in range(steps - 1)]
    backward = [Storage(8, (i,), (i + 1,)) for i in range(steps - 1, 2 * steps - 1)]
    predecessors = [set[int]() for _ in range(2 * steps)]
    for storage in (*forward, *backward):
        for reader in storage.readers:
            predecessors[reader].update(storage.writers)
    return OrderProblem(tuple(map(tuple, predecessors)), (*forward, *backward))


def branches(count: int) -> OrderProblem:
    """Independent branches of two nodes each, the first of which needs much and the second little, then their sum."""
    storages = [Storage(100, (2 * i,), (2 * i + 1,)) for i in range(count)]
    storages += [Storage(1, (2 * i + 1,), (2 * count,)) for i in range(count)]
    predecessors = [() if i % 2 == 0 else (i - 1,) for i in range(2 * count)]
    return OrderProblem((*predecessors, tuple(range(1, 2 * count, 2))), tuple(storages))


def test_a_flow_is_as_large_as_the_smallest_cut() -> None:
    network = Network(4)
    for tail, head, capacity in ((SOURCE, 2, 5), (SOURCE, 3, 4), (2, 3, UNCUT), (2, SINK, 2), (3, SINK, 6)):
        network.add_edge(tail, head, capacity)
    assert network.maximise() == 8
    assert network.source_side() == {SOURCE, 2, 3}
    assert network.sink_side() == {SINK}
    assert network.forced(2, source=False).maximise() == 5 + 4
    assert network.forced(3, source=True).maximise() == 8
    assert network.value == 8


@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_are_what_a_node_needs_at_least(seed: int) -> None:
    problem = random_problem(Random(seed), largest=7)
    cuts = Cuts(problem)
    for node in range(problem.size):
        least = least_held(problem, node)
        single = len({loan.borrower for loan in problem.loans if loan.node == node}) <= 1
        assert cuts.least(node).bytes <= least
        if single and all(len(s.users & {node}) == 0 or len(s.writers) == 1 for s in problem.storages):
            assert cuts.least(node).bytes == least
        assert set(problem.predecessors[node]) <= set(members(cuts.least(node).before))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bound_is_above_the_optimum(seed: int) -> None:
    random = Random(seed)
    problem = random_problem(random)
    optimum = least_peak(problem)
    for each in (problem, problem.reversed(), reduce(problem).problem):
        if each.size:
            order = random_order(random, each)
            ceiling = dict(zip(order, each.held(order), strict=True))
            assert lower_bound(Cuts(each), [ceiling[node] for node in range(each.size)], soon()) <= optimum


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_limit_implies_rules_out_no_order_within_it(seed: int) -> None:
    problem = random_problem(Random(seed))
    optimum = least_peak(problem)
    for limit in (optimum, optimum + 2):
        tight = tighten(Cuts(problem), limit, range(problem.size), soon())
        assert tight is not None
        assert least_peak(tight.problem) == optimum


@pytest.mark.parametrize("seed", SEEDS)
def test_the_search_over_down_sets_is_exact(seed: int) -> None:
    problem = random_problem(Random(seed))
    optimum = least_peak(problem)
    for each in (problem, problem.reversed(), reduce(problem).problem, reduce(problem.reversed()).problem):
        found = order_within(each, optimum).order
        assert found is not None
        assert each.is_order(found)
        assert each.peak(found) == optimum
        if optimum:
            attempt = order_within(each, optimum - 1)
            assert attempt.order is None
            assert attempt.complete


def test_a_search_that_runs_out_of_time_claims_nothing() -> None:
    problem = branches(6)
    _, attempt = first_to_tell([Search(problem, 104, depth_first(problem))], deadline=0)
    assert attempt.order is None
    assert not attempt.complete


@pytest.mark.parametrize("seed", SEEDS)
def test_heuristics_give_valid_orders(seed: int) -> None:
    random = Random(seed)
    problem = random_problem(random)
    first = depth_first(problem, random)
    for order in (first, depth_first(problem), greedy(problem, lambda during, change: (change, during))):
        assert problem.is_order(order)
    better = bisect(Cuts(problem), first, 0, soon())
    assert problem.is_order(better)
    assert problem.peak(better) <= problem.peak(first)


@pytest.mark.parametrize("seed", SEEDS)
def test_solved_problems_are_optimal_and_proved(seed: int) -> None:
    random = Random(seed)
    problem = random_problem(random)
    hint = random_order(random, problem)
    solution = solve(problem, 10, [hint])
    assert problem.is_order(solution.order)
    assert problem.peak(solution.order) == solution.peak_bytes == least_peak(problem) == solution.lower_bound_bytes
    assert solution.optimal
    assert solution.gap == 0
    assert solution.candidates[0] == solution.order
    assert len(set(solution.candidates)) == len(solution.candidates)
    assert all(problem.is_order(order) for order in solution.candidates)


@needs_ortools
@pytest.mark.parametrize("seed", range(40))
def test_the_constraint_program_is_the_problem(seed: int) -> None:
    random = Random(seed)
    problem = random_problem(random)
    hint = random_order(random, problem)
    peaks: list[int] = []
    answer = solver.improve(problem, hint, 0, soon(), peaks.append)
    optimum = least_peak(problem)
    assert answer.lower_bound <= optimum
    assert answer.order is not None
    assert problem.is_order(answer.order)
    assert problem.peak(answer.order) == optimum
    assert not peaks or peaks[-1] == optimum


def test_without_ortools_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpsat, "available", lambda: False)
    problem = branches(4)
    solution = solve(problem, 5)
    assert solution.optimal
    assert "memscope-jax[order]" in solution.remark


@pytest.mark.parametrize(("problem", "optimum"), [(branches(40), 140), (ladder(60), 8 * 61)])
def test_large_problems_of_a_simple_shape(problem: OrderProblem, optimum: int) -> None:
    solution = solve(problem, 20)
    assert (solution.peak_bytes, solution.lower_bound_bytes) == (optimum, optimum)


def test_no_answer_is_worse_than_a_hint() -> None:
    problem = branches(30)
    hint = depth_first(problem)
    assert solve(problem, 0, [hint]).peak_bytes <= problem.peak(hint)


def test_progress_is_told() -> None:
    lines: list[str] = []
    breadth_first = (*range(0, 16, 2), *range(1, 16, 2), 16)
    solve(branches(8), 5, [breadth_first], lines.append)
    assert lines


@needs_ortools
def test_what_progress_raises_leaves_the_solver() -> None:
    def stop(peak: int) -> None:
        raise KeyboardInterrupt

    problem = branches(6)
    with pytest.raises(KeyboardInterrupt):
        solver.improve(problem, depth_first(problem), 0, soon(), stop)


def test_an_empty_problem_has_an_empty_order() -> None:
    solution = solve(OrderProblem((), ()), 1)
    assert (solution.order, solution.peak_bytes, solution.optimal) == ((), 0, True)


def test_hints_that_are_no_orders_and_cycles_are_errors() -> None:
    with pytest.raises(ValueError, match="hint"):
        solve(branches(2), 1, [(0, 1)])
    with pytest.raises(ValueError, match="cycle"):
        solve(OrderProblem(((1,), (0,)), (), (), ()), 1)


def test_a_loan_that_only_one_order_allows_is_found() -> None:
    problem = OrderProblem(
        predecessors=((), (0,), (0,), (1, 2)),
        storages=(Storage(8, (0,), (1, 2)), Storage(8, (1,), (3,)), Storage(2, (2,), (3,))),
        loans=(Loan(1, 0, 1),),
    )
    solution = solve(problem, 5)
    assert solution.order == (0, 2, 1, 3)
    assert solution.peak_bytes == solution.lower_bound_bytes == 10


@needs_ortools
@pytest.mark.parametrize("seed", range(40))
def test_the_solver_takes_over_where_the_search_stopped(seed: int) -> None:
    random = Random(seed)
    problem = random_problem(random)
    bracket = Bracket(problem, 0, soon(), lambda peak, lower: None)
    bracket.offer(random_order(random, problem))
    bracket.hand_over()
    optimum = least_peak(problem)
    assert bracket.lower == bracket.peak == optimum or bracket.peak == optimum == 0
