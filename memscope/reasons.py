"""Why a buffer can't shrink, and what a person would do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from jax.extend import core as jex_core

from .profile import Buffer, Profile
from .program import Program, aval_of, is_var
from .stream import Obstacle
from .stream.control import FRAMES, frame_of

ADVICE = {
    "cholesky": "an iterative solver (jax.scipy.sparse.linalg.cg) or inducing points need no factorisation of it",
    "triangular_solve": "an iterative solver (jax.scipy.sparse.linalg.cg) needs no factorisation of it",
    "lu": "an iterative solver (jax.scipy.sparse.linalg.cg) needs no factorisation of it",
    "eigh": "a few eigenvectors come from an iterative method (jax.experimental.sparse.linalg.lobpcg_standard)",
    "svd": "a few singular vectors come from an iterative method on products with it",
    "sort": "top_k needs no more than the k best of each chunk",
}


@dataclasses.dataclass(frozen=True)
class Hindrance:
    """What the search found in the way of one intermediate.

    Attributes:
      var: the intermediate.
      reason: the end of a sentence that begins "because".
      primitive: what needs it whole, and `source`, the user's line of that.
    """

    var: jex_core.Var
    reason: str
    primitive: str
    source: str | None


def hindrances(program: Program, obstacles: Mapping[jex_core.Var, Obstacle]) -> list[Hindrance]:
    """The obstacles in a program, each with what it takes to tell a person."""
    return [
        Hindrance(var, o.reason, program.eqns[o.eqn].primitive.name, program.sources[o.eqn])
        for var, o in obstacles.items()
        if not o.across
    ]


def blockers(program: Program, profile: Profile, found: Iterable[Hindrance]) -> tuple[tuple[Buffer, str], ...]:
    """The buffers alive at the peak, largest first, each with the reason it can't shrink.

    Args:
      profile: of the lowest form that the search reached.
      found: what the search found in the way of each intermediate.
    """
    known = list(found)
    held = sorted((b for b in profile.buffers if b.live_at_peak and b.bytes), key=lambda b: -b.bytes)
    return tuple((b, _reason(program, b, known)) for b in held)


def _reason(program: Program, buffer: Buffer, found: list[Hindrance]) -> str:
    if buffer.kind == "argument":
        return "it is an argument: only fewer or smaller arguments make it less"
    if buffer.kind == "constant":
        return "it is a constant captured by the function: pass it as an argument, so that it exists once"
    hindrance = _hindrance_of(program, buffer, found)
    if hindrance is not None:
        advice = f"; {ADVICE[hindrance.primitive]}" if hindrance.primitive in ADVICE else ""
        return hindrance.reason + (f" ({hindrance.source})" if hindrance.source else "") + advice
    if buffer.kind == "output":
        return _why_output(program, buffer)
    name = None if buffer.eqn is None else program.eqns[buffer.eqn].primitive.name
    if name in FRAMES:
        return f"it is the state of the {name}, or what one of its steps takes"
    return "it is what one step of a loop, or a value that several loops share, takes at the least"


def _hindrance_of(program: Program, buffer: Buffer, found: list[Hindrance]) -> Hindrance | None:
    """What is in the way of a buffer's eqn; else of one of its shape, as a fusion bears the name of one eqn only."""
    if buffer.eqn is None:
        return None
    own = [h for h in found if h.var in program.eqns[buffer.eqn].outvars]
    return next(iter(own), None) or next((h for h in found if aval_of(h.var).shape == buffer.shape), None)


def _why_output(program: Program, buffer: Buffer) -> str:
    names = dict(zip(program.jaxpr.invars, program.argument_names, strict=True))
    for var in program.outputs:
        if (aval_of(var).shape, str(aval_of(var).dtype)) != (buffer.shape, buffer.dtype):
            continue
        given = _stacked_back(program, var) or var
        if given in names:
            return (
                f"it is a copy of the argument {names[given]}, which comes back unchanged, so that it exists twice: "
                "leave it out of the results (a scan's body need not return what it is given), or donate it"
            )
        updated = _updated(program, var)
        if updated in names:
            return (
                f"it is the argument {names[updated]} with some of it replaced, beside the old one: donate it "
                f"(donate_argnums), so that it is changed in place"
            )
    return "it is a result of the function: return less, or reduce it inside"


def _stacked_back(program: Program, var: jex_core.Var) -> jex_core.Var | None:
    """What a scan is given and stacks again as it is; None where `var` is no such result."""
    index = program.producer.get(var)
    eqn = None if index is None else program.eqns[index]
    if eqn is None or eqn.primitive.name != "scan":
        return None
    frame = frame_of(eqn)
    body = frame.bodies[0].jaxpr
    out = body.outvars[eqn.outvars.index(var)]
    given = next((a for i, a in enumerate(eqn.invars) if i in frame.stacked_ins and body.invars[i] is out), None)
    return given if is_var(given) else None


def _updated(program: Program, var: jex_core.Var) -> jex_core.Var | None:
    """What a result is an update of: by scatters and slices written into it, or step by step in a loop."""
    while (index := program.producer.get(var)) is not None:
        eqn = program.eqns[index]
        name = eqn.primitive.name
        if name.startswith("scatter") or name == "dynamic_update_slice":
            before = eqn.invars[0]
        elif name in FRAMES:
            frame = frame_of(eqn)
            back = {out: frame.operands[i] for i, out in frame.ties.items()}
            out = eqn.outvars.index(var)
            if out not in back:
                return None
            before = eqn.invars[back[out]]
        else:
            return None
        if not is_var(before):
            return None
        var = before
    return var
