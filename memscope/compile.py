"""Program -> XLA executable, with XLA's own account of its bytes."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from .errors import RefusedError
from .evaluate import precision_of, run_program
from .gpu import remote
from .gpu.export import export_for_gpu
from .hlo import read
from .hlo.module import Module, parse_module
from .program import Program, nbytes
from .target import Target


class Build(enum.Enum):
    """How XLA is asked to build a program.

    PLAIN is what `jax.jit` does. On the CPU it moves dots, reductions and the elementwise ops around them into
    fusions whose scratch XLA does not count; REFERENCE switches those fusions off: its account is exact.
    """

    REFERENCE = "reference"
    PLAIN = "plain"

    @property
    def options(self) -> dict[str, str]:
        return _OPTIONS[self]


UNBOUNDED = 1 << 62
"""Bytes that no target holds."""

_OPTIONS: dict[Build, dict[str, str]] = {
    Build.REFERENCE: {"xla_cpu_experimental_ynn_fusion_type": ""},
    Build.PLAIN: {},
}


def builds_of(target: Target) -> tuple[Build, ...]:
    """The builds that a target has. The account of the first is exact: all percentages are of it."""
    return (Build.REFERENCE, Build.PLAIN) if target.platform == "cpu" else (Build.PLAIN,)


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """An executable and its bytes.

    Attributes:
      call: the executable, of flat arguments; raises TargetError where it was compiled for a GPU that is not here.
      argument_bytes, output_bytes, temp_bytes, alias_bytes: XLA's own figures.
      hidden_bytes: an upper bound on scratch that XLA does not count; 0 in the reference build.
      refused: why XLA does not compile the program, where it does not; its bytes are estimates then.
    """

    build: Build
    call: Callable[..., Any]
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    constant_bytes: int
    hidden_bytes: int
    module: bytes
    assignment: bytes
    refused: RefusedError | None = None

    @functools.cached_property
    def parsed(self) -> Module:
        """The optimised module in its schedule."""
        return parse_module(self.module)

    @property
    def peak_bytes(self) -> int:
        """Arguments + outputs + temporaries - aliased + constants, as XLA accounts for them."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes + self.constant_bytes

    @property
    def bound_bytes(self) -> int:
        """A peak that the run can't exceed; above any limit where nothing can be run."""
        return self.peak_bytes + self.hidden_bytes if self.refused is None else UNBOUNDED


def compile_program(
    program: Program, build: Build, target: Target, options: Mapping[str, str] = MappingProxyType({})
) -> Compiled:
    """Compiles a program, eqn tags included; `options` are more of XLA's than those of the build."""
    return compile_flat(run_program(program), program, build, target, options)


def compile_flat(
    run: Callable[..., Any],
    program: Program,
    build: Build,
    target: Target,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Compiled:
    """Compiles `run`, a function of `program`'s flat arguments that stands for it.

    Args:
      options: more of XLA's options than those of the build, on a target that is here.
    """
    if not target.is_here:
        return _compile_for_gpu(run, program, build, target)
    with precision_of(program):
        jitted = jit_flat(run, program.donated, build, options)
        return read_compiled(jitted.trace(*_shapes_on(target, program)).lower().compile(), build)


def compiled_or_refused(
    compile_it: Callable[[], Compiled], program: Program, build: Build, temp_bytes: int
) -> Compiled:
    """What `compile_it` makes of a program, or where XLA refuses it what its shapes tell.

    Args:
      temp_bytes: an estimate of its temporaries.
    """
    try:
        return compile_it()
    except RefusedError as error:
        refused = error

    def call(*args: Any) -> Any:
        raise refused

    return Compiled(
        build=build,
        call=call,
        argument_bytes=sum(map(nbytes, program.jaxpr.invars)),
        output_bytes=sum(map(nbytes, program.jaxpr.outvars)),
        temp_bytes=temp_bytes,
        alias_bytes=0,
        constant_bytes=sum(map(nbytes, program.jaxpr.constvars)),
        hidden_bytes=0,
        module=b"",
        assignment=b"",
        refused=refused,
    )


def prepare(target: Target) -> None:
    """Gets a compiler ready, where that takes a while, for what is about to be traced.

    Raises:
      TargetError: there is none for this target.
    """
    if not target.is_here:
        remote.check_installed(target.name)
        remote.shared().start()


def _compile_for_gpu(run: Callable[..., Any], program: Program, build: Build, target: Target) -> Compiled:
    assert target.device is not None
    exported = export_for_gpu(run, program, target)
    answer = remote.shared().compile(program.name, target.name, target.device, exported, program.donated)

    def call(*args: Any) -> Any:
        raise target.absent(program.name)

    return Compiled(
        build=build,
        call=call,
        argument_bytes=answer.argument_bytes,
        output_bytes=answer.output_bytes,
        temp_bytes=answer.temp_bytes,
        alias_bytes=answer.alias_bytes,
        constant_bytes=read.module_constant_bytes(answer.module),
        hidden_bytes=0,
        module=answer.module,
        assignment=answer.assignment,
    )


def _shapes_on(target: Target, program: Program) -> list[jax.ShapeDtypeStruct]:
    """The program's arguments, on the target where that is not where JAX runs by default."""
    default = jax.default_backend()
    if target.platform == {"gpu": "cuda"}.get(default, default):
        return program.argument_shapes
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices(backend=target.platform)[0])
    return [s.update(sharding=sharding) for s in program.argument_shapes]


def jit_flat(
    run: Callable[..., Any],
    donated: Sequence[bool],
    build: Build,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """`jax.jit` of a function of flat arguments, with the options of `build` and more."""
    donate = tuple(i for i, given in enumerate(donated) if given)
    return jax.jit(run, donate_argnums=donate, keep_unused=True, compiler_options={**build.options, **options})


def read_compiled(executable: Any, build: Build) -> Compiled:
    """The account of a `jax.stages.Compiled`."""
    stats = executable.memory_analysis()
    module = executable.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    assignment = stats.serialized_buffer_assignment_proto
    return Compiled(
        build=build,
        call=executable,
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        temp_bytes=stats.temp_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
        constant_bytes=read.constant_bytes(assignment) if assignment else read.module_constant_bytes(module),
        hidden_bytes=0 if build is Build.REFERENCE else read.hidden_bytes(module),
        module=module,
        assignment=assignment,
    )
