"""Intermediates that a loop makes for itself rather than reads, as they cost it nothing."""

from __future__ import annotations

from jax.extend import core as jex_core

from ..program import Atom, Program, is_var

GENERATORS = frozenset(
    "iota broadcast_in_dim reshape squeeze transpose expand_dims convert_element_type add sub mul neg eq ne lt le gt "
    "ge and or not xor select_n min max clamp stop_gradient concatenate".split()
)


RELAYOUTS = frozenset("transpose reshape squeeze expand_dims".split())


def generated_vars(program: Program) -> frozenset[jex_core.Var]:
    """Intermediates made from nothing but scalars (masks, identity matrices, constant fills).

    XLA fuses them into whoever reads them, so they never count as memory and a loop may always make
    its own, whole or sliced.
    """
    generated: set[jex_core.Var] = set()
    for eqn in program.eqns:
        if eqn.primitive.name not in GENERATORS or eqn.effects or len(eqn.outvars) != 1:
            continue
        if all(not is_var(a) or a in generated or _is_scalar(a) for a in eqn.invars):
            generated.add(eqn.outvars[0])
    return frozenset(generated)


def relayout_vars(program: Program) -> frozenset[jex_core.Var]:
    """Other layouts of an array that only feed a dot_general, which takes any layout.

    Read from outside a loop, each would be an array of its own; made inside, it costs nothing.
    """
    return frozenset(
        eqn.outvars[0]
        for eqn in program.eqns
        if eqn.primitive.name in RELAYOUTS and _feeds_dots_only(program, eqn.outvars[0])
    )


def _feeds_dots_only(program: Program, var: jex_core.Var) -> bool:
    readers = program.consumers.get(var, ())
    return var not in program.outputs and all(program.eqns[i].primitive.name == "dot_general" for i in readers)


def _is_scalar(atom: Atom) -> bool:
    return getattr(atom.aval, "size", 1) <= 1
