"""How axes flow through one eqn: the vocabulary of the rules.

A rule states an eqn's *factors*, as einsum does: `n k, m k -> n m` has the factors n, m and k. Streaming
a program along an axis means running each eqn on a window of one factor at a time, so the factors are
all that the rest of memscope needs to know about a primitive.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any


@dataclasses.dataclass(frozen=True)
class At:
    """Where a factor lies in one operand or result: `unit` rows of `axis` per step of the factor."""

    axis: int
    unit: int = 1


@dataclasses.dataclass(frozen=True)
class Share:
    """A summand: in a loop of `steps` steps, the shares of all chunks add up to the array.

    So a gradient that a scan accumulates is split by batch: each chunk of the batch accumulates its share.
    """

    steps: int


@dataclasses.dataclass(frozen=True)
class Factor:
    """One independent index of an eqn.

    Attributes:
      size: number of steps.
      ins, outs: its place in each operand and result; None where it does not occur, so that the
        operand is needed whole (a factor without any operand is *generated*: iota, broadcast), or a
        `Share`, where the steps only contribute to a sum.
      fold: for a factor that no result has, the name of the combiner that joins partial results.
      carried: the steps depend on each other: "forward" where each needs the one before, "reverse" where each
        needs the one after.
    """

    size: int
    ins: tuple[At | Share | None, ...]
    outs: tuple[At | Share | None, ...]
    fold: str | None = None
    carried: str | None = None

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.size, self.ins, self.outs, self.fold, self.carried))

    def __hash__(self) -> int:  # kept, as a search asks for it millions of times
        return self._hash


@dataclasses.dataclass(frozen=True)
class Window:
    """Rows `[scale*start + shift, scale*(start + steps) + shift + extra)` of an axis, in a loop at `start`.

    Rows outside the array hold arbitrary valid data, which whoever asked for them masks. `extra` rows are a halo:
    those of the next chunk that overlapping windows reach into.
    """

    axis: int
    scale: int = 1
    shift: int = 0
    extra: int = 0


Extent = Window | Share | None
"""How much of an array: a window of it, a share of it, or all."""


class Blocked(Exception):
    """An eqn can't be computed window by window as asked. `reason` ends the sentence "because ..."."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Misaligned(Blocked):
    """Windows of `unit` rows are needed where a single row was asked for."""

    def __init__(self, unit: int) -> None:
        super().__init__(f"rows are only separable in groups of {unit}")
        self.unit = unit


def shape_of(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


def through(at: At, window: Window) -> tuple[int, int, int]:
    """The window in steps of the factor: (scale, shift, extra)."""
    if window.scale % at.unit or window.shift % at.unit or window.extra % at.unit:
        raise Misaligned(at.unit)
    return window.scale // at.unit, window.shift // at.unit, window.extra // at.unit


def onto(at: At, scale: int, shift: int, extra: int = 0) -> Window:
    """The window of an operand's axis that covers those steps of the factor."""
    return Window(at.axis, scale * at.unit, shift * at.unit, extra * at.unit)
