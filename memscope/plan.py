"""The plan: what is streamed so that the function fits, confirmed by XLA, and the function that does it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.extend import core as jex_core

from ._jax_private import api_boundary
from .algebra import Simplification
from .arguments import static_values
from .check import Check, check_plan
from .compile import Build, Compiled, prepare
from .errors import LimitError, TargetError
from .inside import Moved
from .loop import Loop, described_loops
from .planned import PlannedFunction, Signature, dynamic_only
from .profile import Profile, profile_compiled, without_profile
from .program import Program
from .reasons import blockers
from .recompute import Recomputed
from .report.plan import limit_error_text, plan_fragment, plan_page, plan_text
from .save import save_plan, source_of
from .search import Candidate, Found, Rearranged, Search
from .sizes import check_limit, parse_limit
from .target import Target, resolve
from .trace import check_keywords, trace

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Alternative:
    """Another axis or chunk than a plan's own. What it would take is an estimate until `Plan.instead` compiles it.

    Attributes:
      loops: as in `Plan.loops`.
      predicted_peak_bytes: of the whole call.
      predicted_slowdown: time over that of the function as written.
      compiled: XLA's account, where this has been compiled already.
    """

    loops: tuple[Loop, ...]
    predicted_peak_bytes: int
    predicted_slowdown: float
    candidate: Candidate = dataclasses.field(repr=False)
    compiled: Compiled | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A function that fits a limit, and why.

    Attributes:
      limit_bytes: the limit, for the whole call: arguments + outputs + temporaries.
      fits: the peak that XLA accounts for is within it.
      peak_bytes, original_peak_bytes: XLA's, of what `fn` runs and of the function as written
        (its reference build); where XLA does not compile that, the latter is an estimate.
      refused: why XLA does not compile the function as written; None where it does.
      build: how `fn` is compiled; its peak is accounted for under that build.
      slowdown: predicted time of `fn` over that of the function as written: an estimate.
      extra_work: arithmetic of `fn` over that of the function as written, counted from the jaxprs.
      loops: empty where nothing was rewritten.
      moved: arrays that the function's own loops only read, and now make inside for themselves.
      simplified: arrays that are not made any more, as a cheaper primitive gives the same results.
      rearranged: arrays that are computed at another point than as written, so that loops need not run twice: sums
        scaled at the end in place of each of their terms, single rows computed by themselves.
      recomputed: arrays that are dropped after their early readers and made again for their late ones.
      scheduled_by: whose order its HLO instructions run in; None for XLA's default. An executable has such an order,
        source and `jax.export` do not: `save` writes a version that does without.
      stretches: in how many stretches, one after another, its eqns are kept; 1 where XLA orders them all.
      fn: the rewritten function, jitted; same pytrees in and out. Planned for a GPU that is not here it can be traced
        and exported, and raises TargetError where it is called.
    """

    program: Program
    target: Target
    limit_bytes: int
    fits: bool
    peak_bytes: int
    original_peak_bytes: int
    build: Build
    slowdown: float
    extra_work: float
    loops: tuple[Loop, ...]
    moved: tuple[Moved, ...]
    simplified: tuple[Simplification, ...]
    rearranged: tuple[Rearranged, ...]
    recomputed: tuple[Recomputed, ...]
    stretches: int
    scheduled_by: str | None
    fn: Callable[..., Any]
    rewritten: jex_core.ClosedJaxpr
    original: Callable[..., Any]
    original_temp_bytes: int
    refused: str | None
    compiled: Compiled = dataclasses.field(repr=False)
    request: Request = dataclasses.field(repr=False)

    @property
    def changed(self) -> bool:
        """Whether anything was rewritten."""
        return self._computes_otherwise or self.reordered

    @property
    def reordered(self) -> bool:
        """Whether the order of its instructions is all that was changed."""
        return not self._computes_otherwise and (self.stretches > 1 or self.scheduled_by is not None)

    @property
    def _computes_otherwise(self) -> bool:
        return bool(self.loops or self.moved or self.simplified or self.rearranged or self.recomputed)

    @property
    def bounded(self) -> bool:
        """True where XLA leaves scratch of this build out of its account, so that the peak is an upper bound."""
        return self.compiled.hidden_bytes > 0

    @property
    def temp_bytes(self) -> int:
        """Temporaries of the rewritten function."""
        return self.compiled.temp_bytes + self.compiled.hidden_bytes

    @functools.cached_property
    def profile(self) -> Profile:
        """Where the memory of the rewritten function goes."""
        return profile_compiled(self.program, self.compiled, target=self.target)

    def explain(self) -> str:
        """What is streamed, why, and what it costs, as text."""
        return plan_text(self)

    def source(self) -> str:
        """Standalone Python source that needs jax only and defines `<name>_safe`."""
        return source_of(self)

    def save(self, path: str | Path) -> Path:
        """Writes Python source (`.py`) or a `jax.export` artifact (`.jaxexport`); the path written.

        Raises:
          ExportError: that format can't hold the function, which calls back into Python, say; a ValueError.
          ValueError: another ending.
        """
        return save_plan(self, Path(path))

    @functools.cached_property
    def portable(self) -> Plan:
        """A plan for the same limit that can be taken along as source: this one, where its order is XLA's own."""
        return self if self.scheduled_by is None else self.request.plan(self.limit_bytes, True, portable=True)

    @property
    def executable(self) -> Callable[..., Any] | None:
        """What `fn` runs where `rewritten` is not all of it: the instructions in their order."""
        return None if self.scheduled_by is None else self.compiled.call

    def check(self, *args: Any, reduced: Sequence[Any] | None = None, **kwargs: Any) -> Check:
        """Runs `fn` against the function as written: values, measured peak, seconds.

        Args:
          args, kwargs: the arguments to run on.
          reduced: smaller arguments to compare values on, where the original does not fit.
        """
        given, named = self.request.signature.dynamic(args, kwargs)
        return check_plan(self, given, named, reduced)

    def alternatives(self) -> tuple[Alternative, ...]:
        """Other axes and chunks that work as well; empty where nothing had to be rewritten."""
        return self.request.alternatives(self.limit_bytes) if self.changed else ()

    def instead(self, alternative: Alternative) -> Plan:
        """The plan that one of `alternatives` leads to, confirmed by XLA; it need not fit the limit."""
        return self.request.confirmed(alternative, self.limit_bytes)

    def for_arguments(self, *args: Any, **kwargs: Any) -> Plan:
        """The same kind of plan for other arguments: the same share of the temporaries."""
        share = max(0.02, self.compiled.temp_bytes / max(1, self.original_temp_bytes))
        return self.request.again(args, kwargs, min(0.5, share))

    def to_html(self) -> str:
        """A page of its own: no scripts and nothing to load."""
        return plan_page(self)

    def _repr_html_(self) -> str:
        return plan_fragment(self)

    def __str__(self) -> str:
        return plan_text(self)

    __repr__ = __str__


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """A function with its arguments, traced, and the search over it."""

    fn: Callable[..., Any]
    search: Search
    signature: Signature
    options: Mapping[str, Any]

    @functools.cached_property
    def profile(self) -> Profile:
        """Where the memory of the function as written goes.

        Raises:
          RefusedError: XLA does not compile it.
        """
        if self.search.original.refused is not None:
            raise without_profile(self.search.original.refused)
        builds = self.search.builds
        return profile_compiled(
            self.search.program, self.search.original, plain=builds[Build.PLAIN], target=self.search.target
        )

    def alternatives(self, limit_bytes: int) -> tuple[Alternative, ...]:
        """What the search for a limit looked at: the axes that it ranks first, in every size of chunk but the whole."""
        made = (self._alternative(c, peak, limit_bytes) for c, peak in self.search.choices(limit_bytes))
        return tuple(a for a in made if any(loop.trips > 1 for loop in a.loops))

    def _alternative(self, candidate: Candidate, predicted_peak: int, limit_bytes: int) -> Alternative:
        before = self.search.original_estimate.seconds
        slowdown = candidate.estimate.seconds / before if before else 1.0
        known = self.search.known(candidate, limit_bytes)
        return Alternative(
            described_loops(candidate), predicted_peak, slowdown, candidate, None if known is None else known.compiled
        )

    def confirmed(self, alternative: Alternative, limit_bytes: int) -> Plan:
        """The plan of an alternative, compiled."""
        found = self.search.confirm_fastest(alternative.candidate, limit_bytes)
        return self._plan(found, limit_bytes, found.peak_bytes <= limit_bytes)

    def plan(self, limit_bytes: int, best_effort: bool, portable: bool = False) -> Plan:
        found, fits = self.search.run(limit_bytes, portable)
        if found.compiled.refused is not None:
            raise TargetError(
                f"{found.compiled.refused}. No other version that it compiles was found: make the arguments smaller, "
                "or write the function for a part of them at a time."
            )
        made = self._plan(found, limit_bytes, fits)
        if not fits and not best_effort:
            raise _limit_error(made, self.search)
        return made

    def again(self, args: Sequence[Any], kwargs: Mapping[str, Any], share: float) -> Plan:
        """A plan for other arguments, at `share` of their temporaries."""
        request = request_plan(self.fn, args, kwargs, target=self.search.target, progress=None, **self.options)
        original = request.search.original
        limit = original.peak_bytes - original.temp_bytes + int(share * original.temp_bytes)
        return request.plan(limit, best_effort=True)

    def _plan(self, found: Found, limit_bytes: int, fits: bool) -> Plan:
        search, program = self.search, found.program
        candidate = found.candidate
        rewritten = program.closed if candidate is None else candidate.closed
        original = dynamic_only(self.fn, self.signature.static)
        scheduled_by = None if candidate is None else candidate.scheduled_by
        before = search.original_estimate
        after = before if candidate is None else candidate.estimate
        return Plan(
            program=program,
            target=search.target,
            limit_bytes=limit_bytes,
            fits=fits,
            peak_bytes=found.peak_bytes,
            original_peak_bytes=search.original.peak_bytes,
            build=found.compiled.build,
            slowdown=after.seconds / before.seconds if before.seconds else 1.0,
            extra_work=after.work / before.work if before.work else 1.0,
            loops=() if candidate is None else described_loops(candidate),
            moved=() if candidate is None else candidate.moved,
            simplified=() if candidate is None else candidate.simplified,
            rearranged=() if candidate is None else candidate.rearranged,
            recomputed=() if candidate is None else candidate.recomputed,
            stretches=len(candidate.order.stretches) if candidate and candidate.order else 1,
            scheduled_by=scheduled_by,
            fn=PlannedFunction(
                self.signature,
                rewritten,
                found.compiled.build,
                original,
                search.target,
                compiled=found.compiled.call if scheduled_by else None,
            ),
            rewritten=rewritten,
            original=original,
            original_temp_bytes=search.original.temp_bytes,
            refused=None if search.original.refused is None else str(search.original.refused),
            compiled=found.compiled,
            request=self,
        )


