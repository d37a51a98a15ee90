"""Primitives that couple one axis from end to end (sort, top_k, cumulative ops) and leave the others free."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .factor import Factor, shape_of
from .table import Eqn, mapped, rule


@rule("sort", why="sort needs the whole axis at once")
def sort(eqn: Eqn) -> Sequence[Factor]:
    """Every axis but the sorted one, keys and values alike."""
    return _others(eqn, int(eqn.params["dimension"]))


@rule("top_k", "approx_top_k", why="the k largest are picked from the whole axis")
def top_k(eqn: Eqn) -> Sequence[Factor]:
    """Every axis but the searched one."""
    rank = len(shape_of(eqn.invars[0]))
    name = "axis" if "axis" in eqn.params else "reduction_dimension"
    return _others(eqn, int(eqn.params.get(name, rank - 1)) % rank)


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", why="a cumulative result depends on all rows before it")
def cumulative(eqn: Eqn) -> Sequence[Factor]:
    """Every axis; the one accumulated along in its order."""
    axis, shape = int(eqn.params["axis"]), shape_of(eqn.invars[0])
    along = mapped(shape[axis], [axis], [axis])
    order = "reverse" if eqn.params["reverse"] else "forward"
    return [*_others(eqn, axis), dataclasses.replace(along, carried=order)]


def _others(eqn: Eqn, axis: int) -> Sequence[Factor]:
    shape = shape_of(eqn.invars[0])
    return [mapped(size, [a] * len(eqn.invars), [a] * len(eqn.outvars)) for a, size in enumerate(shape) if a != axis]
