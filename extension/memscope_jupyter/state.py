"""What a panel shows, as immutable snapshots: made by the session, read by the views."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from memscope import Alternative, Buffer, Check, Plan, Point, Profile, Target
from memscope.compare import Row
from memscope.errors import LimitError
from memscope.report.plan import no_limit_helps, room_elsewhere
from memscope.sizes import format_at_least, format_bytes
from memscope.target import roomier


class Stage(enum.Enum):
    """What goes on."""

    TRACING = "tracing"
    COMPILING = "compiling"
    EXPLORING = "exploring"
    PLANNING = "planning"
    CHECKING = "checking"
    EXPORTING = "exporting"
    COMPARING = "comparing"
    IDLE = "idle"
    CLOSED = "closed"


class Tone(enum.Enum):
    """What kind of news a message is."""

    DONE = "done"
    NOTE = "note"
    ERROR = "error"


@dataclasses.dataclass(frozen=True)
class Message:
    """One sentence, and what to do next where there is something."""

    text: str
    next_step: str = ""
    tone: Tone = Tone.NOTE


@dataclasses.dataclass(frozen=True)
class Bound:
    """What a name in the notebook stands for since it was last bound.

    Attributes:
      name: in the notebook.
      limit_bytes, peak_bytes: of the plan whose function it is.
      bounded: the peak is an upper bound.
    """

    name: str
    limit_bytes: int
    peak_bytes: int
    bounded: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Checked:
    """A check, and the plan that it was a check of."""

    check: Check
    plan: Plan


@dataclasses.dataclass(frozen=True)
class Refused:
    """A target that the function can't be compiled for, and why, in one sentence."""

    target: Target
    why: str


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """One moment of a session.

    Attributes:
      name, target: the function, and where it will run.
      stage, line: what goes on, and the latest line on its progress.
      profile: the function as written; None until it is compiled.
      points: the frontier so far, by rising limit; the first is the floor.
      explored: there are no more points to come.
      limit: the limit asked for, in bytes; None until there is a profile.
      predicted: the point of the frontier that `limit` was judged by before it was planned for.
      plan: confirmed by XLA for `limit`; None while that is only predicted.
      rewritten, rewritten_limit, change: the profile of the latest plan, its limit, and a word for what it did, also
        while the next one is made; None where nothing was rewritten, and 0 where it does not fit.
      source, alternatives: the plan's Python source, and other axes and chunks; None until there was time for them.
      checked: the latest check, also while another plan is shown.
      bound: what was bound last, also while another plan is shown.
      places: the targets that a comparison was asked for, in the order of the table.
      compared: what is known of them so far, by name.
      message: the latest news.
    """

    name: str
    target: Target
    stage: Stage = Stage.IDLE
    line: str = ""
    profile: Profile | None = None
    points: tuple[Point, ...] = ()
    explored: bool = False
    limit: int | None = None
    predicted: Point | None = None
    plan: Plan | None = None
    rewritten: Profile | None = None
    rewritten_limit: int = 0
    change: str = "rewritten"
    source: str | None = None
    alternatives: tuple[Alternative, ...] | None = None
    checked: Checked | None = None
    bound: Bound | None = None
    places: tuple[Target, ...] = ()
    compared: Mapping[str, Row | Refused] = dataclasses.field(default_factory=dict)
    message: Message | None = None

    @property
    def busy(self) -> bool:
        return self.stage not in (Stage.IDLE, Stage.CLOSED)

    @property
    def floor_bytes(self) -> int | None:
        """The lowest peak that can be reached, where that is known."""
        return self.points[0].peak_bytes if self.points else None

    def outlook(self, limit: int) -> Point | None:
        """What a limit is predicted to come to: the nearest plan under it, where there is one."""
        return next((point for point in reversed(self.points) if point.limit <= limit), None)


def error_message(error: BaseException, otherwise: str = "Choose another limit, or run the cell again.") -> Message:
    """An error as one sentence and a next step: its own, or what to do `otherwise`."""
    sentence, _, rest = str(error).strip().partition("\n")
    if not sentence:
        sentence = f"{type(error).__name__} was raised without a word."
    next_step = rest.strip().partition("\n")[0] or otherwise
    return Message(sentence, next_step, Tone.ERROR)


def held_by(blockers: Sequence[tuple[Buffer, str]]) -> str:
    """What keeps a lowest peak up, as the end of a sentence; "" where nothing is known to."""
    if not blockers:
        return ""
    buffer, reason = blockers[0]
    at = f" at {buffer.source}" if buffer.source else ""
    what = f"argument {buffer.name}" if buffer.kind == "argument" else buffer.op
    return f", where {format_bytes(buffer.bytes)} of {what}{at} stay: {reason}"


def cant_fit(error: LimitError, state: State) -> Message:
    """Why a limit can't be met, and what can be done about it on this target."""
    first = str(error).partition(" (")[0]
    return Message(f"{first}{held_by(error.blockers)}.", _way_out(error.floor_bytes, state), Tone.ERROR)


def _way_out(floor: int, state: State) -> str:
    if floor <= state.target.capacity_bytes:
        return f"Raise the limit to {format_at_least(floor)} or more."
    helpless = no_limit_helps(state.target)
    fitting = [name for name, row in state.compared.items() if isinstance(row, Row) and row.fits_rewritten]
    if fitting:
        elsewhere = f"it fits on {', '.join(fitting)}, as the tab Targets says"
    else:
        elsewhere = room_elsewhere(state.target, floor)
        elsewhere += "; the tab Targets finds out what it takes there" if roomier(state.target, floor) else ""
    return f"{helpless[:1].upper()}{helpless[1:]}: {elsewhere}."
