"""One call under the lens: profile, frontier, plans and checks, made in the background. No widgets here."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from memscope import Alternative, Check, LimitError, Plan
from memscope.call import Call
from memscope.check import original_fits
from memscope.compare import Row, on_target, row_of
from memscope.errors import ExportError, TargetError
from memscope.frontier import floor_plan, frontier_limits, point_of
from memscope.options import Options, writable_path
from memscope.plan import Request, limit_bytes
from memscope.program import Program
from memscope.reduced import reduced_arguments
from memscope.sizes import format_bytes
from memscope.target import Target, resolve

from .files import free_path, written_instead
from .rewrite import change_word
from .state import Bound, Checked, Message, Refused, Stage, State, Tone, cant_fit, error_message
from .worker import Stopped, Worker

NAP = 0.02
"""Seconds between two looks at the clock while a cell waits: how long a kernel interrupt may take."""

REDUCED_ROOM = 256 << 20
"""Bytes that the function as written may take on smaller arguments."""

Listener = Callable[[State], None]


class Session:
    """Owns the work on one call.

    Its methods return at once. Listeners get a new State for each thing that happens, on the thread on which it
    happens. `wait` is for a cell that needs the result before it ends.
    """

    def __init__(self, call: Call, options: Options) -> None:
        self._call: Call | None = call
        self._options = options
        self._request: Request | None = None
        self._traced: dict[str, Request] = {}
        self._floor: Plan | None = None
        self._exploring = False
        self._worker = Worker(f"memscope: {call.name}")
        self._listeners: list[Listener] = []
        self._changing = threading.RLock()
        self.state = State(name=call.name, target=resolve(options.target))

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    # What a cell does.

    def trace(self) -> None:
        """Traces the call, on this thread: it is the user's code, and its errors and prints belong to the cell."""
        assert self._call is not None
        self._set(stage=Stage.TRACING)
        try:
            self._request = self._call.request(self._options, self._progress)
        finally:
            self._set(stage=Stage.IDLE, line="")

    def profile(self) -> Future[None]:
        """Compiles the function as written."""
        return self._submit(Stage.COMPILING, self._profile)

    def plan_as_asked(self) -> Future[None]:
        """Plans for the limit of the options; raises LimitError where there is none."""
        return self._submit(Stage.PLANNING, lambda: self._plan(self._limit_asked()))

    def wait(self, future: Future[None], draw: Callable[[str], None]) -> None:
        """Naps until that is done, so that an interrupt comes through; raises what it raised."""
        shown = ""
        try:
            while not future.done():
                concurrent.futures.wait([future], timeout=NAP)
                if self.state.line != shown:
                    shown = self.state.line
                    draw(shown)
        except KeyboardInterrupt:
            self.cancel()
            raise
        future.result()

    # What a panel does.

    def explore(self) -> None:
        """Makes the plans of the frontier, one by one, while nothing else is asked for."""
        self._exploring = True
        self._use_spare_time()

    def plan(self, limit: int) -> None:
        """Plans for a limit; what was asked for before is given up."""
        kept = self.state.plan
        if kept is not None and limit == self.state.limit:
            return
        self._set(limit=limit, predicted=self.state.outlook(limit), message=None, **_NO_PLAN)
        self._submit(Stage.PLANNING, lambda: self._plan(limit))

    def limit_of(self, text: str) -> int:
        """Bytes of a limit as a person writes it; raises ValueError or TypeError."""
        return limit_bytes(text, self._needed().search)

    def instead(self, alternative: Alternative) -> None:
        """Compiles another axis or chunk for the same limit."""
        plan = self.state.plan
        assert plan is not None
        self._submit(Stage.PLANNING, lambda: self._instead(plan, alternative))

    def check(self) -> None:
        """Runs the rewritten function against the original."""
        self._set(message=None)
        self._submit(Stage.CHECKING, self._check)

    def export(self, path: str) -> None:
        """Writes the rewritten function to a file."""
        self._set(message=None)
        self._submit(Stage.EXPORTING, lambda: self._export(path))

    def compare(self, names: Sequence[str | Target]) -> None:
        """Finds out what these targets make of the function, after the one that it is opened for."""
        places = dict.fromkeys([self.state.target, *map(resolve, names)])
        self._set(places=tuple(places), message=None)
        self._submit(Stage.COMPARING, self._compare)

    def bound(self, name: str, plan: Plan) -> None:
        """Takes note that a name in the notebook stands for this plan's function now."""
        self._set(bound=Bound(name, plan.limit_bytes, plan.peak_bytes, plan.bounded))

    def hold(self) -> None:
        """Leaves the machine to the user's own cells: what can wait does, until `go_on`."""
        self._worker.hold()

    def go_on(self) -> None:
        """Does again what can wait."""
        self._worker.go_on()

    def say(self, message: Message) -> None:
        self._set(message=message)

    def cancel(self) -> None:
        """Gives up all that goes on. What XLA is compiling can't be stopped, but nobody waits for it."""
        with self._changing:
            if not self.state.busy:
                return
            self._worker.stop()
            self._exploring = False
            self._set(stage=Stage.IDLE, line="", message=Message("Cancelled.", _after_cancel(self.state)))

    def close(self) -> None:
        """Drops everything: arguments, profile, plans and what was compiled for them."""
        with self._changing:
            self._worker.close()
            self._call = self._request = self._floor = None
            self._traced.clear()
            self._publish(State(name=self.state.name, target=self.state.target, stage=Stage.CLOSED))
            self._listeners.clear()

    @property
    def program(self) -> Program:
        """The call as traced."""
        return self._needed().search.program

    @property
    def abstract(self) -> bool:
        """True where there are shapes only, so that nothing can be run."""
        return self._call is not None and self._call.abstract

    # Jobs, on the worker's thread.

    def _profile(self) -> None:
        request = self._needed()
        profile = request.profile
        self._set(profile=profile, limit=profile.peak_bytes)
        as_written = request.plan(profile.peak_bytes, best_effort=True)  # compiled already
        self._set(**_plan_changes(as_written))

    def _plan(self, limit: int) -> None:
        request = self._needed()
        try:
            plan = request.plan(limit, best_effort=False)
        except LimitError as error:
            lowest = request.plan(limit, best_effort=True)
            self._keep_floor(request)
            self._set(limit=limit, message=cant_fit(error, self.state), **_plan_changes(lowest))
            self._use_spare_time()
            raise
        self._set(limit=limit, **_plan_changes(plan))
        self._use_spare_time()

    def _instead(self, plan: Plan, alternative: Alternative) -> None:
        chosen = plan.instead(alternative)
        message = None
        if not chosen.fits:
            peak, limit = format_bytes(chosen.peak_bytes), format_bytes(chosen.limit_bytes)
            room = self.state.target.capacity_bytes
            message = Message(
                f"That way takes {peak} by XLA's account, more than the limit of {limit}.",
                "Choose a smaller chunk" + (", or raise the limit." if chosen.peak_bytes <= room else "."),
                Tone.ERROR,
            )
        self._set(message=message, **_plan_changes(chosen))
        self._use_spare_time()

    def _check(self) -> None:
        call, plan = self._call, self.state.plan
        assert call is not None
        assert plan is not None
        self._set(checked=Checked(_compared(plan, call), plan))

    def _export(self, text: str) -> None:
        plan = self.state.plan
        assert plan is not None
        try:
            wanted = writable_path(text, "The file")
            path = plan.save(free_path(wanted))
        except (ValueError, OSError) as error:
            next_step = "" if isinstance(error, ExportError) else "Choose another file."
            self._set(message=error_message(error, next_step))
            return
        kept = "" if path == wanted else f"{wanted} was there already and is kept."
        said = " ".join(filter(None, [kept, written_instead(plan, path)]))
        self._set(message=Message(f"Written to {path}.", said, Tone.DONE))

    def _compare(self) -> None:
        places = self.state.places
        for number, place in enumerate(places, 1):
            if place.name not in self.state.compared:
                row = self._row(place, f"{place.name}, {number} of {len(places)}")
                self._set(compared={**self.state.compared, place.name: row})

    def _row(self, place: Target, doing: str) -> Row | Refused:
        self._set(line=f"comparing: {doing}")
        try:
            return row_of(self._request_on(place, lambda line: self._progress(f"{doing}: {line}")))
        except TargetError as error:
            return Refused(place, str(error).partition("\n")[0])

    def _request_on(self, place: Target, progress: Callable[[str], None]) -> Request:
        """The call on another target; a platform has it traced once."""
        own = self._needed()
        if place.platform == own.search.target.platform:
            return on_target(own, place, progress)
        if place.platform not in self._traced:
            assert self._call is not None
            there = dataclasses.replace(self._options, target=place.name)
            self._traced[place.platform] = self._call.request(there, progress)
        return on_target(self._traced[place.platform], place, progress)

    # What can wait, on the worker's thread.

    def _use_spare_time(self) -> None:
        if self.state.stage is not Stage.CLOSED:
            self._worker.when_idle(self._in_spare_time)

    def _in_spare_time(self) -> bool:
        """Does one thing that can wait; whether there is more of the kind."""
        plan = self.state.plan
        try:
            if plan is not None and self.state.source is None:
                self._offer(plan)
            elif self._exploring and not self.state.explored:
                self._add_point(self._needed())
        except Exception as error:
            self._set(stage=Stage.IDLE, line="", explored=True, source="", message=error_message(error))
            return False
        more = self._exploring and not self.state.explored
        if not more:
            self._set(stage=Stage.IDLE, line="")
        return more

    def _offer(self, plan: Plan) -> None:
        """Writes the source, and looks for other axes and chunks; the plan itself need not wait for that."""
        self._set(stage=Stage.EXPLORING, line="looking at other axes and chunks")
        self._set(alternatives=plan.alternatives())
        try:
            source = plan.source()
        except (NotImplementedError, ValueError) as error:  # a callback, or too many constants: no reason to stop here
            source = f"# {error}"
        self._set(source=source)

    def _add_point(self, request: Request) -> None:
        """Makes one more plan of the frontier."""
        if self._floor is None:
            self._set(stage=Stage.EXPLORING, line="looking for the lowest peak that can be reached")
            self._keep_floor(request)
        left = self._limits_left()
        if left:
            self._set(stage=Stage.EXPLORING, line=f"planning for {format_bytes(left[0])}")
            made = request.plan(left[0], best_effort=True)
            self._set(points=(*self.state.points, point_of(made)))
        self._set(explored=len(left) <= 1)

    def _keep_floor(self, request: Request) -> None:
        if self._floor is None:
            self._floor = floor_plan(request)
            self._set(points=(point_of(self._floor),))

    def _limits_left(self) -> tuple[int, ...]:
        assert self._floor is not None
        known = self.state.points[-1].limit
        return tuple(limit for limit in frontier_limits(self._floor) if limit > known)

    # Around the jobs.

    def _submit(self, stage: Stage, work: Callable[[], None]) -> Future[None]:
        with self._changing:
            future = self._worker.submit(lambda: self._guarded(work))
            waiting = "waiting for XLA to end a compile that can't be stopped" if self._worker.winding_up else ""
            self._set(stage=stage, line=waiting)
        return future

    def _guarded(self, work: Callable[[], None]) -> None:
        """Runs a job; what it raises is told in the panel, and to whoever waits."""
        try:
            work()
        except LimitError:  # told already, with the plan that comes nearest
            self._set(stage=Stage.IDLE, line="")
            raise
        except Exception as error:
            self._set(stage=Stage.IDLE, line="", message=error_message(error))
            raise
        self._set(stage=Stage.IDLE, line="")

    def _progress(self, line: str) -> None:
        self._checkpoint()
        self._set(line=line)

    def _checkpoint(self) -> None:
        self._worker.checkpoint()

    def _limit_asked(self) -> int:
        return limit_bytes(self._options.limit, self._needed().search)

    def _needed(self) -> Request:
        if self._request is None:
            raise Stopped
        return self._request

    def _set(self, **changes: Any) -> None:
        """Publishes a change; a job that has been given up has nothing more to say."""
        with self._changing:
            self._checkpoint()
            if self.state.stage is not Stage.CLOSED:
                self._publish(dataclasses.replace(self.state, **changes))

    def _publish(self, state: State) -> None:
        self.state = state
        for listener in tuple(self._listeners):
            listener(state)


_NO_PLAN: dict[str, Any] = {"plan": None, "source": None, "alternatives": None}


def _plan_changes(plan: Plan) -> dict[str, Any]:
    """What a new plan changes in the state; its profile is made here, so that no view has to wait for it."""
    changes = {**_NO_PLAN, "plan": plan, "rewritten": None, "rewritten_limit": 0, "source": ""}
    if plan.changed:
        limit = plan.limit_bytes if plan.fits else 0
        changes |= {"rewritten": plan.profile, "rewritten_limit": limit, "change": change_word(plan), "source": None}
    return changes


def _compared(plan: Plan, call: Call) -> Check:
    """A check that compares values: on smaller arguments where the function as written does not fit."""
    room = min(REDUCED_ROOM, plan.target.capacity_bytes // 4)
    reduced = None if original_fits(plan) else reduced_arguments(plan, call.args, room)
    if reduced is not None:
        try:
            return plan.check(*call.args, reduced=reduced, **call.kwargs)
        except Exception:  # the function need not take them: then the rewritten one is run alone, and the check says so
            pass
    return plan.check(*call.args, **call.kwargs)


def _after_cancel(state: State) -> str:
    return "Choose a limit to plan for it." if state.profile is not None else "Run the cell again to start anew."
