"""The panel without a browser: its session, and what it hands to its views."""

from __future__ import annotations

import dataclasses
import gc
import linecache
import os
import pathlib
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memscope
from memscope.call import Call
from memscope.compile import Build
from memscope.options import Options
from memscope.sizes import format_at_least, format_bytes
from memscope_jupyter.account import account_notes
from memscope_jupyter.bar import bar_data
from memscope_jupyter.buffers import note, rows
from memscope_jupyter.panel import Panel
from memscope_jupyter.rewrite import alternative_rows
from memscope_jupyter.session import Session
from memscope_jupyter.source import excerpt, files_of
from memscope_jupyter.state import Message, Stage, State, Tone, error_message
from memscope_jupyter.status import status_data
from memscope_jupyter.timeline import bands, chart_side
from memscope_jupyter.worker import Stopped, Worker

PATIENCE = 120.0


def nearest(q: jax.Array, x: jax.Array, k: int = 3) -> Any:
    d = jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)
    return jax.lax.top_k(-d, k)


def the_call() -> Call:
    rng = np.random.default_rng(0)
    return Call(nearest, tuple(rng.normal(size=(n, 8)).astype(np.float32) for n in (200, 2000)))


@pytest.fixture
def session() -> Iterator[Session]:
    """A session as a cell leaves it: traced and compiled."""
    opened = Session(the_call(), Options())
    opened.trace()
    opened.wait(opened.profile(), lambda line: None)
    yield opened
    opened.close()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def settled(session: Session) -> State:
    until(lambda: not session.state.busy)
    return session.state


# The worker.


def test_what_is_asked_for_last_goes_first() -> None:
    worker, begun, done = Worker("test"), threading.Event(), []

    def long() -> None:
        begun.set()
        while True:
            worker.checkpoint()

    first = worker.submit(long)
    assert begun.wait(PATIENCE)
    second = worker.submit(lambda: done.append("second"))
    third = worker.submit(lambda: done.append("third"))
    third.result(PATIENCE)
    assert isinstance(first.exception(PATIENCE), Stopped)
    assert second.cancelled()
    assert done == ["third"]
    worker.close()
    worker.join()


def test_spare_work_goes_on_after_what_was_asked_for() -> None:
    worker, did = Worker("test"), []

    def spare() -> bool:
        did.append("spare")
        time.sleep(0.005)
        return did.count("spare") < 5

    worker.when_idle(spare)
    worker.submit(lambda: did.append("asked")).result(PATIENCE)
    until(lambda: did.count("spare") == 5)
    assert "asked" in did
    worker.stop()
    worker.close()
    worker.join()
    assert did.count("spare") == 5


def test_spare_work_waits_while_it_is_held() -> None:
    worker, did = Worker("test"), []

    def spare() -> bool:
        did.append("begun")
        while len(did) == 1:
            worker.checkpoint()
        did.append("done")
        return False

    worker.when_idle(spare)
    until(lambda: did == ["begun"])
    worker.hold()
    worker.submit(lambda: did.append("asked")).result(PATIENCE)
    time.sleep(0.1)
    assert did == ["begun", "asked"]
    worker.go_on()
    until(lambda: did == ["begun", "asked", "begun", "done"])
    worker.close()
    worker.join()


def test_a_failure_belongs_to_who_waits() -> None:
    worker = Worker("test")
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 // 0).result(PATIENCE)  # type: ignore[func-returns-value]
    worker.submit(lambda: None).result(PATIENCE)
    worker.close()
    worker.join()


def test_what_is_asked_of_a_closed_worker_is_cancelled() -> None:
    worker = Worker("test")
    worker.close()
    assert worker.submit(lambda: None).cancelled()


# The session.


def test_a_session_starts_with_the_function_as_written(session: Session) -> None:
    state = session.state
    assert state.stage is Stage.IDLE
    assert state.profile is not None
    assert state.plan is not None
    assert not state.plan.changed
    assert state.limit == state.profile.peak_bytes == state.plan.peak_bytes
    assert state.profile.peak_bytes == memscope.profile(nearest, *the_call().args).peak_bytes


def test_the_frontier_comes_point_by_point(session: Session) -> None:
    counts: list[int] = []
    session.listen(lambda state: counts.append(len(state.points)))
    session.explore()
    until(lambda: session.state.explored)
    points = session.state.points
    assert sorted(set(counts)) == list(range(len(points) + 1))
    assert [point.limit for point in points] == [p.limit for p in memscope.frontier(nearest, *the_call().args)]
    assert session.state.floor_bytes == points[0].peak_bytes == points[0].limit


