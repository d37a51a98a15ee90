"""What happens inside a loop: the body of a `scan` or a `while`, or a branch, as a program of its own.

A large array that a loop only reads, as the cost matrix of Sinkhorn iterations or the kernel of conjugate
gradients, is kept for all its iterations. Made inside the body instead, it can be streamed there like any other
intermediate, at the price of making it again in each iteration.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend import core as jex_core

from .axes.reduction import COMBINERS
from .cost import CHEAP
from .evaluate import bind, run_program, values_of
from .program import Program, aval_of, is_var, nbytes
from .sharded import run_sharded, sharded_bodies
from .stream.control import FRAMES, RUNNERS, Frame, frame_of
from .stream.early import early_slices, take_early
from .target import Target
from .trace import trace_flat

Var = jex_core.Var
ClosedJaxpr = jex_core.ClosedJaxpr
Place = tuple[int, int]
"""An eqn, and which of its bodies."""

Cones = dict[int, list[int]]
"""For an operand of a loop's bodies, by position, the eqns that make it."""

MOVABLE = CHEAP | frozenset(COMBINERS) | {"dot_general", "gather", "select_n"}
"""What may be computed again in each iteration: nothing that takes much longer than to read its result."""

SMALL = 1 / 4
"""An array of less than this fraction of the one that is made from it is read from outside the loop."""


def inner_programs(program: Program) -> dict[Place, Program]:
    """The bodies of a program's loops, branches and `shard_map`s."""
    return {
        (index, which): dataclasses.replace(body, x64=program.x64, name=f"{program.name}: {eqn.primitive.name} body")
        for index, eqn in enumerate(program.eqns)
        for which, body in enumerate(_bodies_of(eqn))
    }


def _bodies_of(eqn: jex_core.JaxprEqn) -> tuple[Program, ...]:
    if eqn.primitive.name == "shard_map":
        return sharded_bodies(eqn)
    return frame_of(eqn).bodies if eqn.primitive.name in FRAMES else ()


@dataclasses.dataclass(frozen=True)
class Moved:
    """An array that a loop reads, made inside it: nothing of it exists outside.

    Attributes:
      shape, dtype, bytes: of the whole array.
      op: the primitive that makes it, at the user's line `source`.
      loop: the primitive whose body it is made in, at the line `within`.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    op: str
    source: str | None
    loop: str
    within: str | None


def moved_arrays(program: Program, at_least: int) -> tuple[Moved, ...]:
    """What `move_in` moves."""
    found = []
    for index, cones in _moves(program, at_least).items():
        eqn = program.eqns[index]
        for position in cones:
            var = eqn.invars[frame_of(eqn).operands[position]]
            assert is_var(var)
            maker = program.producer[var]
            name, source = program.eqns[maker].primitive.name, program.sources[maker]
            shape, dtype = aval_of(var).shape, str(aval_of(var).dtype)
            found.append(Moved(shape, dtype, nbytes(var), name, source, eqn.primitive.name, program.sources[index]))
    return tuple(found)


def move_in(program: Program, target: Target, at_least: int) -> Program:
    """The program with what makes the large arrays that its loops only read moved into their bodies.

    Args:
      at_least: bytes from which an array is large.
    """
    moves = _moves(program, at_least)
    return _retraced(program, target, moves, {}) if moves else program


def _moves(program: Program, at_least: int) -> dict[int, Cones]:
    return {
        index: cones
        for index, eqn in enumerate(program.eqns)
        if eqn.primitive.name in FRAMES and (cones := _cones(program, frame_of(eqn), eqn, at_least))
    }


def move_slices(program: Program, target: Target, at_least: int) -> Program:
    """The program with slices of large arrays taken before those are computed, in its bodies."""
    bodies: dict[Place, ClosedJaxpr] = {}
    for place, body in inner_programs(program).items():
        early = early_slices(body, at_least)
        if early:
            instead = {index: functools.partial(take_early, body, each) for index, each in early.items()}
            bodies[place] = trace_flat(run_program(body, instead), body, target.platform)
    return with_bodies(program, target, bodies) if bodies else program


def with_bodies(program: Program, target: Target, bodies: Mapping[Place, ClosedJaxpr]) -> Program:
    """The program with some bodies replaced by others that compute the same."""
    return _retraced(program, target, {}, bodies)


def _cones(program: Program, frame: Frame, eqn: jex_core.JaxprEqn, at_least: int) -> Cones:
    cones = {}
    for position, operand in enumerate(frame.operands):
        atom = eqn.invars[operand]
        is_read_only = position not in frame.ties and position not in frame.stacked_ins
        if is_read_only and is_var(atom) and nbytes(atom) >= at_least:
            cone = _cone(program, atom)
            if cone:
                cones[position] = cone
    return cones


def _cone(program: Program, var: Var) -> list[int]:
    """The eqns that make `var` from small arrays; none where some of them should not run again."""
    cone: set[int] = set()
    pending = [var]
    while pending:
        index = program.producer.get(pending.pop())
        if index is None:
            return []
        eqn = program.eqns[index]
        if eqn.primitive.name not in MOVABLE or eqn.effects:
            return []
        if index not in cone:
            cone.add(index)
            pending += [a for a in eqn.invars if is_var(a) and nbytes(a) >= SMALL * nbytes(var)]
    return sorted(cone)


def _retraced(
    program: Program, target: Target, moved: Mapping[int, Cones], bodies: Mapping[Place, ClosedJaxpr]
) -> Program:
    def replaced(index: int) -> Callable[..., list[Any]]:
        eqn = program.eqns[index]

        def run(env: Mapping[Var, Any], values: Sequence[Any]) -> list[Any]:
            return _RUNNERS[eqn.primitive.name](eqn, values, _body(program, index, env, moved.get(index, {}), bodies))

        return run

    instead = {index: replaced(index) for index in (*moved, *(index for index, _ in bodies))}
    return program.rewritten(trace_flat(run_program(program, instead), program, target.platform))


_RUNNERS: dict[str, Callable[..., list[Any]]] = {**RUNNERS, "shard_map": run_sharded}


def _body(
    program: Program, index: int, env: Mapping[Var, Any], cones: Cones, bodies: Mapping[Place, ClosedJaxpr]
) -> Callable[[int, Sequence[Any]], list[Any]]:
    """The body of a loop as a function of what `RUNNERS` gives it, with what is moved into it."""
    eqn = program.eqns[index]

    def body(which: int, values: Sequence[Any]) -> list[Any]:
        given = list(values)
        for position, cone in cones.items():
            local = dict(env)
            for each in cone:
                made = program.eqns[each]
                local.update(zip(made.outvars, bind(made, values_of(local, made)), strict=True))
            moved = eqn.invars[frame_of(eqn).operands[position]]
            assert is_var(moved)
            given[position] = local[moved]
        closed = bodies.get((index, which), _bodies_of(eqn)[which].closed)
        return list(jex_core.jaxpr_as_fun(closed)(*given))

    return body
