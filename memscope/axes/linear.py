"""Linearity: from shares of an eqn's operands to a share of its result.

Where an eqn is linear in some operands, the sum over all chunks may be taken after it rather than before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from ..program import Atom, aval_of, is_var
from .factor import Factor, Share
from .table import Eqn

Shared = Sequence[int]
"""The operands that have to be shares at the same time; the others are needed whole."""

TOGETHER = frozenset("add add_any sub concatenate select_n scatter-add dynamic_update_slice pad stack".split())
"""Linear in all their operands at once, but for those that say where (`PLACES`)."""

ADDING = frozenset("add add_any sub".split())
"""Of these, the ones that may have a number as an operand: the first chunk adds it."""

PLACES: dict[str, Callable[[int], Sequence[int]]] = {
    "select_n": lambda count: [0],
    "scatter-add": lambda count: [1],
    "dynamic_update_slice": lambda count: range(2, count),
}

EACH = frozenset("mul dot_general conv_general_dilated".split())
"""Linear in each of their operands by itself."""

FIRST = frozenset(
    "neg transpose reshape squeeze expand_dims broadcast_in_dim reduce_sum slice dynamic_slice gather rev cumsum div "
    "real imag conj copy convert_element_type split".split()
)
"""Linear in their first operand."""

SECOND = frozenset({"triangular_solve"})
"""Linear in their second operand."""


def linear_factors(eqn: Eqn, steps: int) -> list[Factor]:
    """The ways to make a share of the results of an eqn from shares of its operands."""
    share = Share(steps)
    return [
        Factor(
            steps,
            tuple(share if i in shared else None for i in range(len(eqn.invars))),
            (share,) * len(eqn.outvars),
        )
        for shared in linear_operands(eqn)
        if eqn.outvars and all(_sums(v) for v in eqn.outvars) and all(_sums(eqn.invars[i]) for i in shared)
    ]


def linear_operands(eqn: Eqn) -> list[Shared]:
    """Sets of operands that an eqn is linear in, all of a set together."""
    name, count = eqn.primitive.name, len(eqn.invars)
    if name in TOGETHER:
        places = PLACES.get(name, lambda count: [])(count)
        shared = [i for i in range(count) if i not in places and not _is_zero(eqn.invars[i])]
        return [shared] if name in ADDING or all(is_var(eqn.invars[i]) for i in shared) else []
    if name in EACH:
        return [[i] for i in range(count) if is_var(eqn.invars[i])]
    if name in FIRST or (name == "optimization_barrier" and count == 1):
        return [[0]] if eqn.params.get("fill_value") is None else []
    return [[1]] if name in SECOND else []


def _is_zero(atom: Atom) -> bool:
    return not is_var(atom) and not np.any(atom.val)


def _sums(atom: Atom) -> bool:
    """True for numbers that are added without wrapping, clipping or rounding to whole ones."""
    return bool(jnp.issubdtype(aval_of(atom).dtype, jnp.inexact))
