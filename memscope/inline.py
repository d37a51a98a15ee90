"""Flattening: calls inlined, dead eqns dropped, repeated eqns shared.

The rest of memscope reads one list of eqns. Inlining is by substitution, not by tracing again, so that
each eqn keeps the source line it was written on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from ._jax_private import user_frame
from .program import Atom, aval_of, is_var

Jaxpr = jex_core.Jaxpr
ClosedJaxpr = jex_core.ClosedJaxpr
Eqn = jex_core.JaxprEqn
Env = dict[jex_core.Var, Atom]


def inline(closed: ClosedJaxpr, platform: str) -> ClosedJaxpr:
    """An equivalent closed jaxpr without calls, dead eqns or repeated pure eqns.

    Args:
      closed: any closed jaxpr.
      platform: the platform whose branch a `platform_index` selects.
    """
    flat = _Flattener(platform)
    env: Env = {}
    flat.run(closed.jaxpr, env, None)
    outvars = [_read(env, a) for a in closed.jaxpr.outvars]
    constvars = [*closed.jaxpr.constvars, *flat.constvars]
    eqns = live_eqns(flat.eqns, outvars)
    used = {a for eqn in eqns for a in eqn.invars if is_var(a)} | {a for a in outvars if is_var(a)}
    kept = [(v, c) for v, c in zip(constvars, [*closed.consts, *flat.consts], strict=True) if v in used]
    effects = frozenset().union(*(eqn.effects for eqn in eqns))
    jaxpr = closed.jaxpr.replace(constvars=[v for v, _ in kept], outvars=outvars, eqns=eqns, effects=effects)
    return jex_core.ClosedJaxpr(jaxpr, [c for _, c in kept])


def has_custom_derivatives(jaxpr: Jaxpr) -> bool:
    """True where a `custom_jvp` or `custom_vjp` function is called anywhere inside."""
    return any(
        eqn.primitive.name.startswith(("custom_jvp_call", "custom_vjp_call"))
        or any(has_custom_derivatives(inner) for inner in jex_core.jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )


class _Flattener:
    def __init__(self, platform: str) -> None:
        self.platform = platform
        self.eqns: list[Eqn] = []
        self.constvars: list[jex_core.Var] = []
        self.consts: list[Any] = []
        self._const_of: dict[int, jex_core.Var] = {}
        self._seen: dict[Any, list[Atom]] = {}
        self._known: dict[jex_core.Var, int] = {}

    def run(self, jaxpr: Jaxpr, env: Env, caller: Any) -> None:
        """Appends `jaxpr`'s eqns with their vars replaced through `env`.

        `caller` is the source of the call being inlined, kept where the callee is JAX's own code: a
        cached `jnp` function carries the line of whoever called it first.
        """
        for eqn in jaxpr.eqns:
            source = eqn.source_info if caller is None else caller
            ins = [_read(env, a) for a in eqn.invars]
            for var, atom in zip(eqn.outvars, self._emit(eqn, ins, source), strict=True):
                env[var] = atom

    def _emit(self, eqn: Eqn, ins: list[Atom], source: Any) -> list[Atom]:
        name = eqn.primitive.name
        if name in _CALLS:
            return self._call(_closed(_CALLS[name](eqn.params)), ins, source)
        if name in ("remat2", "checkpoint", "remat"):
            if eqn.params.get("prevent_cse") and eqn.params.get("differentiated"):
                ins = self._barrier(ins, eqn, source)
            return self._call(_closed(eqn.params["jaxpr"]), ins, source)
        if name == "custom_linear_solve":
            return self._linear_solve(eqn, ins, source)
        if name == "cond":
            index = self._constant(ins[0])
            if index is not None:
                return self._call(_closed(eqn.params["branches"][index]), ins[1:], source)
        if name == "dynamic_slice":
            starts = [int(a.val) for a in ins[1:] if not is_var(a)]
            if len(starts) == len(ins) - 1:
                eqn, ins = _static_slice(eqn, starts), ins[:1]
        return self._append(eqn, ins, source)

    def _call(self, closed: ClosedJaxpr, ins: list[Atom], source: Any) -> list[Atom]:
        env: Env = dict(zip(closed.jaxpr.invars, ins, strict=True))
        for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            env[var] = self._constvar(var, const)
        self.run(closed.jaxpr, env, source if _is_jax_code(closed.jaxpr) else None)
        return [_read(env, a) for a in closed.jaxpr.outvars]

    def _linear_solve(self, eqn: Eqn, ins: list[Atom], source: Any) -> list[Atom]:
        lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
        first = lengths.matvec + lengths.vecmat
        solve_consts = ins[first : first + lengths.solve]
        return self._call(_closed(jaxprs.solve), [*solve_consts, *ins[sum(lengths) :]], source)

    def _barrier(self, ins: list[Atom], eqn: Eqn, source: Any) -> list[Atom]:
        """One barrier an operand: they only keep what is recomputed from being shared with the first time."""
        return [self._behind_barrier(a, eqn, source) if is_var(a) else a for a in ins]

    def _behind_barrier(self, atom: Atom, eqn: Eqn, source: Any) -> Atom:
        fresh = jex_core.Var(atom.aval)
        barrier = jex_core.new_jaxpr_eqn([atom], [fresh], _barrier_primitive(), {}, frozenset(), source, eqn.ctx)
        self.eqns.append(barrier)
        return fresh

    def _append(self, eqn: Eqn, ins: list[Atom], source: Any) -> list[Atom]:
        key = _identity(eqn, ins)
        if key is not None and key in self._seen:
            return self._seen[key]
        # An inlined jaxpr may be inlined twice: its vars must not be defined twice.
        outs = [_like(v) for v in eqn.outvars]
        params = self._flat_bodies(eqn)
        self.eqns.append(eqn.replace(invars=ins, outvars=outs, source_info=source, params=params))
        if eqn.primitive.name == "platform_index":
            self._known[outs[0]] = _platform_branch(eqn.params["platforms"], self.platform)
        if key is not None:
            self._seen[key] = list(outs)
        return list(outs)

    def _flat_bodies(self, eqn: Eqn) -> dict[str, Any]:
        """The params of an eqn with the bodies of its loops and branches flat as well."""
        names = _BODIES.get(eqn.primitive.name, ())
        flat = {name: jax.tree.map(lambda body: inline(body, self.platform), eqn.params[name]) for name in names}
        return {**eqn.params, **flat}

    def _constant(self, atom: Atom) -> int | None:
        if not is_var(atom):
            return int(atom.val)
        return self._known.get(atom)

    def _constvar(self, var: jex_core.Var, const: Any) -> jex_core.Var:
        if id(const) not in self._const_of:
            self._const_of[id(const)] = fresh = _like(var)
            self.constvars.append(fresh)
            self.consts.append(const)
        return self._const_of[id(const)]


_CALLS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "jit": lambda p: p["jaxpr"],
    "pjit": lambda p: p["jaxpr"],
    "closed_call": lambda p: p["call_jaxpr"],
    "core_call": lambda p: p["call_jaxpr"],
    "eval_jaxpr": lambda p: p["call_jaxpr"],
    "custom_jvp_call": lambda p: p["call_jaxpr"],
    "custom_vjp_call": lambda p: p["call_jaxpr"],
    "custom_vjp_call_jaxpr": lambda p: p["fun_jaxpr"],
    "custom_lin": lambda p: p["call_jaxpr"],
}


_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}


@functools.cache
def _barrier_primitive() -> jex_core.Primitive:
    """JAX exports the function, not its primitive."""
    return jax.make_jaxpr(jax.lax.optimization_barrier)(0.0).eqns[0].primitive


def _static_slice(eqn: Eqn, starts: list[int]) -> Eqn:
    """A slice whose start is known, as XLA takes it: moved back inside where it would reach out."""
    shape, sizes = aval_of(eqn.invars[0]).shape, eqn.params["slice_sizes"]
    first = tuple(max(0, min(start, have - size)) for start, have, size in zip(starts, shape, sizes, strict=True))
    limits = tuple(start + size for start, size in zip(first, sizes, strict=True))
    params = {"start_indices": first, "limit_indices": limits, "strides": None}
    return eqn.replace(primitive=jax.lax.slice_p, params=params)


def _closed(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else jex_core.ClosedJaxpr(jaxpr, [])


def _read(env: Env, atom: Atom) -> Atom:
    return env.get(atom, atom) if is_var(atom) else atom


def _like(var: jex_core.Var) -> jex_core.Var:
    return jex_core.Var(var.aval)


def _is_jax_code(jaxpr: Jaxpr) -> bool:
    """True where no eqn of a called jaxpr comes from the user's own function."""
    info = getattr(jaxpr.debug_info, "func_src_info", None) or ""
    return "/jax/" in info or "/jax\\" in info or not any(user_frame(e.source_info) for e in jaxpr.eqns)


def _platform_branch(platforms: tuple[tuple[str, ...] | None, ...], platform: str) -> int:
    for i, names in enumerate(platforms):
        if names is None or platform in names:
            return i
    raise ValueError(f"no branch of a platform-dependent computation serves {platform!r}: {platforms}")


def _identity(eqn: Eqn, ins: list[Atom]) -> Any:
    """A key equal for two eqns that compute the same value, or None where that can't be told."""
    if eqn.effects or any("jaxpr" in name or name == "branches" for name in eqn.params):
        return None
    operands = tuple(a if is_var(a) else (str(a.aval), np.asarray(a.val).tobytes()) for a in ins)
    try:
        key = (eqn.primitive, operands, tuple(sorted(eqn.params.items())), str(eqn.ctx))
        hash(key)
    except TypeError:
        return None
    return key


def live_eqns(eqns: list[Eqn], outvars: list[Atom]) -> list[Eqn]:
    """The eqns that a result or an effect depends on, in order."""
    needed = {a for a in outvars if is_var(a)}
    kept = []
    for eqn in reversed(eqns):
        if eqn.effects or any(v in needed for v in eqn.outvars):
            needed.update(a for a in eqn.invars if is_var(a))
            kept.append(eqn)
    return kept[::-1]
