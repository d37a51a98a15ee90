"""Smaller arguments of the same kind: to compare values on where the function as written does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from .plan import Plan


def reduced_arguments(plan: Plan, args: Sequence[Any], room: int) -> tuple[Any, ...] | None:
    """The arguments with the axes that a plan cuts made so short that the function as written should fit.

    An argument's axis counts as one of them where it is as long as the plan's largest loop. Whether the function
    takes such arguments is not known before it is traced with them.

    Args:
      args: positional arguments of the plan's shapes.
      room: bytes that the function as written may take with the smaller ones.

    Returns:
      None where no argument has such an axis.
    """
    if not plan.loops:
        return None
    size = max(plan.loops, key=lambda loop: sum(s.bytes for s in loop.streams)).size
    steps = max(1, min(size - 1, size * room // max(1, plan.original_peak_bytes)))
    if not any(size in leaf.shape for leaf in jax.tree.leaves(args) if hasattr(leaf, "shape")):
        return None

    def shortened(leaf: Any) -> Any:
        shape = getattr(leaf, "shape", ())
        return leaf[tuple(slice(steps if n == size else n) for n in shape)] if size in shape else leaf

    return tuple(jax.tree.map(shortened, arg) for arg in args)
