"""An order eased: as XLA had it wherever that costs no memory."""

from __future__ import annotations

import functools
import math

import jax
import pytest

from benchmarks import networks
from memscope.compile import Build, compile_program
from memscope.hlo.module import Module
from memscope.schedule.ease import eased
from memscope.schedule.from_hlo import ComputationOrder, OrderingProblems
from memscope.schedule.heuristics import depth_first
from memscope.schedule.pack import WORTH
from memscope.schedule.predict import HeapModel, ModuleOrder
from memscope.target import resolve
from memscope.trace import trace

NETWORKS = {
    "random-wired net": networks.random_wired(2, 8, 16, 8),
    "inception": networks.inception(2, 16, 16, 2),
    "LSTM": networks.lstm(16, 6, 16),
}


@functools.cache
def module(name: str) -> Module:
    program = networks.gradient(name, NETWORKS[name])
    shapes = jax.eval_shape(program.make_args)
    return compile_program(trace(program.fn, shapes).as_traced, Build.PLAIN, resolve("cpu")).parsed


def dense(name: str) -> tuple[HeapModel, ComputationOrder, ModuleOrder]:
    """An order that leaves little room for instructions to run at the same time."""
    entry = OrderingProblems(module(name)).problem(module(name).entry, {})
    order = depth_first(entry.problem)
    return HeapModel(module(name)), entry, ModuleOrder({module(name).entry_id: entry.sequence(order)})


@pytest.mark.parametrize("name", NETWORKS)
def test_where_there_is_room_it_is_the_order_that_xla_had(name: str) -> None:
    _, entry, order = dense(name)
    found, _ = eased(module(name), order, 1 << 60, math.inf)
    assert entry.order_of(found.sequences[module(name).entry_id]) == entry.default


@pytest.mark.parametrize("name", NETWORKS)
def test_it_stays_within_the_limit_and_nearer_to_xlas_order(name: str) -> None:
    model, entry, order = dense(name)
    heap_bytes = model.heap_bytes(order)
    found, heap = eased(module(name), order, heap_bytes, math.inf)
    nodes, before = (entry.order_of(o.sequences[module(name).entry_id]) for o in (found, order))
    assert nodes is not None
    assert before is not None
    assert entry.problem.is_order(nodes)
    assert heap == model.heap_bytes(found) <= (1 + WORTH) * heap_bytes
    assert inversions(nodes) < inversions(before)


def test_without_time_it_stays_as_it_is() -> None:
    *_, order = dense("LSTM")
    assert eased(module("LSTM"), order, 1 << 60, 0) == (order, 1 << 60)


def inversions(nodes: tuple[int, ...]) -> int:
    """Pairs that XLA had the other way round."""
    return sum(a > b for k, a in enumerate(nodes) for b in nodes[k + 1 :])
