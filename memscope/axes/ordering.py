"""Primitives that couple one axis from end to end (sort, top_k, cumulative ops) and leave the others free."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..program import aval_of
from .factor import Factor, shape_of
from .reduction import has_extremes
from .table import Eqn, folded, mapped, rule


@rule("sort", why="sort needs the whole axis at once")
def sort(eqn: Eqn) -> Sequence[Factor]:
    """Every axis but the sorted one, keys and values alike."""
    return _others(eqn, int(eqn.params["dimension"]))


@rule("top_k")
def top_k(eqn: Eqn) -> Sequence[Factor]:
    """Every axis; the k best of the searched one are merged with the k best of each chunk."""
    shape = shape_of(eqn.invars[0])
    axis = int(eqn.params["axis"]) % len(shape)
    return [*_others(eqn, axis), folded(shape[axis], [axis], 2, "top_k")]


@rule("approx_top_k", why="the k largest are picked from the whole axis")
def approx_top_k(eqn: Eqn) -> Sequence[Factor]:
    """Every axis but the searched one."""
    return _others(eqn, int(eqn.params["reduction_dimension"]) % len(shape_of(eqn.invars[0])))


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", why="a cumulative result depends on all rows before it")
def cumulative(eqn: Eqn) -> Sequence[Factor]:
    """Every axis; the one accumulated along in its order."""
    axis, shape = int(eqn.params["axis"]), shape_of(eqn.invars[0])
    if eqn.primitive.name in ("cummax", "cummin") and not has_extremes(aval_of(eqn.invars[0]).dtype):
        return _others(eqn, axis)
    along = mapped(shape[axis], [axis], [axis])
    order = "reverse" if eqn.params["reverse"] else "forward"
    return [*_others(eqn, axis), dataclasses.replace(along, carried=order)]


def _others(eqn: Eqn, axis: int) -> Sequence[Factor]:
    shape = shape_of(eqn.invars[0])
    return [mapped(size, [a] * len(eqn.invars), [a] * len(eqn.outvars)) for a, size in enumerate(shape) if a != axis]
