"""Why a buffer can't shrink, and what a person would do about it."""

from __future__ import annotations

from collections.abc import Mapping

from jax.extend import core as jex_core

from .profile import Buffer, Profile
from .program import Program, aval_of
from .stream import Obstacle

ADVICE = {
    "cholesky": "an iterative solver (jax.scipy.sparse.linalg.cg) or inducing points need no factorisation of it",
    "triangular_solve": "an iterative solver (jax.scipy.sparse.linalg.cg) needs no factorisation of it",
    "lu": "an iterative solver (jax.scipy.sparse.linalg.cg) needs no factorisation of it",
    "eigh": "a few eigenvectors come from an iterative method (jax.experimental.sparse.linalg.lobpcg_standard)",
    "svd": "a few singular vectors come from an iterative method on products with it",
    "sort": "top_k needs no more than the k best of each chunk",
}


def blockers(
    program: Program, profile: Profile, obstacles: Mapping[jex_core.Var, Obstacle]
) -> tuple[tuple[Buffer, str], ...]:
    """The buffers alive at the peak, largest first, each with the reason it can't shrink.

    Args:
      profile: of the lowest form that the search reached.
      obstacles: what the search found in the way of each intermediate.
    """
    held = sorted((b for b in profile.buffers if b.live_at_peak and b.bytes), key=lambda b: -b.bytes)
    return tuple((b, _reason(program, b, obstacles)) for b in held)


def _reason(program: Program, buffer: Buffer, obstacles: Mapping[jex_core.Var, Obstacle]) -> str:
    if buffer.kind == "argument":
        return "it is an argument: only fewer or smaller arguments make it less"
    if buffer.kind == "constant":
        return "it is a constant captured by the function: pass it as an argument, so that it exists once"
    obstacle = _obstacle_of(program, buffer, obstacles)
    if obstacle is not None:
        name = program.eqns[obstacle.eqn].primitive.name
        where = program.sources[obstacle.eqn]
        advice = f"; {ADVICE[name]}" if name in ADVICE else ""
        return obstacle.reason + (f" ({where})" if where else "") + advice
    if buffer.kind == "output":
        return "it is a result of the function: return less, or reduce it inside"
    return "it is what one step of a loop, or a value that several loops share, takes at the least"


def _obstacle_of(program: Program, buffer: Buffer, obstacles: Mapping[jex_core.Var, Obstacle]) -> Obstacle | None:
    """The obstacle of a buffer's eqn; where that has none, of one of its shape (a fusion bears one eqn only)."""
    if buffer.eqn is None:
        return None
    own = [obstacles[v] for v in program.eqns[buffer.eqn].outvars if v in obstacles]
    if own:
        return own[0]
    return next((o for v, o in obstacles.items() if _same_size(v, buffer)), None)


def _same_size(var: jex_core.Var, buffer: Buffer) -> bool:
    return aval_of(var).shape == buffer.shape
