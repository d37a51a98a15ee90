"""Primitives that move, add, drop or regroup axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .factor import At, Factor, shape_of
from .table import Eqn, mapped, resize, rule


@rule("broadcast_in_dim")
def broadcast_in_dim(eqn: Eqn) -> Sequence[Factor]:
    """`n -> n m`: an axis that the operand has is mapped, a new or stretched one is generated."""
    operand, result = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    source = {int(d): i for i, d in enumerate(eqn.params["broadcast_dimensions"])}
    rest = [None] * (len(eqn.invars) - 1)
    places = []
    for axis, size in enumerate(result):
        at = source.get(axis)
        kept = at if at is not None and operand[at] == size else None
        places.append(mapped(size, [kept, *rest], [axis]))
    return places


@resize("broadcast_in_dim")
def _broadcast_shape(eqn: Eqn, factor: Factor, steps: int) -> dict[str, Any]:
    return {"shape": _resized(eqn, factor, steps), "sharding": None}


@rule("tile", why="the array is repeated along this axis, so that each of its rows occurs in many places")
def tile(eqn: Eqn) -> Sequence[Factor]:
    """`n m -> n (r m)`: an axis that occurs once is mapped; of others the repetitions are generated."""
    factors = []
    for axis, (size, reps) in enumerate(zip(shape_of(eqn.invars[0]), eqn.params["reps"], strict=True)):
        factors.append(mapped(size, [axis], [axis]) if reps == 1 else Factor(reps, (None,), (At(axis, size),)))
    return factors


@resize("tile")
def _repetitions(eqn: Eqn, factor: Factor, steps: int) -> dict[str, Any]:
    at, reps = factor.outs[0], list(eqn.params["reps"])
    assert isinstance(at, At)
    if factor.ins[0] is None:
        reps[at.axis] = steps
    return {"reps": tuple(reps)}


@rule("iota", "empty")
def iota(eqn: Eqn) -> Sequence[Factor]:
    """Generated along every axis."""
    return [mapped(size, [None] * len(eqn.invars), [axis]) for axis, size in enumerate(eqn.params["shape"])]


@resize("empty")
def _empty_shape(eqn: Eqn, factor: Factor, steps: int) -> dict[str, Any]:
    return {"shape": _resized(eqn, factor, steps), "out_sharding": None}


@rule("transpose")
def transpose(eqn: Eqn) -> Sequence[Factor]:
    """`n m -> m n`."""
    shape = shape_of(eqn.outvars[0])
    return [mapped(shape[i], [source], [i]) for i, source in enumerate(eqn.params["permutation"])]


@rule("squeeze")
def squeeze(eqn: Eqn) -> Sequence[Factor]:
    """`1 n -> n`."""
    shape = shape_of(eqn.invars[0])
    dropped = {int(d) % len(shape) for d in eqn.params["dimensions"]}
    kept = [axis for axis in range(len(shape)) if axis not in dropped]
    return [mapped(shape[source], [source], [axis]) for axis, source in enumerate(kept)]


@rule("reshape", why="this reshape regroups the axis in a way that no window follows")
def reshape(eqn: Eqn) -> Sequence[Factor]:
    """`(a b) c -> a (b c)`: the leading part of each group of axes that regroup together is a factor."""
    if eqn.params.get("dimensions") is not None:
        return []
    operand, result = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    rest = (None,) * (len(eqn.invars) - 1)
    places = []
    for ins, outs in _groups(operand, result):
        places += [
            Factor(size, (At(i, i_unit), *rest), (At(o, o_unit),))
            for size, i, i_unit, o, o_unit in _leading(operand, ins, result, outs)
        ]
    return places


@resize("reshape")
def _new_sizes(eqn: Eqn, factor: Factor, steps: int) -> dict[str, Any]:
    return {"new_sizes": _resized(eqn, factor, steps), "sharding": None}


@rule("split", "unstack", why="this axis is taken apart into several arrays")
def split(eqn: Eqn) -> Sequence[Factor]:
    """Every axis but the one that is split."""
    shape, axis = shape_of(eqn.invars[0]), int(eqn.params["axis"])
    if eqn.primitive.name == "split":
        return [mapped(s, [a], [a] * len(eqn.outvars)) for a, s in enumerate(shape) if a != axis]
    return [mapped(s, [a], [a - (a > axis)] * len(eqn.outvars)) for a, s in enumerate(shape) if a != axis]


@rule("stack", why="the stack joins arrays along this axis")
def stack(eqn: Eqn) -> Sequence[Factor]:
    """Every axis but the new one."""
    axis = int(eqn.params["axis"])
    shape = shape_of(eqn.invars[0])
    return [mapped(s, [a] * len(eqn.invars), [a + (a >= axis)]) for a, s in enumerate(shape)]


@rule("rev", why="rev reads the axis from its end")
def rev(eqn: Eqn) -> Sequence[Factor]:
    """Every axis that keeps its direction."""
    turned = {int(d) for d in eqn.params["dimensions"]}
    return [mapped(s, [a], [a]) for a, s in enumerate(shape_of(eqn.outvars[0])) if a not in turned]


def _resized(eqn: Eqn, factor: Factor, steps: int) -> tuple[int, ...]:
    at = factor.outs[0]
    assert isinstance(at, At)
    shape = list(shape_of(eqn.outvars[0]))
    shape[at.axis] = steps * at.unit
    return tuple(shape)


def _groups(operand: tuple[int, ...], result: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Splits both shapes into the smallest runs of axes with equal products."""
    if 0 in operand:
        return []
    groups, i, o = [], 0, 0
    while i < len(operand) and o < len(result):
        ins, outs, left, right = [i], [o], operand[i], result[o]
        i, o = i + 1, o + 1
        while left != right:
            if left < right:
                left, ins, i = left * operand[i], [*ins, i], i + 1
            else:
                right, outs, o = right * result[o], [*outs, o], o + 1
        groups.append((ins, outs))
    return groups


def _leading(
    operand: tuple[int, ...], ins: list[int], result: tuple[int, ...], outs: list[int]
) -> list[tuple[int, int, int, int, int]]:
    """The factor that varies slowest in one group: (size, operand axis, unit, result axis, unit).

    Only a prefix of the row-major order is contiguous in both shapes, so one factor a group: of the
    larger unit where the leading sizes differ and share a divisor.
    """
    ins = [a for a in ins if operand[a] != 1] or ins[:1]
    outs = [a for a in outs if result[a] != 1] or outs[:1]
    lead_in, lead_out = operand[ins[0]], result[outs[0]]
    size = math.gcd(lead_in, lead_out)
    if size == 1 < lead_in:
        return []
    return [(size, ins[0], lead_in // size, outs[0], lead_out // size)]