def test_a_limit_is_confirmed(session: Session) -> None:
    session.plan(300_000)
    assert session.state.plan is None
    assert session.state.stage is Stage.PLANNING
    state = settled(session)
    assert state.plan is not None
    assert state.plan.fits
    assert state.plan.peak_bytes <= state.limit == state.plan.limit_bytes == 300_000


def test_only_the_last_of_many_limits_is_planned(session: Session) -> None:
    planned: list[int] = []
    session.listen(lambda state: planned.append(state.plan.limit_bytes) if state.plan else None)
    for limit in range(290_000, 300_001, 1000):
        session.plan(limit)
    assert settled(session).plan is not None
    assert set(planned) <= {290_000, 300_000} | {limit for limit in planned if limit < 292_000}
    assert planned[-1] == 300_000


def test_a_limit_that_can_not_be_met_is_one_sentence(session: Session) -> None:
    session.plan(10_000)
    state = settled(session)
    assert state.plan is not None
    assert not state.plan.fits
    assert state.message is not None
    assert state.message.tone is Tone.ERROR
    assert "nearest can't run in 9.77 KiB: the lowest peak that memscope can reach is" in state.message.text
    assert "\n" not in state.message.text
    assert state.floor_bytes == state.plan.peak_bytes
    assert state.message.next_step == f"Raise the limit to {format_at_least(state.floor_bytes)} or more."


def test_another_way_is_compiled(session: Session) -> None:
    session.plan(300_000)
    until(lambda: session.state.alternatives is not None)
    state = settled(session)
    assert state.plan is not None
    assert state.alternatives is not None
    other = next(a for a in state.alternatives if a.loops != state.plan.loops and a.predicted_peak_bytes < 250_000)
    session.instead(other)
    until(lambda: session.state.alternatives is not None)
    state = settled(session)
    chosen = state.plan
    assert chosen is not None
    assert state.alternatives is not None
    assert chosen.loops == other.loops
    assert chosen.limit_bytes == 300_000
    shown = {row["marked"]: row["cells"][2] for row in alternative_rows(chosen, state.alternatives)}
    assert shown[True].startswith("\u2713")
    assert shown[False].startswith("about")
    assert shown[True].endswith(format_bytes(chosen.peak_bytes))
    args = the_call().args
    np.testing.assert_allclose(chosen.fn(*args)[0], nearest(*args)[0], rtol=1e-3)


def test_cancelling_frees_the_hands_at_once(session: Session) -> None:
    session.explore()
    until(lambda: session.state.stage is Stage.EXPLORING)
    start = time.monotonic()
    session.cancel()
    assert time.monotonic() - start < 1
    assert session.state.stage is Stage.IDLE
    assert session.state.message is not None
    assert session.state.message.text == "Cancelled."
    session.plan(300_000)
    plan = settled(session).plan
    assert plan is not None
    assert plan.fits


def test_a_check_says_what_it_did(session: Session) -> None:
    session.plan(300_000)
    settled(session)
    session.check()
    state = settled(session)
    assert state.checked is not None
    assert state.checked.check.ok
    assert state.checked.plan is state.plan
    assert "given arguments" in state.checked.check.how


def test_values_are_compared_on_less_where_the_original_does_not_fit(session: Session) -> None:
    session.plan(300_000)
    plan = settled(session).plan
    assert plan is not None
    narrow = dataclasses.replace(plan, target=memscope.Target("cpu", "cpu", 1_000_000))
    session._set(plan=narrow)
    session.check()
    state = settled(session)
    assert state.checked is not None
    assert state.checked.check.ok
    assert state.checked.check.max_abs_err is not None
    assert "on reduced arguments only; on the full ones ran the rewritten function alone" in state.checked.check.how


def test_export(session: Session, tmp_path: pathlib.Path) -> None:
    session.plan(300_000)
    settled(session)
    session.export(str(tmp_path / "small.py"))
    state = settled(session)
    assert state.message is not None
    assert state.message.tone is Tone.DONE
    assert state.message.next_step == ""
    assert "def nearest_safe(" in (tmp_path / "small.py").read_text()


def test_an_export_keeps_the_file_that_is_there(session: Session, tmp_path: pathlib.Path) -> None:
    (tmp_path / "small.py").write_text("mine")
    for written in ("small_2.py", "small_3.py"):
        session.export(str(tmp_path / "small.py"))
        state = settled(session)
        assert state.message is not None
        assert state.message.text == f"Written to {tmp_path / written}."
        assert "small.py was there already and is kept" in state.message.next_step
        assert "def nearest_safe(" in (tmp_path / written).read_text()
    assert (tmp_path / "small.py").read_text() == "mine"


