"""`memscope.schedule`: a function in the order of instructions that needs the least memory, confirmed by XLA."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from .._jax_private import api_boundary
from ..arguments import static_values
from ..compile import Build, Compiled, prepare
from ..errors import ArgumentError, SizeError, TargetError
from ..hlo.heap import ALIGNMENT, GPU_ALIGNMENT
from ..hlo.ranges import flatten
from ..hlo.traffic import moved_bytes
from ..planned import PlannedFunction, Signature, dynamic_only
from ..profile import Profile, profile_compiled
from ..program import Program
from ..report.schedule import schedule_fragment, schedule_page, schedule_text
from ..target import Target, resolve
from ..trace import check_keywords, trace
from .confirm import Progress
from .on_gpu import find_order_on_gpu
from .placement import LiveRange, place
from .predict import temporary_heap
from .search import Found, find_order

RESERVED = ("target", "seconds", "static_argnums", "static_argnames", "donate_argnums", "progress")

CERTAIN = 2e-3
"""The gap, as a fraction of the peak, that small buffers and alignment leave where an order can't be bettered."""


PLACING_SECONDS = 2.0
"""For the solver to place the temporaries of a schedule."""


@dataclasses.dataclass(frozen=True)
class Fragmentation:
    """Where XLA puts the temporaries of a schedule, beside the best that could be done: a report, in bytes.

    XLA takes no offsets: what it would save by better ones stays out of reach.

    Attributes:
      xla_bytes: what XLA sets aside.
      live_bytes: the most that is alive at once; the rest are gaps.
      best_bytes: what the best offsets that were found would need.
      bound_bytes: no offsets need less; proved.
      remark: what a reader should know about the search, or "".
    """

    xla_bytes: int
    live_bytes: int
    best_bytes: int
    bound_bytes: int
    remark: str

    @property
    def xla_gaps(self) -> int:
        """Bytes of gaps that XLA leaves."""
        return max(0, self.xla_bytes - self.live_bytes)

    @property
    def best_gaps(self) -> int:
        """Bytes of gaps that the best offsets leave."""
        return self.best_bytes - self.live_bytes


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """A function compiled in another order of its instructions; values, shapes and work are as before.

    All bytes are XLA's own account of the whole call: arguments + results + temporaries.

    Attributes:
      fn: the function in that order; same pytrees in and out. Inlined into another function's trace it runs in
        whatever order XLA gives that one; on a GPU its barriers go along. Made for a GPU that is not here it can be
        traced and exported, and raises TargetError where it is called.
      peak_bytes, default_peak_bytes: in this order and in XLA's own, both of the build that `jax.jit` makes.
      lower_bound_bytes: no order needs less; proved. On a GPU that is arguments + results: other barriers make XLA fuse
        otherwise, and of instructions that are not known nothing is proved.
      order: the names of the HLO instructions as they run; those of a loop's body once, before the loop. Where what
        writes over donated arguments is an executable of its own, its instructions come last.
      seconds: of search, compiling apart; on a GPU with the compiles of other orders than XLA's own.
    """

    program: Program
    target: Target
    fn: Callable[..., Any]
    peak_bytes: int
    default_peak_bytes: int
    lower_bound_bytes: int
    order: tuple[str, ...]
    seconds: float
    found: Found = dataclasses.field(repr=False)

    @property
    def gap(self) -> float:
        """By how much of `peak_bytes` an order could be better than this one at the most: 0.03 is 3%."""
        return 1 - self.lower_bound_bytes / self.peak_bytes if self.peak_bytes else 0.0

    @property
    def optimal(self) -> bool:
        """Whether it is proved that no order needs less, to 0.2% of the peak."""
        return self.gap <= CERTAIN

    @property
    def changed(self) -> bool:
        """Whether an order was found that needs less than XLA's own."""
        return self.found.best is not self.found.default

    @property
    def temp_bytes(self) -> int:
        return self.compiled.temp_bytes

    @property
    def default_temp_bytes(self) -> int:
        return self.found.default.temp_bytes

    @property
    def hidden_bytes(self) -> int:
        """The most that XLA's library fusions may take beside its account, whatever the order."""
        return self.compiled.hidden_bytes

    @property
    def compiled(self) -> Compiled:
        return self.found.best.compiled

    @functools.cached_property
    def traffic(self) -> float:
        """Bytes that its instructions read and write, over those in XLA's own order: above 1 where less is fused."""
        before, after = (
            sum(moved_bytes(part.compiled.parsed) for part in each.parts)
            for each in (self.found.default, self.found.best)
        )
        return after / before if before else 1.0

    @functools.cached_property
    def profile(self) -> Profile:
        """Where the memory goes in this order; of two executables, in the one that needs more."""
        part = self.found.best.at_peak
        return profile_compiled(part.program, part.compiled, target=self.target)

    @functools.cached_property
    def original_profile(self) -> Profile:
        """Where the memory goes in XLA's own order."""
        return profile_compiled(self.found.default.program, self.found.default.compiled, target=self.target)

    @functools.cached_property
    def placement(self) -> Fragmentation:
        """XLA's offsets for the temporaries beside the best ones; searched for when first asked for."""
        on_gpu = self.target.platform == "cuda"
        part = self.found.best.at_peak.compiled
        heap, blocks = temporary_heap(part.parsed, on_gpu)
        ranges = [
            LiveRange(min(start for start, _ in b.spans), max(end for _, end in b.spans), b.bytes) for b in blocks
        ]
        best = place(ranges, PLACING_SECONDS, GPU_ALIGNMENT if on_gpu else ALIGNMENT)
        total = min(best.total_bytes, heap.bytes)
        # The search pads every size to the alignment, which the topmost buffer of a heap does not need.
        live, bound = min(best.load_bytes, total), min(best.lower_bound_bytes, total)
        return Fragmentation(part.temp_bytes, live, total, bound, best.remark)

    def to_dict(self) -> dict[str, Any]:
        """The figures and the order as numbers, strings and lists, for JSON."""
        names = ("peak_bytes", "default_peak_bytes", "lower_bound_bytes", "gap", "optimal", "temp_bytes")
        figures = {name: getattr(self, name) for name in (*names, "default_temp_bytes", "hidden_bytes", "seconds")}
        return {"name": self.program.name, "target": self.target.name, **figures, "order": list(self.order)}

    def to_html(self) -> str:
        """A page of its own: no scripts and nothing to load."""
        return schedule_page(self)

    def _repr_html_(self) -> str:
        return schedule_fragment(self)

    def __str__(self) -> str:
        return schedule_text(self)

    __repr__ = __str__