@api_boundary
def plan(
    fn: Callable[..., Any],
    *args: Any,
    limit: int | float | str | None = None,
    target: str | Target | None = None,
    best_effort: bool = False,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    progress: Progress | None = None,
    **kwargs: Any,
) -> Plan:
    """Rewrites `fn` so that `fn(*args, **kwargs)` fits a limit. Nothing runs.

    Args:
      fn: a function that `jax.jit` would take.
      args, kwargs: its arguments; `jax.ShapeDtypeStruct` may stand for any array.
      limit: bytes of the whole call (arguments + outputs + temporaries): an int, "512MiB", "2GB",
        or "25%" of the original peak. None is what the target can hold.
      target: where it is to run: one of `memscope.targets()`, or a Target; None is where JAX runs by default.
      best_effort: where the limit can't be met, return the lowest plan (`fits` is False).
      static_argnums, static_argnames, donate_argnums: as in `jax.jit`.
      progress: called with one line of text for each thing the planning does.

    Raises:
      LimitError: the limit can't be met; it names the lowest peak and what holds it there.
      ValueError, TypeError: the limit is no size, or the arguments are not what `jax.jit` takes.
      TargetError: there is no such target, or XLA compiles nothing that was found for it.
      Whatever `fn` raises while it is traced.

    Example:
      >>> safe = memscope.plan(nearest, q, x, limit="512MiB")
      >>> distances, indices = safe.fn(q, x)
    """
    check_keywords(fn, target)
    return plan_call(
        fn, args, kwargs, limit=limit, target=target, best_effort=best_effort, progress=progress,
        static_argnums=static_argnums, static_argnames=static_argnames, donate_argnums=donate_argnums,
    )  # fmt: skip