def printing(q: jax.Array, x: jax.Array) -> Any:
    jax.debug.print("sum {}", q.sum())
    return nearest(q, x)


def test_a_print_can_not_be_exported_as_an_artifact(tmp_path: pathlib.Path) -> None:
    session = Session(Call(printing, the_call().args), Options())
    session.trace()
    session.wait(session.profile(), lambda line: None)
    session.export(str(tmp_path / "printing.jaxexport"))
    state = settled(session)
    session.close()
    assert state.message is not None
    assert state.message.text.startswith("printing can't be written as .jaxexport: it calls back into Python")
    assert state.message.text.endswith("Export it as .py, whose source keeps debug.print.")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"),
    [("small.txt", "end the name in .py or .jaxexport"), ("none/small.py", "there is no folder"), ("", "is a folder")],
)
def test_an_export_that_goes_wrong_is_one_sentence(session: Session, name: str, said: str) -> None:
    session.export(name)
    state = settled(session)
    assert state.message is not None
    assert state.message.tone is Tone.ERROR
    assert said in state.message.text
    assert state.message.next_step == "Choose another file."


def test_an_interrupt_ends_the_wait(session: Session) -> None:
    session.explore()
    until(lambda: session.state.stage is Stage.EXPLORING)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process that runs some of the tests has none
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            session.wait(Future(), lambda line: None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not session.state.busy


def test_what_the_function_raises_comes_out_of_the_trace() -> None:
    def broken(x: jax.Array) -> Any:
        return x if x[0] > 0 else -x

    session = Session(Call(broken, (jnp.ones(3),)), Options())
    with pytest.raises(jax.errors.TracerBoolConversionError):
        session.trace()
    assert not session.state.busy


def test_an_error_without_a_word_still_says_something() -> None:
    assert "ValueError" in error_message(ValueError()).text


# The panel.


class Opened:
    """A panel whose page is this test."""

    def __init__(self, session: Session) -> None:
        self.bound: dict[str, Any] = {}
        self.kept: list[tuple[State, bool]] = []
        self._posted: list[Callable[[], None]] = []
        self.panel = Panel(
            session,
            name="nearest_safe",
            bind=self.bound.__setitem__,
            here=lambda: self._posted.append,
            settled=lambda state, closed: self.kept.append((state, closed)),
        )
        self.session = session

    def settle(self) -> State:
        """Lets the session come to rest, and the panel catch up."""
        settled(self.session)
        while self._posted:
            self._posted.pop(0)()
        return self.session.state

    def say(self, view: str, **message: Any) -> None:
        """What the page would send."""
        getattr(self.panel, view)._handle_custom_msg(message, [])


@pytest.fixture
def opened(session: Session) -> Iterator[Opened]:
    made = Opened(session)
    yield made
    made.panel.close()


def test_the_header_follows_the_session(opened: Opened) -> None:
    data = opened.panel.bar.data
    peak = opened.session.state.profile.peak_bytes  # type: ignore[union-attr]
    assert (data["name"], data["today"], data["floor"]) == ("nearest", peak, None)
    facts = {"limit": peak, "peak": peak, "slowdown": 1.0, "fits": True, "bounded": False, "changed": False}
    assert data["confirmed"] == {**facts, "notes": data["confirmed"]["notes"]}
    opened.say("bar", type="limit", limit=300_000)
    opened._posted.pop(0)()
    assert opened.panel.bar.data["confirmed"] is None
    assert opened.panel.apply.disabled
    state = opened.settle()
    assert state.plan is not None
    assert opened.panel.bar.data["confirmed"]["peak"] == state.plan.peak_bytes
    assert not opened.panel.apply.disabled


def test_what_the_target_holds_is_marked_where_the_function_takes_more(session: Session) -> None:
    assert bar_data(session.state)["note"] == ""
    narrow = dataclasses.replace(session.state, target=memscope.Target("cpu", "cpu", 1 << 20))
    assert bar_data(narrow)["note"] == "\u2016 cpu holds 1.00 MiB"
    assert bar_data(narrow)["capacity"] == 1 << 20


def test_a_page_that_opens_has_the_frontier_made(opened: Opened) -> None:
    opened.say("bar", type="hello")
    until(lambda: opened.session.state.explored)
    opened.settle()
    points = opened.panel.bar.data["points"]
    assert [p["limit"] for p in points] == [p.limit for p in opened.session.state.points]


def test_a_limit_that_is_none_is_refused(opened: Opened) -> None:
    before = opened.session.state.limit
    opened.say("bar", type="typed", text="lots")
    opened.settle()
    assert "limit 'lots' is not a size" in opened.panel.status.data["news"]["text"]
    assert opened.session.state.limit == before
    opened.say("bar", type="typed", text="50%")
    assert opened.settle().limit == opened.session.state.profile.peak_bytes // 2  # type: ignore[union-attr]


def test_one_selection_everywhere(opened: Opened) -> None:
    profile = opened.session.state.profile
    assert profile is not None
    largest = profile.largest_at_peak
    assert largest is not None
    assert opened.panel.table.selected == largest.name
    other = next(b for b in profile.buffers if b.op == "top_k")
    opened.say("chart", type="select", side="before", id=other.name)
    assert opened.panel.table.selected == other.name
    assert opened.panel.chart.data["selected"] == ["before", other.name]
    source = opened.panel.source.data
    marked = dict(map(tuple, source["lines"]))[source["marked"]]
    assert "top_k" in marked
    assert "top_k" in source["facts"]


def test_the_rewritten_side(opened: Opened) -> None:
    opened.session.plan(300_000)
    plan = opened.settle().plan
    assert plan is not None
    assert opened.panel.chart.data["after"]["top"] == max(plan.profile.timeline)
    opened.say("table", type="side", side="after")
    assert opened.panel.table.data["side"] == "after"
    assert len(opened.panel.table.data["rows"]) == len([b for b in plan.profile.buffers if b.bytes])
    opened.session.plan(310_000)
    opened._posted.pop(0)()
    assert opened.panel.chart.data["after"]["title"] == "rewritten for 293 KiB"  # until the next one is there
    opened.settle()
    assert opened.panel.chart.data["after"]["title"] == "rewritten for 303 KiB"
    opened.session.plan(opened.session.state.profile.peak_bytes)  # type: ignore[union-attr]
    opened.settle()
    assert opened.panel.table.data["side"] == "before"
    assert opened.panel.chart.data["after"] is None


def test_apply_binds_what_was_confirmed(opened: Opened) -> None:
    opened.session.plan(300_000)
    plan = opened.settle().plan
    assert plan is not None
    opened.panel.apply.click()
    assert opened.bound == {"nearest_safe": plan.fn}
    kept, closed = opened.kept[-1]
    assert kept.plan is plan
    assert not closed
    opened.settle()
    assert opened.panel.status.data["bound"].startswith("nearest_safe is bound: 293 KiB at most")
    assert opened.panel.status.data["news"]["text"] == "Call nearest_safe as you call nearest."
    opened.session.plan(310_000)
    opened.settle()
    assert opened.panel.status.data["bound"].startswith("nearest_safe is bound: 293 KiB at most")


def test_a_click_that_comes_too_early_binds_nothing(opened: Opened) -> None:
    opened.say("bar", type="limit", limit=300_000)
    opened.panel.apply.click()
    assert opened.bound == {}
    assert opened.session.state.message is not None
    assert opened.session.state.message.text == "This limit is still being planned."
    plan = opened.settle().plan
    assert plan is not None
    opened.panel.apply.click()
    assert opened.bound == {"nearest_safe": plan.fn}


def test_closing_drops_everything() -> None:
    session = Session(the_call(), Options())
    session.trace()
    session.wait(session.profile(), lambda line: None)
    opened = Opened(session)
    session.plan(300_000)
    state = opened.settle()
    assert state.plan is not None
    held = [state.profile, state.plan, state.plan.compiled, state.plan.request, session._call.args[1]]  # type: ignore[union-attr]
    refs = [weakref.ref(thing) for thing in held]
    del held, state
    opened.panel.close()
    opened.kept.clear()
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    assert session.state.stage is Stage.CLOSED


def test_the_last_result_stays_with_its_limit(opened: Opened) -> None:
    opened.session.plan(300_000)
    opened.settle()
    assert "Nothing has run yet" in opened.panel._run.value
    opened.panel.check.click()
    opened.settle()
    assert "<h4>The version for 293 KiB</h4>" in opened.panel._run.value
    opened.session.plan(400_000)
    opened.settle()
    assert "The version for 293 KiB, not the one above" in opened.panel._run.value
    assert "The values agree." in opened.panel._run.value


# What the views are given.


def pairs(q: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum((q[:, None] - x[None]) ** 2, -1)


def test_a_bound_is_told_from_what_xla_reports() -> None:
    """Runs as plain jax.jit builds it, as the other build has to write out what that one fuses."""
    session = Session(Call(pairs, tuple(jax.ShapeDtypeStruct((n, 64), "float32") for n in (100, 300))), Options())
    session.trace()
    session.wait(session.profile(), lambda line: None)
    session.plan(20_000_000)
    state = settled(session)
    assert state.plan is not None
    assert state.profile is not None
    assert state.plan.build is Build.PLAIN
    assert not state.plan.changed
    (said,) = account_notes(state)
    assert said.startswith(f"{format_bytes(state.plan.peak_bytes)} is an upper bound for the build")
    assert f"XLA reports {format_bytes(state.profile.plain_peak_bytes or 0)} and leaves out scratch" in said
    assert f"{format_bytes(state.profile.peak_bytes)}, in the timeline, is exact" in said
    session.close()


def test_a_prediction_from_the_other_build_is_explained(session: Session) -> None:
    session.plan(300_000)
    state = settled(session)
    assert state.plan is not None
    assert not state.plan.bounded
    assert account_notes(state) == []
    near = memscope.Point(200_000, state.plan.peak_bytes // 2, 1.0, bounded=True)
    (said,) = account_notes(dataclasses.replace(state, predicted=near))
    assert said.startswith(f"Predicted were at most {format_bytes(near.peak_bytes)}, of a plan with")
    assert account_notes(dataclasses.replace(state, predicted=dataclasses.replace(near, bounded=False))) == []


def test_news_stay_while_something_goes_on(session: Session) -> None:
    news = Message("It can't run.", "Raise the limit.", Tone.ERROR)
    state = dataclasses.replace(session.state, stage=Stage.EXPLORING, line="planning for 1 MiB", message=news)
    shown = status_data(state)
    assert shown["news"] == {"text": "It can't run.", "next": "Raise the limit.", "tone": "error"}
    assert shown["progress"] == "planning for 1 MiB ..."
    assert status_data(dataclasses.replace(state, stage=Stage.IDLE))["progress"] == ""


def test_the_bands_of_the_chart_add_up_to_the_timeline(session: Session) -> None:
    profile = session.state.profile
    assert profile is not None
    steps = range(len(profile.timeline))
    shown = bands(profile, steps)
    assert [sum(band.values[k] for band in shown) for k in steps] == list(profile.timeline)
    assert shown[-1].buffers == ()
    assert max(shown[-1].values) < 0.1 * profile.peak_bytes
    side = chart_side(profile, "before", "as written")
    assert side["top"] == max(profile.timeline)
    assert side["steps"][side["peak"]] == profile.peak_step + 1


def test_many_small_buffers_of_one_line_share_a_band() -> None:
    def deep(w: jax.Array) -> jax.Array:
        x = w
        for _ in range(60):
            x = jnp.tanh(x @ w)
        return x.sum()

    profile = memscope.profile(jax.grad(deep), jax.ShapeDtypeStruct((100, 100), "float32"))
    shown = bands(profile, range(len(profile.timeline)))
    most = max(shown, key=lambda band: max(band.values))
    assert len(most.buffers) > 20
    assert {buffer.op for buffer in most.buffers} == {most.buffers[0].op}
    assert max(shown[-1].values) < 0.5 * profile.peak_bytes


def test_a_row_for_every_buffer(session: Session) -> None:
    profile = session.state.profile
    assert profile is not None
    table = rows(profile)
    values = next(row for row in table if row["cells"][1] == "float32[200,3]" and row["cells"][2] == "top_k")
    assert values["cells"][-1] == "reserved"  # a result: written after the peak
    assert note(table).startswith("reserved: ")
    assert note([row for row in table if row is not values and "reserved" not in row["cells"]]) == ""
    assert [row["keys"][0] for row in table] == [b.bytes for b in profile.buffers if b.bytes]
    assert {row["marked"] for row in table} == {True, False}


def test_source_lines_of_a_cell_come_from_its_cache() -> None:
    text = "import jax.numpy as jnp\n\ndef f(x):\n    return jnp.sin(x) + 1\n"
    linecache.cache["cell.py"] = len(text), None, text.splitlines(keepends=True), "cell.py"
    namespace: dict[str, Any] = {}
    exec(compile(text, "cell.py", "exec"), namespace)
    session = Session(Call(namespace["f"], (jnp.ones(4),)), Options())
    session.trace()
    found = excerpt("cell.py:4", files_of(session.program))
    assert found is not None
    assert dict(found.lines)[found.marked] == "    return jnp.sin(x) + 1"
    assert excerpt("elsewhere.py:4", files_of(session.program)) is None
    assert excerpt(None, {}) is None
