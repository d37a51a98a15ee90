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
from memscope.options import Options
from memscope_jupyter.buffers import rows
from memscope_jupyter.panel import Panel
from memscope_jupyter.session import Session
from memscope_jupyter.source import excerpt, files_of
from memscope_jupyter.state import Message, Stage, State, Tone, error_message
from memscope_jupyter.status import status_html
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
    assert state.message.next_step.startswith("Raise the limit to the floor")
    assert state.floor_bytes == state.plan.peak_bytes


def test_another_way_is_compiled(session: Session) -> None:
    session.plan(300_000)
    until(lambda: session.state.alternatives is not None)
    state = settled(session)
    assert state.plan is not None
    assert state.alternatives is not None
    other = next(a for a in state.alternatives if a.loops != state.plan.loops and a.predicted_peak_bytes < 250_000)
    session.instead(other)
    chosen = settled(session).plan
    assert chosen is not None
    assert chosen.loops == other.loops
    assert chosen.limit_bytes == 300_000
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
    check = settled(session).check
    assert check is not None
    assert check.ok
    assert "given arguments" in check.how


def test_export(session: Session, tmp_path: pathlib.Path) -> None:
    session.plan(300_000)
    settled(session)
    session.export(str(tmp_path / "small.py"))
    state = settled(session)
    assert state.message is not None
    assert state.message.tone is Tone.DONE
    assert "def nearest_safe(" in (tmp_path / "small.py").read_text()


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
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        session.wait(Future(), lambda line: None)
    assert not session.state.busy


def test_what_the_function_raises_comes_out_of_the_trace() -> None:
    def broken(x: jax.Array) -> Any:
        return x if x[0] > 0 else -x

    session = Session(Call(broken, (jnp.ones(3),)), Options())
    with pytest.raises(jax.errors.TracerBoolConversionError):
        session.trace()


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
            post=self._posted.append,
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
    assert data["confirmed"] == {"limit": peak, "peak": peak, "slowdown": 1.0, "fits": True, "bounded": False}
    opened.say("bar", type="limit", limit=300_000)
    opened._posted.pop(0)()
    assert opened.panel.bar.data["confirmed"] is None
    assert opened.panel.apply.disabled
    state = opened.settle()
    assert state.plan is not None
    assert opened.panel.bar.data["confirmed"]["peak"] == state.plan.peak_bytes
    assert not opened.panel.apply.disabled


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
    assert "limit &#x27;lots&#x27; is not a size" in opened.panel._status.value
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
    assert "nearest_safe is bound" in opened.panel._status.value


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


# What the views are given.


def test_news_stay_while_something_goes_on(session: Session) -> None:
    news = Message("It can't run.", "Raise the limit.", Tone.ERROR)
    state = dataclasses.replace(session.state, stage=Stage.EXPLORING, line="planning for 1 MiB", message=news)
    shown = status_html(state)
    assert "It can&#x27;t run.</span> Raise the limit." in shown
    assert "planning for 1 MiB ..." in shown
    assert "planning" not in status_html(dataclasses.replace(state, stage=Stage.IDLE))


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
