"""The pass inside XLA: it acts on our own compiles alone, whatever else is compiled, cached or goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from memscope.compile import Build, Compiled, compile_flat, compile_program
from memscope.evaluate import run_program
from memscope.hlo import hlo_pb2
from memscope.hlo.module import parse_module
from memscope.schedule import hook
from memscope.target import resolve
from memscope.trace import trace

X = jax.ShapeDtypeStruct((500,), jnp.float32)
ONE = 500 * 500 * 4


def branches(x: jax.Array) -> jax.Array:
    total = jnp.float32(0)
    for k in range(6):
        total = total + jnp.sort(jnp.sin(x * (k + 1.0))[:, None] + x, axis=0)[3].sum()
    return total


def depth_first(module: Any, last_operands_first: bool = False) -> list[str]:
    """The entry computation's instructions, each just after the last of its operands."""
    entry = module.entry
    by_id = {i.id: i for i in entry.instructions}
    order: dict[int, None] = {}

    def visit(instruction: Any) -> None:
        for operand in instruction.operands[:: -1 if last_operands_first else 1]:
            visit(by_id[operand])
        order.setdefault(instruction.id)

    visit(by_id[entry.root])
    return [by_id[i].name for i in (*order, *(i for i in by_id if i not in order))]


@pytest.fixture(scope="module")
def default() -> Compiled:
    return compile_program(trace(branches, (X,)), Build.PLAIN, resolve(None))


def in_order(order: list[str]) -> tuple[Compiled, hook.Request]:
    program = trace(branches, (X,))
    with hook.ordering(order) as request:
        run = run_program(program)
        run.__name__ = program.name + request.token
        return compile_flat(run, program, Build.PLAIN, resolve(None)), request


def test_an_order_reaches_the_buffers(default: Compiled) -> None:
    assert default.temp_bytes > 5 * ONE
    compiled, request = in_order(depth_first(parse_module(default.module)))
    assert request.applied
    assert compiled.temp_bytes < 1.1 * ONE


def test_the_module_changes_in_its_schedule_alone(default: Compiled) -> None:
    order = depth_first(parse_module(default.module))
    rank = {name: k for k, name in enumerate(order)}
    changed = hook.reordered(default.module, rank)
    assert changed.startswith(default.module)
    before, after = hlo_pb2.Module.FromString(default.module), hlo_pb2.Module.FromString(changed)
    entry = parse_module(changed).entry
    assert [i.name for i in entry.instructions] == order
    before.schedule.Clear()
    after.schedule.Clear()
    assert before == after


def test_a_chain_puts_the_modules_text_in_order_too(default: Compiled) -> None:
    order = depth_first(parse_module(default.module), last_operands_first=True)
    program = trace(branches, (X,))
    texts = []
    for chained in (False, True):
        with hook.ordering(order, chained) as request:
            run = run_program(program)
            run.__name__ = program.name + request.token
            made = compile_flat(run, program, Build.PLAIN, resolve(None))
        entry = parse_module(made.module).entry
        assert request.applied
        assert [i.name for i in entry.instructions] == order
        texts.append([next(i.name for i in entry.instructions if i.id == number) for number in entry.text])
    assert texts[0] != order
    assert texts[1] == order


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda order: order[::-1], "before what it needs"),
        (lambda order: order[:-1], "did not have before"),
        (lambda order: [name + "x" for name in order], None),
    ],
)
def test_what_is_no_order_is_refused(spoil: Any, says: str | None, default: Compiled) -> None:
    compiled, request = in_order(spoil(depth_first(parse_module(default.module))))
    assert compiled.temp_bytes == default.temp_bytes
    assert request.applied is (says is None)  # an order of other instructions changes nothing
    if says is not None:
        assert says in str(request.error)


def test_other_threads_compile_as_ever(default: Compiled) -> None:
    order = depth_first(parse_module(default.module))
    started = threading.Event()

    def plain(k: int) -> int:
        started.wait()
        compiled = jax.jit(lambda x: branches(x) + k).lower(X).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    def ours() -> int:
        started.set()
        return in_order(order)[0].temp_bytes

    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(plain, k) for k in range(3)]
        mine = [pool.submit(ours) for _ in range(2)]
        assert all(job.result() > 5 * ONE for job in others)
        assert all(job.result() < 1.1 * ONE for job in mine)
    assert plain(7) > 5 * ONE


SCRIPT = """
    import os, sys
    import jax, jax.numpy as jnp
    import memscope
    from tests.test_schedule_hook import branches, X

    def plain():
        jax.clear_caches()
        return jax.jit(branches).lower(X).compile().memory_analysis().temp_size_in_bytes

    before = plain()
    found = memscope.schedule(branches, X, seconds=0.5)
    entries = os.listdir(os.environ["JAX_COMPILATION_CACHE_DIR"])
    print(before, found.default_temp_bytes, found.temp_bytes, plain(), sum("memscope_order" in e for e in entries))
    assert any("branches" in e for e in entries)
"""


def test_a_persistent_cache_hands_no_order_on(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parent.parent
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
    }
    for _ in range(2):  # the second one reads what the first one wrote
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
        said = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
        before, default, ours, after, ordered = map(int, said.stdout.split())
        assert before == default == after > 5 * ONE
        assert ours < 1.1 * ONE
        assert ordered == 0
