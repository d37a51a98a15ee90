"""What a rule answers with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..evaluate import Env
from ..program import Atom

Compute = Callable[[Env, Sequence[Any]], Sequence[Any]]
"""The results of an eqn, from all values so far and those of its operands."""


@dataclasses.dataclass(frozen=True)
class Cheaper:
    """Another way to compute what some eqns do.

    Attributes:
      instead: by the index of each eqn, what computes its results in its place.
      gone: the array that need not be made any more.
      why: what the new way is, for a person.
    """

    instead: Mapping[int, Compute]
    gone: Atom
    why: str
