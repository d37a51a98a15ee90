"""From a call in a cell to a panel under it: what happens while the cell runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from IPython.core.interactiveshell import InteractiveShell
from tornado.ioloop import IOLoop

from memscope import LimitError
from memscope.call import Call
from memscope.errors import ExportError
from memscope.options import Options

from .display import Report
from .panel import Panel
from .session import Session
from .state import State


class Place(NamedTuple):
    """What opened a panel: the front end's name of the cell, the same each time that it runs, one run of it, and which
    panel of that run."""

    cell: str
    run: str
    number: int


open_panels: dict[Place, Panel] = {}
"""The panels of each cell: running the cell again closes them."""


def open_panel(shell: InteractiveShell, call: Call, options: Options) -> Any:
    """Compiles the call, plans where a limit is asked for, and shows the panel; the rest goes on after the cell.

    Raises:
      LimitError, ExportError: after the panel is shown.
      Whatever the user's function raises while it is traced.
    """
    place = _place(shell)
    name = options.name or f"{call.name}_safe"
    report = Report(call, options)
    session = Session(call, options)
    session.hold()  # this cell and those that run after it come first
    try:
        session.trace()
        session.wait(session.profile(), report.progress)
        refused = _take_at_once(shell, session, report, options, name)
        _show(shell, session, report, name, place)
    except BaseException:
        session.close()
        raise
    if refused is not None:
        raise refused
    if options.run and session.state.plan is not None:
        return session.state.plan.fn(*call.args, **call.kwargs)
    return None


def _take_at_once(
    shell: InteractiveShell, session: Session, report: Report, options: Options, name: str
) -> LimitError | ExportError | None:
    """Plans, binds and exports where that was asked for; what the cell is to end with where that can't be done."""
    state = session.state
    assert state.profile is not None
    if not options.rewrites and state.profile.peak_bytes <= state.target.capacity_bytes:
        return None
    try:
        session.wait(session.plan_as_asked(), report.progress)
    except LimitError as error:
        return _short(str(error).partition(" (")[0])
    plan = session.state.plan
    assert plan is not None
    shell.push({name: plan.fn})
    session.bound(name, plan)
    if options.export is not None:
        try:
            plan.save(options.export)
        except ExportError as error:
            return error
    return None


def _show(shell: InteractiveShell, session: Session, report: Report, name: str, place: Place) -> None:
    end_giving_way = _give_way(shell, session)

    def settled(state: State, closed: bool) -> None:
        if closed:
            open_panels.pop(place, None)
            end_giving_way()
        if state.profile is None:
            return
        note = _note(state, name, shell.user_ns.get(name))
        if closed:
            report.show_static(state.profile, state.plan, note)
        else:
            report.show_behind(state.profile, state.plan, note, panel.model_id)

    panel = Panel(
        session,
        name=name,
        bind=lambda name, value: shell.push({name: value}),
        here=lambda: IOLoop.current().add_callback,
        settled=settled,
    )
    open_panels[place] = panel
    state = session.state
    assert state.profile is not None
    report.show_panel(state.profile, state.plan, _note(state, name, shell.user_ns.get(name)), panel.model_id)


def _give_way(shell: InteractiveShell, session: Session) -> Callable[[], None]:
    """Has what a session does in its spare time wait while cells run; gives back what ends that."""

    def before(info: Any) -> None:
        session.hold()

    def after(result: Any) -> None:
        session.go_on()

    shell.events.register("pre_run_cell", before)
    shell.events.register("post_run_cell", after)

    def end() -> None:
        shell.events.unregister("pre_run_cell", before)
        shell.events.unregister("post_run_cell", after)

    return end


def _note(state: State, name: str, bound: Any) -> str:
    """What there is to say under the report that stands for the panel."""
    if state.plan is not None and not state.plan.fits and state.message is not None:
        return f"{state.message.text} {state.message.next_step}"
    if state.plan is not None and bound is state.plan.fn:
        return f"{name} is the version that fits."
    return "With --limit SIZE: a version that fits it."


def _place(shell: InteractiveShell) -> Place:
    """Where the next panel goes; closes those of the cell's earlier runs."""
    parent: dict[str, Any] = shell.get_parent()  # type: ignore[attr-defined]
    run = str(parent.get("header", {}).get("msg_id", ""))
    cell = str(parent.get("metadata", {}).get("cellId") or run)
    of_cell = [(place, panel) for place, panel in open_panels.items() if place.cell == cell]
    for place, panel in of_cell:
        if place.run != run:
            panel.close()
    return Place(cell, run, 1 + max((place.number for place, _ in of_cell if place.run == run), default=0))


def _short(refused: str) -> LimitError:
    """What the cell ends with: nothing is bound, so it has failed, but the panel says it all."""
    error = LimitError(f"{refused}. Nothing is bound; the panel says what is in the way.", 0, ())
    error._render_traceback_ = lambda: [str(error)]  # type: ignore[attr-defined]
    return error
