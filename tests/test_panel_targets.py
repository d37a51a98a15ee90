"""The panel for places that are not here, and the table of several of them."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

import memscope
from memscope import Target
from memscope.call import Call
from memscope.gpu import remote
from memscope.options import Options
from memscope.sizes import format_bytes
from memscope.target import resolve
from memscope_jupyter.account import account_notes
from memscope_jupyter.bar import bar_data
from memscope_jupyter.rewrite import rewrite_html, source_html
from memscope_jupyter.run import run_html
from memscope_jupyter.session import Session
from memscope_jupyter.state import Bound, Refused, Stage
from memscope_jupyter.status import how_to_call, status_data
from memscope_jupyter.targets import USUAL, compiler_missing, table_data, targets_html
from tests.test_panel import Opened, settled, the_call, until

needs_gpu_compiler = pytest.mark.skipif(bool(compiler_missing()), reason=compiler_missing())
A100 = resolve("a100-40gb")
LARGE, SMALL, TINY = (
    Target(name, "cpu", size) for name, size in [("large", 1 << 30), ("small", 300_000), ("tiny", 99)]
)


def started(call: Call, target: str | Target | None = None) -> Session:
    session = Session(call, Options(target=target))
    session.trace()
    session.wait(session.profile(), lambda line: None)
    return session


@pytest.fixture
def session() -> Iterator[Session]:
    opened = started(the_call())
    yield opened
    opened.close()


def test_what_is_said_of_a_gpu_that_is_not_here(session: Session) -> None:
    there = dataclasses.replace(session.state, target=A100, bound=Bound("nearest_safe", 1 << 20, 1 << 19, False))
    capacity, memory = format_bytes(A100.capacity_bytes), format_bytes(A100.memory_bytes or 0)
    assert bar_data(there)["place"] == f"a100-40gb (a program may use {capacity} of its {memory})"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in bar_data(there)["placeNote"]
    assert "It is for a100-40gb: a call of it here raises TargetError." in status_data(there)["bound"]
    assert how_to_call("nearest_safe", there) == "Trace it, save it or export it for a100-40gb."
    assert run_html(there, abstract=True).startswith(
        "<p>nearest can't run here, as no a100-40gb is attached: export it"
    )
    assert "TargetError" not in status_data(dataclasses.replace(there, target=session.state.target))["bound"]


def test_targets_side_by_side(session: Session) -> None:
    lines: list[str] = []
    session.listen(lambda state: lines.append(state.line))
    session.compare([LARGE, SMALL, TINY])
    assert session.state.stage is Stage.COMPARING
    assert [row["cells"][3] for row in table_data(session.state)["rows"]] == ["waiting"] * 4
    own, large, small, tiny = table_data(settled(session))["rows"]
    assert session.state.message is None
    assert (own["id"], own["marked"], large["marked"]) == ("cpu", True, False)
    assert [row["cells"][3] for row in (own, large, small, tiny)] == ["fits", "fits", "does not fit", "does not fit"]
    assert small["cells"][4] == format_bytes(SMALL.capacity_bytes)
    assert small["keys"][5] <= SMALL.capacity_bytes < small["keys"][2]
    assert "x the time, by estimate" in small["cells"][6]
    assert tiny["cells"][4] == "none"
    assert "is the lowest peak that memscope can reach, where" in tiny["cells"][6]
    assert any(line.startswith("small, 3 of 4: compiling") for line in lines)


def test_what_is_known_is_not_compiled_again(session: Session) -> None:
    session.compare([SMALL])
    first = settled(session).compared["small"]
    session.compare([LARGE, SMALL])
    again = settled(session).compared
    assert again["small"] is first
    assert list(again) == ["cpu", "small", "large"]
    assert [row["id"] for row in table_data(session.state)["rows"]] == ["cpu", "large", "small"]


def test_a_comparison_that_is_cancelled_keeps_what_it_knows(session: Session) -> None:
    session.compare([LARGE, SMALL])
    until(lambda: "large" in session.state.compared)
    session.cancel()
    state = session.state
    assert state.stage is Stage.IDLE
    assert list(state.compared) == ["cpu", "large"]
    assert state.message is not None
    assert state.message.text == "Cancelled."
    assert [row["cells"][3] for row in table_data(state)["rows"]] == ["fits", "fits", "not compiled"]


def test_without_the_compiler_the_tab_says_how_to_get_it(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PLUGINS", ("jax-cuda0-plugin",))
    missing = compiler_missing()
    assert missing.startswith("A preview for a GPU needs XLA's GPU compiler, which is not installed: pip install")
    assert "memscope-jax[gpu]" in targets_html("nearest", missing)
    opened = Opened(session)
    *_, buttons = opened.panel.targets.root.children
    assert buttons.layout.display == "none"
    opened.panel.close()


@needs_gpu_compiler
def test_gpus_from_a_panel_on_the_cpu(session: Session) -> None:
    opened = Opened(session)
    opened.panel.targets.usual.click()
    opened.settle()
    rows = opened.panel.targets.table.data["rows"]
    assert [row["id"] for row in rows] == ["cpu", *USUAL]
    assert {row["cells"][3] for row in rows} == {"fits"}
    assert opened.panel.targets.usual.disabled
    assert not opened.panel.targets.all.disabled
    opened.panel.close()


def printing(x: jax.Array) -> jax.Array:
    jax.debug.print("sum {}", x.sum())
    return jnp.sin(x)


@needs_gpu_compiler
def test_what_can_not_be_compiled_is_told_in_its_row() -> None:
    session = started(Call(printing, (jnp.ones(100),)))
    session.compare(["t4"])
    state = settled(session)
    session.close()
    assert isinstance(state.compared["t4"], Refused)
    cells = table_data(state)["rows"][1]["cells"]
    assert cells[3] == "can't be told"
    assert cells[6].startswith("printing can't be compiled for t4 from here: it calls back into Python")


def farthest(q: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.max(jnp.tanh(q @ x.T), 1)


@needs_gpu_compiler
def test_what_compiles_only_when_rewritten_is_told_in_its_row() -> None:
    rows = (jax.ShapeDtypeStruct((size, 64), "float32") for size in (1_000_000, 10_000_000))
    session = started(Call(farthest, tuple(rows)))
    session.compare(["a100-40gb"])
    cells = table_data(settled(session))["rows"][1]["cells"]
    session.close()
    assert cells[2] == "about 36.4 TiB"
    assert cells[3] == "does not compile"
    assert "x the time, by estimate" in cells[6]


def factored(x: jax.Array) -> jax.Array:
    return jnp.linalg.cholesky(x @ x.T)


@needs_gpu_compiler
def test_a_panel_of_a_gpu_that_is_not_here(tmp_path: pathlib.Path) -> None:
    session = started(Call(factored, (jax.ShapeDtypeStruct((500, 500), "float32"),)), "a100-40gb")
    opened = Opened(session)
    assert not opened.panel.apply.disabled
    assert opened.panel.check.disabled
    assert "can't run here" in opened.panel._run.value
    assert any("workspace that is chosen when it runs, by cuSOLVER" in note for note in account_notes(session.state))
    opened.panel.close()


# A target that is too small for what can be reached.


def test_no_limit_helps_where_the_target_is_too_small(session: Session) -> None:
    session.state = dataclasses.replace(session.state, target=TINY)
    session.plan(10_000)
    state = settled(session)
    assert state.message is not None
    assert state.message.next_step == "No limit helps, as tiny holds 99 B: run it where there is more memory."
    session.compare([LARGE, SMALL, TINY])
    settled(session)
    session.plan(20_000)
    state = settled(session)
    assert state.message is not None
    assert state.message.next_step.endswith("99 B: it fits on large, small, as the tab Targets says.")


@needs_gpu_compiler
def test_a_gpu_that_is_too_small_is_told_with_those_that_are_not() -> None:
    tiny = memscope.target("tiny", memory="100KiB", like="t4")
    session = started(the_call(), tiny)
    session.plan(tiny.capacity_bytes)
    state = settled(session)
    session.close()
    assert state.floor_bytes is not None
    floor = format_bytes(state.floor_bytes)
    assert state.message is not None
    assert state.message.next_step == (
        "No limit helps, as on tiny a program may use 75.0 KiB: there is room for "
        f"{floor} on t4, l4, rtx4090 or larger; the tab Targets finds out what it takes there."
    )


# Plans that compute nothing in chunks.


def branches(x: jax.Array) -> jax.Array:
    return sum((jnp.sum(jnp.sin(x @ (x.T * (i + 1))) @ x) for i in range(8)), jnp.zeros(()))


def by_sort(q: jax.Array, x: jax.Array) -> jax.Array:
    d = jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)
    return jnp.argsort(d, axis=1)[:, :10]


def test_an_order_alone(tmp_path: pathlib.Path) -> None:
    session = started(Call(branches, (jax.ShapeDtypeStruct((1000, 16), "float32"),)))
    opened = Opened(session)
    session.plan(session.limit_of("30%"))
    until(lambda: session.state.plan is not None and session.state.source is not None)
    state = opened.settle()
    assert state.plan is not None
    assert state.plan.scheduled_by is not None
    assert state.plan.reordered
    assert opened.panel.chart.data["after"]["title"].startswith("reordered for ")
    assert opened.panel.chart.data["change"] == dict(opened.panel.table.data["sides"])["after"] == "reordered"
    said = rewrite_html(state.plan)
    assert "run in another order" in said
    assert "chunk" not in said
    assert "without the order of its instructions" in source_html("branches", state.source, state.plan)
    session.export(str(tmp_path / "branches.py"))
    message = settled(session).message
    assert message is not None
    assert "No .py file can hold an order of instructions: what is in this one peaks at" in message.next_step
    opened.panel.close()


def test_a_simpler_way_alone() -> None:
    shapes = (jax.ShapeDtypeStruct((n, 16), "float32") for n in (500, 5000))
    session = started(Call(by_sort, tuple(shapes)))
    session.plan(session.limit_of("70%"))
    plan = settled(session).plan
    session.close()
    assert plan is not None
    assert not plan.loops
    assert not plan.reordered
    said = rewrite_html(plan)
    assert "is not made at all: the first 10 of a sort of 5,000 are its top_k." in said
    assert "chunk" not in said
