"""The body of a `shard_map`: what one device computes on its shard, as a program of its own.

Only a body without collectives is taken apart: what devices tell each other has to happen in the same order on
all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from .evaluate import bind
from .program import Program, aval_of, is_var
from .stream.control import body_program

Eqn = jex_core.JaxprEqn

TYPE_ONLY = frozenset({"pvary", "pbroadcast", "pcast"})
"""Primitives that say along which mesh axes a value differs, and compute nothing."""


def sharded_bodies(eqn: Eqn) -> tuple[Program, ...]:
    """The body, without its mesh; none where it talks to other devices."""
    return _without_mesh(eqn.params["jaxpr"])


@functools.lru_cache(maxsize=64)
def _without_mesh(jaxpr: jex_core.Jaxpr) -> tuple[Program, ...]:
    shapes = [jax.ShapeDtypeStruct(aval_of(v).shape, aval_of(v).dtype) for v in jaxpr.invars]
    try:
        traced = jax.jit(lambda *args: _evaluate(jaxpr, args)).trace(*shapes)
    except NameError:  # a collective: its mesh axis is unbound here
        return ()
    return (body_program(traced.jaxpr),)


def run_sharded(eqn: Eqn, values: Sequence[Any], body: Callable[[int, Sequence[Any]], list[Any]]) -> list[Any]:
    """The `shard_map` with another body."""
    params = eqn.params
    run = jax.shard_map(
        lambda *shards: tuple(body(0, shards)),
        mesh=params["mesh"],
        in_specs=params["in_specs"],
        out_specs=params["out_specs"],
        axis_names=params["newly_manual_axes"],
        check_vma=False,
    )
    return list(run(*values))


def _evaluate(jaxpr: jex_core.Jaxpr, args: Sequence[Any]) -> tuple[Any, ...]:
    env = dict(zip(jaxpr.invars, args, strict=True))

    def value(atom: Any) -> Any:
        return env[atom] if is_var(atom) else atom.val

    for each in jaxpr.eqns:
        values = [value(a) for a in each.invars]
        outs = values if each.primitive.name in TYPE_ONLY else bind(each, values)
        env.update(zip(each.outvars, outs, strict=True))
    return tuple(value(a) for a in jaxpr.outvars)
