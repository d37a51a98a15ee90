"""Where a function's memory goes: XLA's own account of a compiled program, buffer by buffer."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._jax_private import api_boundary
from .compile import Build, Compiled, builds_of, compile_program, prepare
from .errors import RefusedError
from .gpu.libraries import libraries
from .graph import GraphSource, HloGraph, hlo_graph
from .hlo.assignment import parse_assignment
from .hlo.liveness import LiveBuffer, Liveness, liveness
from .hlo.module import Index, Instruction
from .hlo.origin import Origin, Origins
from .hlo.path import is_computed, peak_path
from .hlo.place import Kind
from .program import Program, inner_lines
from .target import Target, resolve
from .trace import check_keywords, trace

_NESTING = frozenset(
    {"scan", "while", "cond", "shard_map", "custom_vmap_call", "jit", "closed_call", "checkpoint", "custom_jvp_call"}
    | {"custom_vjp_call", "custom_lin", "custom_linear_solve"}
)
_REPLACES = {"__gpu$TopK": "top_k"}  # custom calls of XLA's that keep no name of the op in whose place they are


@dataclasses.dataclass(frozen=True)
class Buffer:
    """One piece of memory that XLA sets aside, and when it is in use.

    Attributes:
      name: the argument's name, or the HLO instruction that writes the buffer.
      bytes: its size.
      shape, dtype: of the array in it.
      op: the JAX primitive that makes it where that is known, else the HLO opcode; "argument" for arguments.
      source: the user's own line, as in "knn.py:12", or None.
      defined_at, freed_at: the first and last step (indices into `Profile.timeline`) that need it.
      live_at_peak: it holds memory at `Profile.peak_step`; arguments, results and constants always do.
      offset: in bytes, in its allocation; simulated where XLA does not tell its placement; None where neither is known.
      kind: "argument", "output", "temporary" or "constant".
      hlo: the HLO instruction that writes it.
      eqn: index of the program's eqn it comes from, or None.
      allocation: XLA's number of the allocation it lies in, or None.
    """

    name: str
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    source: str | None
    defined_at: int
    freed_at: int
    live_at_peak: bool
    offset: int | None
    kind: Kind = "temporary"
    hlo: str = ""
    eqn: int | None = None
    allocation: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """The memory of one call, in bytes, as XLA accounts for it.

    Attributes:
      name, target: what was compiled, and for where.
      build: how: "reference" (XLA's account is exact) or "plain" (as `jax.jit` builds it).
      peak_bytes: arguments + outputs + temporaries + constants - aliased (donated) bytes.
      plain_peak_bytes: what XLA reports for a plain `jax.jit`; None where that was not compiled.
      plain_bound_bytes: an upper bound on what that build needs, with the scratch XLA does not report.
      buffers: largest first.
      timeline: bytes in use at each step of the schedule; arguments and results count throughout, so its
        maximum is `peak_bytes - fragmentation_bytes`. A loop's steps stand once, before the loop itself.
      steps: the HLO instruction of each step.
      step_sources: the user's line of each step, or None.
      peak_step: the step with the most bytes in use.
      peak_path: (HLO instruction, its Buffer or None): from an input, through the largest buffer at the peak, to
        the instruction that frees it.
      fragmentation_bytes: gaps that XLA's placement leaves between temporaries.
      graph_source: what `graph` is built from when it is first asked for.
      capacity_bytes: what a program may use on the target; None where no target was named.
      capacity_note: what that is a share of, in words, or "".
      uncounted: (library, number of calls): what may take workspace beside the peak, as only a run decides.
    """

    name: str
    target: str
    build: str
    peak_bytes: int
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    constant_bytes: int
    alias_bytes: int
    plain_peak_bytes: int | None
    plain_bound_bytes: int | None
    buffers: tuple[Buffer, ...]
    timeline: tuple[int, ...]
    steps: tuple[str, ...]
    step_sources: tuple[str | None, ...]
    peak_step: int
    peak_path: tuple[tuple[str, Buffer | None], ...]
    fragmentation_bytes: int
    graph_source: GraphSource = dataclasses.field(repr=False)
    capacity_bytes: int | None = None
    capacity_note: str = ""
    uncounted: tuple[tuple[str, int], ...] = ()

    @functools.cached_property
    def graph(self) -> HloGraph:
        """The optimised HLO as a graph, with the bytes that each result holds."""
        largest = self.largest_at_peak
        return hlo_graph(self.graph_source, largest.hlo if largest else None, [name for name, _ in self.peak_path])

    @property
    def largest_at_peak(self) -> Buffer | None:
        """The largest buffer at the peak that the function makes itself; an argument where it makes none."""
        live = [b for b in self.buffers if b.live_at_peak and b.bytes]
        made = [b for b in live if b.kind in ("temporary", "output")]
        return next(iter(made or live), None)

    def to_dict(self) -> dict[str, Any]:
        """All of it but the graph as lists, dicts, numbers and strings, for JSON."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "graph_source"]
        return {name: _plain(getattr(self, name)) for name in names}

    def to_html(self) -> str:
        """A page of its own: no scripts and nothing to load."""
        from .report.html import profile_page

        return profile_page(self)

    def _repr_html_(self) -> str:
        from .report.html import profile_fragment

        return profile_fragment(self)

    def __str__(self) -> str:
        from .report.text import profile_text

        return profile_text(self)

    __repr__ = __str__


@api_boundary
def profile(
    fn: Callable[..., Any],
    *args: Any,
    target: str | Target | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    **kwargs: Any,
) -> Profile:
    """Compiles `fn(*args, **kwargs)` and says where its memory goes. Nothing runs.

    Args:
      fn: a function that `jax.jit` would take.
      args, kwargs: its arguments; `jax.ShapeDtypeStruct` may stand for any array.
      target: where it is to run: one of `memscope.targets()`, or a Target; None is where JAX runs by default.
      static_argnums, static_argnames, donate_argnums: as in `jax.jit`.

    Raises:
      TypeError: as `jax.jit` would, or `fn` has a keyword that memscope takes for itself.
      TargetError: there is no such target, or XLA does not compile `fn` for it.
      Whatever `fn` raises while it is traced.

    Example:
      >>> print(memscope.profile(nearest, q, x))
    """
    check_keywords(fn, target)
    place = resolve(target)
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
    try:
        return profile_program(program, place)
    except RefusedError as error:
        raise without_profile(error) from error


def without_profile(error: RefusedError) -> RefusedError:
    """The error of a function that has no profile, as XLA does not compile it: what to do instead."""
    return RefusedError(f"{error}. memscope.plan looks for a version that it compiles.")


def profile_program(program: Program, target: Target) -> Profile:
    """Profiles the exact build of a program, and on CPU sets the plain build's account beside it."""
    exact, *others = builds_of(target)
    if not others:
        return profile_compiled(program, compile_program(program, exact, target), target=target)
    with concurrent.futures.ThreadPoolExecutor(1) as other:  # XLA compiles without the interpreter lock
        plain = other.submit(compile_program, program, Build.PLAIN, target)
        reference = compile_program(program, exact, target)
        return profile_compiled(program, reference, plain=plain.result(), target=target)


def profile_compiled(
    program: Program, compiled: Compiled, *, plain: Compiled | None = None, target: Target | None = None
) -> Profile:
    """Profiles what is compiled already.

    Args:
      program: whose eqns the tags in the compiled module ("/e17/") refer to. `compiled` may be a rewritten form.
      compiled: the build to take apart.
      plain: the plain build of the same, for its account only; `compiled` itself where that is the plain build.
    """
    if plain is None and compiled.build is Build.PLAIN:
        plain = compiled
    module = compiled.parsed
    on_gpu = target is not None and target.platform == "cuda"
    live = liveness(module, parse_assignment(compiled.assignment), on_gpu)
    held = compiled.peak_bytes - compiled.temp_bytes
    timeline = tuple(held + t for t in live.temporaries)
    peak_step = max(range(len(timeline)), key=timeline.__getitem__)
    view = _View(program, live, peak_step)
    found = [(b, view.buffer(b)) for b in live.buffers]
    found.sort(key=lambda pair: (-pair[1].bytes, not pair[1].live_at_peak, pair[1].defined_at))
    buffers = (*(b for _, b in found), *view.missing_arguments([b for b, _ in found]))
    return Profile(
        name=program.name,
        target=target.name if target else "cpu",
        build=compiled.build.value,
        peak_bytes=compiled.peak_bytes,
        argument_bytes=compiled.argument_bytes,
        output_bytes=compiled.output_bytes,
        temp_bytes=compiled.temp_bytes,
        constant_bytes=compiled.constant_bytes,
        alias_bytes=compiled.alias_bytes,
        plain_peak_bytes=None if plain is None else plain.peak_bytes,
        plain_bound_bytes=None if plain is None else plain.bound_bytes,
        buffers=buffers,
        timeline=timeline,
        steps=tuple(i.name for i in live.steps),
        step_sources=tuple(view.eqns.line(view.origins.of(i)) for i in live.steps),
        peak_step=peak_step,
        peak_path=_peak_path(live, found),
        fragmentation_bytes=max(0, compiled.peak_bytes - timeline[peak_step]),
        graph_source=view.graph_source(found),
        capacity_bytes=target.capacity_bytes if target else None,
        capacity_note=target.capacity_note if target else "",
        uncounted=libraries(module) if on_gpu else (),
    )


class _View:
    """A module's buffers in the program's own terms."""

    def __init__(self, program: Program, live: Liveness, peak_step: int) -> None:
        self.program, self.live, self.peak_step = program, live, peak_step
        self.module = live.flow.module
        self.origins = Origins(self.module)
        names = tuple(e.primitive.name for e in program.eqns)
        self.eqns = _Eqns(names, program.sources, inner_lines(program.jaxpr))
        # Ordered effects put tokens before the arguments.
        self.tokens = len(self.module.entry.parameters) - len(program.jaxpr.invars)

    def buffer(self, buffer: LiveBuffer) -> Buffer:
        argument = None if buffer.parameter is None else buffer.parameter - self.tokens
        if argument is not None and 0 <= argument < len(self.program.jaxpr.invars):
            return self._argument(argument, buffer)
        writer, index = self._writer(buffer)
        origin = self.eqns.meant(writer, self.origins.of(writer))
        return Buffer(
            name=writer.name + "".join(f"[{i}]" for i in index),
            bytes=buffer.bytes,
            shape=buffer.shape.dimensions,
            dtype=buffer.shape.dtype,
            op="constant" if buffer.kind == "constant" else self.eqns.op(writer, origin),
            source=self.eqns.line(origin),
            defined_at=buffer.defined_at,
            freed_at=buffer.freed_at,
            live_at_peak=buffer.kind != "temporary" or buffer.alive_at(self.peak_step),
            offset=buffer.offset,
            kind=buffer.kind,
            hlo=writer.name,
            eqn=origin.eqn,
            allocation=buffer.allocation,
        )

    def _writer(self, buffer: LiveBuffer) -> tuple[Instruction, Index]:
        """What computes the buffer; what first copies or carries it where nothing does."""
        writers = [(self.module.instructions[i], index) for i, index in buffer.values]
        return next((w for w in reversed(writers) if is_computed(w[0])), writers[0])

    def missing_arguments(self, buffers: list[LiveBuffer]) -> list[Buffer]:
        """Arguments that XLA has no buffer for, such as arrays without elements."""
        present = {b.parameter - self.tokens for b in buffers if b.parameter is not None}
        return [self._argument(n, None) for n in range(len(self.program.jaxpr.invars)) if n not in present]

    def _argument(self, number: int, buffer: LiveBuffer | None) -> Buffer:
        aval: Any = self.program.jaxpr.invars[number].aval
        parameter = self.module.entry.parameters.get(number + self.tokens)
        return Buffer(
            name=self.program.argument_names[number],
            bytes=buffer.bytes if buffer else 0,
            shape=tuple(aval.shape),
            dtype=str(aval.dtype),
            op="argument",
            source=None,
            defined_at=0,
            freed_at=len(self.live.steps) - 1,
            live_at_peak=True,
            offset=buffer.offset if buffer else None,
            kind="argument",
            hlo=parameter.name if parameter else "",
            allocation=buffer.allocation if buffer else None,
        )

    def graph_source(self, found: list[tuple[LiveBuffer, Buffer]]) -> GraphSource:
        owners = {value: buffer for place, buffer in found for value in place.values}
        return GraphSource(self.live.flow, owners, functools.partial(_describe, self.origins, self.eqns))


@dataclasses.dataclass(frozen=True)
class _Eqns:
    """What an instruction's origin means: the primitives and lines of the program's eqns, and no more of it."""

    primitives: tuple[str, ...]
    sources: tuple[str | None, ...]
    inside: Mapping[tuple[str, int], str]

    def meant(self, writer: Instruction, origin: Origin) -> Origin:
        """The origin, or that of the op that XLA replaced: the next of its kind after what it reads."""
        primitive = _REPLACES.get(writer.custom_call_target)
        if primitive is None or origin.eqn is None:
            return origin
        if self.primitives[origin.eqn] in _NESTING:
            return dataclasses.replace(origin, primitive=primitive)
        later = (i for i in range(origin.eqn, len(self.primitives)) if self.primitives[i] == primitive)
        found = next(later, None)
        return origin if found is None else Origin(found, None, None)

    def op(self, writer: Instruction, origin: Origin) -> str:
        if origin.eqn is None or origin.eqn >= len(self.primitives) or not is_computed(writer):
            return writer.opcode
        name = self.primitives[origin.eqn]
        return (origin.primitive or name) if name in _NESTING else name

    def line(self, origin: Origin) -> str | None:
        if origin.eqn is None or origin.eqn >= len(self.primitives):
            return None
        own = self.sources[origin.eqn]
        if origin.line is None or self.primitives[origin.eqn] not in _NESTING:
            return own
        return self.inside.get(origin.line, own)


def _describe(origins: Origins, eqns: _Eqns, instruction: Instruction) -> tuple[str, str | None]:
    if instruction.opcode in ("parameter", "constant"):
        return instruction.opcode, None
    origin = eqns.meant(instruction, origins.of(instruction))
    return eqns.op(instruction, origin), eqns.line(origin)


def _peak_path(live: Liveness, found: list[tuple[LiveBuffer, Buffer]]) -> tuple[tuple[str, Buffer | None], ...]:
    at_peak = [pair for pair in found if pair[1].live_at_peak and pair[1].bytes]
    made = [pair for pair in at_peak if pair[1].kind in ("temporary", "output")]
    if not (made or at_peak):
        return ()
    largest = (made or at_peak)[0][0]
    owner = {value: buffer for place, buffer in found for value in place.values}
    instructions = live.flow.module.instructions
    return tuple((instructions[p[0]].name, owner.get(p)) for p in peak_path(live, largest))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value