def plan_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    limit: int | float | str | None,
    best_effort: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Plan:
    """`plan`, with the arguments of `fn` apart from its own, so that their names can't clash."""
    if limit is not None:
        check_limit(limit)
    request = request_plan(fn, args, kwargs, progress=progress, **options)
    return request.plan(limit_bytes(limit, request.search), best_effort)


def limit_bytes(limit: int | float | str | None, search: Search) -> int:
    """Bytes of a limit; None is the target's capacity. Only a percentage needs the original compiled."""
    if limit is None:
        return search.target.capacity_bytes
    relative = check_limit(limit) is not None
    return parse_limit(limit, search.original.peak_bytes if relative else 0)


def request_plan(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    target: str | Target | None,
    progress: Progress | None,
    **options: Any,
) -> Request:
    place = resolve(target)
    prepare(place)
    report = progress or (lambda line: None)
    report("tracing")
    program = trace(fn, args, dict(kwargs), platform=place.platform, **options)
    static = static_values(args, kwargs, options["static_argnums"], options["static_argnames"], fn)
    return Request(
        fn=fn,
        search=Search(program, place, report),
        signature=Signature(fn, program, len(args), static),
        options=options,
    )


def _limit_error(lowest: Plan, search: Search) -> LimitError:
    held = blockers(lowest.program, lowest.profile, search.hindrances())
    return LimitError(limit_error_text(lowest, held), lowest.peak_bytes, held)
