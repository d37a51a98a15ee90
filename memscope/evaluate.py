"""Binding a jaxpr's eqns again, one by one, under whatever trace is current."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend import source_info_util

from ._jax_private import at_source
from .program import Program, is_var

TAG = "e"  # HLO instructions of eqn 17 carry "/e17/" in their op_name: the way back to the user's line


def bind(eqn: jex_core.JaxprEqn, values: Sequence[Any], tag: str | None = None, **params: Any) -> list[Any]:
    """Binds `eqn` to `values`, with `params` in place of its own where given.

    The new eqn keeps the source line of the old one; `tag` names its scope in the compiled HLO.
    """
    primitive = eqn.primitive
    bind_params = primitive.get_bind_params({**eqn.params, **params})
    stack = source_info_util.current_name_stack()
    if tag is not None:
        stack = stack.extend(tag)
    with at_source(eqn.source_info, stack), eqn.ctx.manager:
        outs = primitive.bind(*values, **bind_params)
    return list(outs) if primitive.multiple_results else [outs]


Env = Mapping[jex_core.Var, Any]
Instead = Mapping[int, Callable[[Env, Sequence[Any]], Sequence[Any]]]
"""For an eqn, what computes its results in its place: from all values so far, and those of its operands."""


def run_program(program: Program, instead: Instead | None = None) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, each eqn tagged with its index."""
    others = instead or {}

    def run(*args: Any) -> list[Any]:
        env: dict[jex_core.Var, Any] = dict(zip(program.jaxpr.constvars, program.closed.consts, strict=True))
        env.update(zip(program.jaxpr.invars, args, strict=True))
        for i, eqn in enumerate(program.eqns):
            values = values_of(env, eqn)
            outs = others[i](env, values) if i in others else bind(eqn, values, f"{TAG}{i}")
            env.update(zip(eqn.outvars, outs, strict=True))
        return [env[a] if is_var(a) else a.val for a in program.jaxpr.outvars]

    run.__name__ = program.name
    return run


def values_of(env: Env, eqn: jex_core.JaxprEqn) -> list[Any]:
    """The values of an eqn's operands."""
    return [env[a] if is_var(a) else a.val for a in eqn.invars]


@contextlib.contextmanager
def precision_of(program: Program) -> Any:
    """The x64 mode the program was traced in: outside it, float64 is silently cut to float32."""
    with jax.enable_x64(program.x64):
        yield
