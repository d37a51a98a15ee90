"""An order of HLO instructions, carried back to the eqns that they were made of, and kept there by barriers.

Where no pass reaches XLA's scheduler, as in its GPU compiler, an order can only be asked for in the program. Each
instruction is one step: the eqns whose results it leaves in memory. Eqns that XLA fused into their readers leave none;
they are computed in each step that reads them, so that it fuses them again. A barrier between two steps that do not
depend on each other makes the second wait for the first.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from ..cost import CHEAP, EXPENSIVE
from ..evaluate import TAG, bind
from ..hlo.module import Instruction, Module
from ..hlo.origin import eqn_of
from ..program import Program, is_var

Var = jex_core.Var

FUSED = CHEAP | EXPENSIVE
"""Primitives that XLA computes again in each of several readers, where it fuses them."""

_NAMING = frozenset({"bitcast", "copy", "transpose", "reshape"})


@dataclasses.dataclass(frozen=True)
class Step:
    """Eqns that run together, by index in the program.

    Attributes:
      kept: those whose results stay in memory until they are read for the last time.
      fused: those that they read and that leave nothing; other steps may compute them as well.
    """

    kept: tuple[int, ...]
    fused: tuple[int, ...]


def steps_of(program: Program, module: Module, order: Sequence[Instruction]) -> tuple[Step, ...]:
    """The steps of a program whose instructions run in an order.

    Args:
      module: the program compiled, eqns tagged.
      order: the instructions of its entry computation that do work.
    """
    return _Steps(program, [left_by(module, instruction) for instruction in order]).made()


def left_by(module: Module, instruction: Instruction) -> tuple[int, ...]:
    """The eqns whose results an instruction leaves in memory, as far as its metadata tell."""
    found = (eqn_of(each) for each in _roots(module, instruction))
    return tuple(dict.fromkeys(eqn for eqn in found if eqn is not None))


def _roots(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    if instruction.opcode != "fusion":
        yield instruction
        return
    inner = module.by_id[instruction.called[0]]
    root = module.instructions[inner.root]
    for result in root.operands if root.opcode == "tuple" else (root.id,):
        found = module.instructions[result]
        while found.opcode in _NAMING and eqn_of(found) is None and found.operands:
            found = module.instructions[found.operands[0]]
        yield found


class _Steps:
    def __init__(self, program: Program, groups: Sequence[Sequence[int]]) -> None:
        self._program = program
        self._groups = groups
        named = {eqn for group in groups for eqn in group}
        self._kept = [i for i, eqn in enumerate(program.eqns) if i in named or _must_stay(program, eqn)]
        self._stays = frozenset(self._kept)
        self._done: set[int] = set()
        self._steps: list[Step] = []

    def made(self) -> tuple[Step, ...]:
        for group in (*self._groups, *((eqn,) for eqn in self._kept)):
            kept: list[int] = []
            for eqn in sorted(group):
                self._emit(eqn, kept)
            self._end(kept)
        return tuple(self._steps)

    def _emit(self, eqn: int, kept: list[int]) -> None:
        """Runs an eqn, and before it what it needs and has not run: metadata don't always tell what comes first."""
        pending = [] if eqn in self._done else [eqn]
        while pending:
            missing = [e for e in self._reads[pending[-1]][0] if e not in self._done]
            if missing:
                pending.append(missing[-1])
                continue
            ready = pending.pop()
            self._done.add(ready)
            if pending and not kept:
                self._end([ready])
            else:
                kept.append(ready)

    def _end(self, kept: Sequence[int]) -> None:
        if kept:
            fused = {e for eqn in kept for e in self._reads[eqn][1]}
            self._steps.append(Step(tuple(kept), tuple(sorted(fused))))

    @functools.cached_property
    def _reads(self) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Of each kept eqn, those that it reads: kept ones, and what is fused between them.

        What has an effect reads the one before it, so that effects keep their order.
        """
        return {eqn: self._read_by(eqn) for eqn in self._kept}

    def _read_by(self, eqn: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        kept: set[int] = set(self._effect_before.get(eqn, ()))
        fused: set[int] = set()
        pending = [eqn]
        while pending:
            for maker in self._makers(pending.pop()):
                if maker in self._stays:
                    kept.add(maker)
                elif maker not in fused:
                    fused.add(maker)
                    pending.append(maker)
        return tuple(sorted(kept)), tuple(sorted(fused))

    def _makers(self, eqn: int) -> set[int]:
        producer = self._program.producer
        return {producer[a] for a in self._program.eqns[eqn].invars if is_var(a) and a in producer}

    @functools.cached_property
    def _effect_before(self) -> dict[int, tuple[int, ...]]:
        effects = [i for i, eqn in enumerate(self._program.eqns) if eqn.effects]
        return {later: (earlier,) for earlier, later in itertools.pairwise(effects)}


def _must_stay(program: Program, eqn: jex_core.JaxprEqn) -> bool:
    return bool(eqn.effects) or eqn.primitive.name not in FUSED or not program.outputs.isdisjoint(eqn.outvars)


def run_in_steps(program: Program, steps: Sequence[Step]) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, each step waiting for the one before; eqns are tagged."""

    def run(*args: Any) -> list[Any]:
        env: dict[Var, Any] = dict(zip(program.jaxpr.constvars, program.closed.consts, strict=True))
        env.update(zip(program.jaxpr.invars, args, strict=True))
        before: list[Var] = []
        for step in steps:
            eqns = sorted((*step.kept, *step.fused))
            reads = dict.fromkeys(a for i in eqns for a in program.eqns[i].invars if is_var(a) and a in env)
            _wait(env, list(reads), before)
            inner = dict(env)
            for index in eqns:
                eqn = program.eqns[index]
                values = [inner[a] if is_var(a) else a.val for a in eqn.invars]
                inner.update(zip(eqn.outvars, bind(eqn, values, f"{TAG}{index}"), strict=True))
            made = [v for index in step.kept for v in program.eqns[index].outvars]
            env.update((v, inner[v]) for v in made)
            before = [v for v in made if v in program.consumers or v in program.outputs]
        return [env[a] if is_var(a) else a.val for a in program.jaxpr.outvars]

    run.__name__ = program.name
    return run


def _wait(env: dict[Var, Any], reads: Sequence[Var], before: Sequence[Var]) -> None:
    """Makes what a step reads wait for what was made before, unless it reads some of that.

    What was made goes through the barrier with it and is read from there: XLA drops operands that nobody reads.
    """
    if not reads or not before or not set(reads).isdisjoint(before):
        return
    through = [v for v in (*before, *reads) if not jnp.issubdtype(env[v].dtype, jax.dtypes.extended)]
    for var, value in zip(through, jax.lax.optimization_barrier([env[v] for v in through]), strict=True):
        env[var] = value
