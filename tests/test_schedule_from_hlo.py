"""HLO computations as ordering problems, and what XLA would set aside for them in another order."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import networks
from memscope.compile import Build, Compiled, compile_flat, compile_program
from memscope.evaluate import run_program
from memscope.hlo.assignment import parse_assignment
from memscope.hlo.dataflow import Dataflow
from memscope.hlo.heap import ALIGNMENT, Block, best_fit
from memscope.hlo.module import Module, parse_module
from memscope.hlo.place import sharing_values
from memscope.schedule.from_hlo import OrderingProblems
from memscope.schedule.hook import ordering
from memscope.schedule.predict import HeapModel, ModuleOrder, temporary_heap
from memscope.target import resolve
from memscope.trace import trace


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def updates(x: jax.Array) -> jax.Array:
    """Updates in place of memory that is read before."""
    y = jnp.zeros((200, 100))
    sums = []
    for k in range(4):
        y = y.at[k].set(jnp.sort(x + k, axis=0)[k])
        sums.append(jnp.sin(y).sum(0))
    return y @ jnp.stack(sums).T


def nested(x: jax.Array) -> jax.Array:
    """Branches in a loop in a branch, with large temporaries in each."""

    def step(carry: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        parts = [jnp.sort(jnp.tanh(carry * i) @ carry, 0) for i in range(1, 4)]
        mixed = jax.lax.cond(k > 2, lambda c: jnp.sort(c @ c.T, 1), lambda c: c * 2, sum(parts))
        return jnp.cos(mixed), mixed[0]

    def loop(v: jax.Array) -> jax.Array:
        final, rows = jax.lax.scan(step, v, jnp.arange(4.0))
        return final + rows.sum()

    return jax.lax.cond(x.sum() > 0, loop, lambda v: v, x @ x) + x


def scatters(x: jax.Array) -> jax.Array:
    """Scatters into memory that is written anew each time, read by what may also take the place of another value."""
    total = jnp.zeros((200, 100))
    for k in range(4):
        pooled = jax.lax.reduce_window(jnp.sin(x * k), -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID")
        spread = jnp.zeros((200, 100)).at[jnp.argsort(x[:, k])[:100], :50].add(pooled)
        total = total + jnp.where(x > k, spread, 0) @ jnp.sort(x, 0).T @ x
    return total


def scattered(module: Module) -> list[int]:
    """The ids of the instructions that scatter, or are fusions around one that does."""
    inside = {c.id for c in module.computations if any(i.opcode == "scatter" for i in c.instructions)}
    return [i.id for i in module.entry.instructions if i.opcode == "scatter" or not inside.isdisjoint(i.called)]


Case = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]


def _gradient(network: networks.Network) -> Case:
    program = networks.gradient("", network)
    return program.fn, jax.eval_shape(program.make_args), ()


def _step(network: networks.Network) -> Case:
    program = networks.adam("", network)
    return program.fn, jax.eval_shape(program.make_args), (0,)


CASES: dict[str, Case] = {
    "updates in place": (updates, (f32(200, 100),), ()),
    "nested": (nested, (f32(100, 100),), ()),
    "scatters": (scatters, (f32(200, 100),), ()),
    "U-Net": _gradient(networks.unet(2, 16, 8, 3)),
    "MLP": _gradient(networks.mlp(256, 64, 5)),
    "LSTM": _gradient(networks.lstm(32, 4, 32)),
    "recurrent net": _gradient(networks.recurrent(32, 4, 32)),
    "random-wired net": _gradient(networks.random_wired(2, 8, 16, 8)),
    "graph net": _gradient(networks.graph_net(2, 64, 512, 16, 2)),
    "Adam step": _step(networks.mlp(256, 64, 4)),
}


@functools.cache
def compiled(name: str) -> tuple[Compiled, Module]:
    fn, args, donated = CASES[name]
    made = compile_program(trace(fn, args, donate_argnums=donated), Build.PLAIN, resolve(None))
    return made, parse_module(made.module)


def random_orders(module: Module, seed: int) -> dict[int, tuple[str, ...]]:
    """A random order of each computation that keeps to its problem."""
    problems, generator = OrderingProblems(module), random.Random(seed)
    orders = {}
    for computation in problems.computations:
        problem = problems.problem(computation, {})
        waiting = [len(before) for before in problem.problem.predecessors]
        ready, order = [n for n, count in enumerate(waiting) if not count], []
        while ready:
            node = ready.pop(generator.randrange(len(ready)))
            order.append(node)
            for after in problem.problem.successors[node]:
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append(after)
        assert problem.problem.is_order(order)
        orders[computation.id] = problem.sequence(tuple(order))
    return orders


@pytest.mark.parametrize("name", CASES)
def test_the_heap_is_that_of_xla(name: str) -> None:
    made, module = compiled(name)
    assert temporary_heap(module)[0].bytes == pytest.approx(made.temp_bytes, rel=0.002, abs=1024)


@pytest.mark.parametrize("chained", [False, True], ids=["", "chained"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "Adam step"])
def test_the_heap_is_that_of_xla_in_another_order_with_the_same_results(name: str, chained: bool) -> None:
    """Any order within the problem's precedences is one that XLA takes, accounts for and runs the same."""
    fn, args, _ = CASES[name]
    made, module = compiled(name)
    order = ModuleOrder(random_orders(module, seed=1), chained)
    program = trace(fn, args)
    with ordering(order.names, order.chained) as request:
        run = run_program(program)
        run.__name__ = "reordered" + request.token
        other = compile_flat(run, program, Build.PLAIN, resolve(None))
    assert request.applied, request.error
    predicted = HeapModel(module).heap_bytes(order)
    assert predicted == pytest.approx(other.temp_bytes, rel=0.002, abs=1024)
    rng = np.random.default_rng(0)
    leaves = [rng.normal(size=a.shape).astype(a.dtype) for a in jax.tree.leaves(args)]
    for a, b in zip(made.call(*leaves), other.call(*leaves), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_what_shares_memory_by_construction_lies_in_one_place_by_xlas_account(name: str) -> None:
    made, module = compiled(name)
    assignment = parse_assignment(made.assignment)
    assert assignment is not None
    place = {slot.position: (a.index, slot.offset) for a in assignment.allocations for slot in a.slots}
    groups = [[v for v in values if v in place] for values in sharing_values(Dataflow(module), list(place))]
    assert all(len({place[value] for value in values}) <= 1 for values in groups)
    for instruction in scattered(module):
        assert any(len(values) > 1 and (instruction, ()) in values for values in groups)
    assert bool(scattered(module)) is (name in ("scatters", "U-Net", "graph net"))


@pytest.mark.parametrize("name", CASES)
def test_the_problem_counts_what_the_module_holds(name: str) -> None:
    """Temporaries in results' memory apart, and gaps between buffers."""
    made, module = compiled(name)
    problems = OrderingProblems(module)
    held: dict[int, int] = {}
    for computation in problems.computations:
        problem = problems.problem(computation, held)
        assert problem.problem.is_order(problem.default)
        held[computation.id] = problem.problem.peak(problem.default)
    entry = problems.problem(module.entry, held)
    assert held[module.entry_id] >= 0.95 * made.temp_bytes
    assert held[module.entry_id] - entry.host_bytes <= 1.02 * made.temp_bytes
    if entry.hosts is not None:
        order = entry.hosts.with_ends(entry.default)
        assert entry.hosts.full.peak(order) - entry.hosts.bytes <= 1.02 * made.temp_bytes
        for prices in entry.hosts.prices():
            assert entry.hosts.priced(prices).peak(order) - sum(prices) <= 1.02 * made.temp_bytes


def test_every_instruction_stands_in_the_sequence_once() -> None:
    _, module = compiled("nested")
    problems = OrderingProblems(module)
    assert len(problems.computations) > 3
    for computation in problems.computations:
        problem = problems.problem(computation, {})
        names = problem.sequence(problem.default)
        assert sorted(names) == sorted(i.name for i in computation.instructions)
        assert problem.order_of(names) == problem.default
        assert problem.order_of(names[1:]) in (problem.default, None)


def test_blocks_take_the_smallest_gap_that_holds_them() -> None:
    heap = best_fit([Block(640, ((0, 9),)), Block(320, ((0, 3),)), Block(192, ((5, 9),)), Block(64, ((4, 4), (7, 8)))])
    assert heap.bytes == 960
    assert heap.offsets == (0, 640, 640, 832)


def test_blocks_start_aligned() -> None:
    heap = best_fit([Block(10, ((0, 1),)), Block(9, ((0, 1),))])
    assert heap.offsets == (0, ALIGNMENT)
    assert best_fit([]).bytes == 0