@api_boundary
def schedule(
    fn: Callable[..., Any],
    *args: Any,
    target: str | Target | None = None,
    seconds: float = 10,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    progress: Progress | None = None,
    **kwargs: Any,
) -> Schedule:
    """Puts the instructions of `fn(*args, **kwargs)` into the order that needs the least memory. Nothing runs.

    What is computed stays the same, bit for bit. The order is that of OLLA (arXiv 2210.12924, section 3.2): XLA
    confirms it, and keeps its own where none is better. XLA's GPU compiler takes no order: there the best of several
    that `optimization_barrier`s keep is confirmed, and as barriers change what is fused, last bits may differ.

    Args:
      fn: a function that `jax.jit` would take.
      args, kwargs: its arguments; `jax.ShapeDtypeStruct` may stand for any array.
      target: where it is to run: this CPU, an attached GPU, or a named one that is not here; None is where JAX runs by
        default.
      seconds: to search at the most. Compiling comes on top; for a GPU, where the search is to compile one order after
        another, the compile in XLA's own order alone.
      static_argnums, static_argnames, donate_argnums: as in `jax.jit`.
      progress: called with one line of text for each thing the search does.

    Raises:
      TypeError: the arguments are not what `jax.jit` takes, or `seconds` is no number.
      ValueError: `seconds` is below zero.
      TargetError: there is no such target, it takes no order, or XLA refuses the function for it.
      Whatever `fn` raises while it is traced.

    Example:
      >>> sched = memscope.schedule(jax.grad(loss), weights, batch)
      >>> gradient = sched.fn(weights, batch)
    """
    check_keywords(fn, target, RESERVED)
    _check_seconds(seconds)
    place = resolve(target)
    if place.platform not in ("cpu", "cuda"):
        raise TargetError(f"memscope.schedule sets orders on CPUs and GPUs, not on {place.name}.")
    prepare(place)
    program = trace(
        fn,
        args,
        kwargs,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        platform=place.platform,
    )
    _check_devices(program, args, kwargs)
    static = static_values(args, kwargs, static_argnums, static_argnames, fn)
    report = progress or (lambda line: None)
    signature = Signature(fn, program, len(args), static)
    if place.platform == "cuda":
        return _on_gpu(signature, place, find_order_on_gpu(program, place, seconds, report))
    return _on_cpu(signature, place, find_order(program.as_traced, Build.PLAIN, place, seconds, report))


def _on_cpu(signature: Signature, target: Target, found: Found) -> Schedule:
    """The order is that of an executable; what is inlined elsewhere is the program as it was."""
    return _schedule(signature, target, found, signature.program.closed, found.best.compiled.call)


def _on_gpu(signature: Signature, target: Target, found: Found) -> Schedule:
    """The order is in the program, wherever that goes."""
    best = found.best
    return _schedule(signature, target, found, best.program.closed, best.compiled.call if target.is_here else None)


def _schedule(
    signature: Signature,
    target: Target,
    found: Found,
    closed: jex_core.ClosedJaxpr,
    call: Callable[..., Any] | None,
) -> Schedule:
    best, parts = found.best.compiled, found.best.parts
    original = dynamic_only(signature.fn, signature.static)
    return Schedule(
        program=signature.program,
        target=target,
        fn=PlannedFunction(signature, closed, best.build, original, target, call, "scheduled", "jax.export"),
        peak_bytes=best.peak_bytes,
        default_peak_bytes=found.default.compiled.peak_bytes,
        lower_bound_bytes=found.bound_bytes,
        order=tuple(i.name for part in parts for i in flatten(part.compiled.parsed).instructions),
        seconds=found.seconds,
        found=found,
    )


def _check_devices(program: Program, args: Any, kwargs: Any) -> None:
    """Refuses arrays on several devices, unless the function says itself what each of them does."""
    if any(eqn.primitive.name == "shard_map" for eqn in program.eqns):
        return
    for path, leaf in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        concrete = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
        if concrete and len(leaf.devices()) > 1:
            raise ArgumentError(
                f"an argument of {program.name} (at {jax.tree_util.keystr(path[1:])}) lies on {len(leaf.devices())} "
                "devices: memscope.schedule orders a program of one device, or a jax.shard_map."
            )


def _check_seconds(seconds: Any) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise ArgumentError(f"seconds is a {type(seconds).__name__}: give a number of seconds to search, as in 5.")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise SizeError(f"seconds is {seconds}: give a number of seconds to search, 0 or more.")
