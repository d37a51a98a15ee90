"""Orders that XLA has confirmed: a program compiled in each of them."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax

from ..compile import Build, Compiled, compile_flat, compile_program
from ..evaluate import run_program
from ..program import Program
from ..target import Target
from .donated import given_back
from .hook import ordering
from .predict import ModuleOrder

_INSIDE = tuple(os.path.dirname(file) + os.sep for file in (os.path.dirname(__file__), jax.__file__))

Progress = Callable[[str], None]

MEMORY_OPTIMISED = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
DEFAULT, MEMORY, OURS = "XLA's default", "XLA's memory-optimised scheduler", "memscope"
STEERED = "XLA's memory-optimised scheduler, from results in another order"
IN_TWO = "memscope, what is donated written over in a second executable"


@dataclasses.dataclass(frozen=True, eq=False)
class Scheduled:
    """A program compiled in some order.

    Attributes:
      by: whose order it is.
      program: what was compiled; the same for all, but for the order of arguments and results.
      predicted_temp_bytes: what the model of XLA's heap said before; None where XLA chose the order itself.
      remade: the instructions that run once for each reader in it, by name.
      halves: what it consists of where it is not one executable: they run one after the other, and each knows of all
        that is in memory while it runs.
    """

    by: str
    program: Program
    compiled: Compiled
    predicted_temp_bytes: int | None = None
    remade: frozenset[str] = frozenset()
    halves: tuple[Scheduled, ...] = ()

    @property
    def temp_bytes(self) -> int:
        return self.compiled.temp_bytes

    @property
    def peak_bytes(self) -> int:
        return self.compiled.peak_bytes

    @property
    def parts(self) -> tuple[Scheduled, ...]:
        """The executables that run, one after the other."""
        return self.halves or (self,)

    @property
    def at_peak(self) -> Scheduled:
        """The executable that needs the most."""
        return max(self.parts, key=lambda part: part.peak_bytes)


def in_two(first: Scheduled, second: Scheduled, joined: Compiled, program: Program) -> Scheduled:
    """A program that runs as two, the first one in an order of its own.

    Args:
      joined: both as one executable.
    """
    predicted = None
    if first.predicted_temp_bytes is not None:
        peak = max(first.peak_bytes - first.temp_bytes + first.predicted_temp_bytes, second.peak_bytes)
        predicted = peak - joined.peak_bytes + joined.temp_bytes
    return Scheduled(IN_TWO, program, joined, predicted, first.remade, (first, second))


def in_xlas_orders(program: Program, build: Build, target: Target, progress: Progress) -> list[Scheduled]:
    """The program in the default order, and in that of the memory-optimised scheduler.

    In the default one alone where the program is large: the other one takes long to compile, and may not be needed.
    """
    size = f"{len(program.eqns)} eqns"
    if program.is_large:
        progress(f"compiling {program.name} in XLA's own order ({size})")
        return [Scheduled(DEFAULT, program, compile_program(program, build, target))]
    progress(f"compiling {program.name} in XLA's own two orders ({size})")
    with ThreadPoolExecutor(1) as other:  # XLA compiles without the interpreter lock
        memory = other.submit(compile_program, program, build, target, MEMORY_OPTIMISED)
        default = compile_program(program, build, target)
        return [Scheduled(DEFAULT, program, default), Scheduled(MEMORY, program, memory.result())]


def confirmed_by_xla(
    program: Program, build: Build, target: Target, promising: Sequence[tuple[ModuleOrder, int]]
) -> list[Scheduled]:
    """The best of the orders that XLA could be given, compiled; with a warning where it could not.

    More than one only as far as XLA does not come to what was predicted.
    """
    confirmed: list[Scheduled] = []
    for order, predicted in promising:
        if confirmed and min(each.temp_bytes for each in confirmed) <= predicted:
            break
        made = _compile(program, build, target, order, predicted)
        if isinstance(made, str):
            warnings.warn(
                f"an order that was found for {program.name} could not be set inside XLA ({made}).",
                RuntimeWarning,
                stacklevel=_callers_level(),
            )
            break
        confirmed.append(made)
    return confirmed


def _callers_level() -> int:
    """How many frames up the code is that asked for it: neither memscope's nor JAX's own."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        level, frame = level + 1, frame.f_back
    return level


def _compile(program: Program, build: Build, target: Target, order: ModuleOrder, predicted: int) -> Scheduled | str:
    """The program in an order, or why XLA could not be given it."""
    try:
        with ordering(order.names, order.chained, order.remade) as request:
            run = run_program(program)
            run.__name__ = program.name + request.token
            compiled = compile_flat(run, program, build, target)
    except Exception as error:  # XLA compiled the same in its own order: the order is at fault
        return str(error).partition("\n")[0]
    if not request.applied:
        return str(request.error or "its pass was not run")
    return Scheduled(OURS, program, given_back(compiled, program.donated), predicted, order.remade)
