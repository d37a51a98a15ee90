"""What may be computed again, and what that counts for beside the bytes that it saves."""

from __future__ import annotations

import enum

from jax.extend import core as jex_core

from ..axes.reduction import COMBINERS
from ..cost import CHEAP, EXPENSIVE, VIEWS
from ..program import is_var, nbytes

Eqn = jex_core.JaxprEqn


class Level(enum.Enum):
    """How much may be computed again: what takes little longer than to read it, or products and random bits too."""

    CHEAP = "cheap"
    COSTLY = "costly"


KEYS = frozenset("random_wrap random_unwrap".split())
SIMPLE = CHEAP | frozenset(COMBINERS) | KEYS | {"dynamic_slice", "split"}
COSTLY = frozenset(
    "dot_general conv_general_dilated random_bits random_fold_in random_split threefry2x32 gather cumsum cumprod "
    "cummax cummin reduce_window reduce_window_sum reduce_window_max reduce_window_min".split()
)
"""Never a sort, a decomposition, a loop, a callback, or what has an effect."""

SHARES = {"view": 0.0, "cheap": 1 / 64, "expensive": 1 / 16, "costly": 1 / 4}
"""Of a byte kept, what making a byte again counts for: two cuts that keep about as much differ in their work."""


def price(eqn: Eqn, level: Level) -> int | None:
    """Bytes that computing an eqn again counts for; None where it must not be."""
    name = eqn.primitive.name
    if eqn.effects or not (name in SIMPLE or (name in COSTLY and level is Level.COSTLY)):
        return None
    written = max(nbytes(v) for v in eqn.outvars)
    touched = max([written, *(nbytes(a) for a in eqn.invars if is_var(a))]) if name in COMBINERS else written
    return int(SHARES[_kind(name)] * touched)


def _kind(name: str) -> str:
    if name in VIEWS:
        return "view"
    if name in COSTLY:
        return "costly"
    return "expensive" if name in EXPENSIVE else "cheap"
