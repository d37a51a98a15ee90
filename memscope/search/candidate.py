"""What a search tries, and what it finds: a rewritten program, and that as XLA accounts for it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from jax.extend import core as jex_core

from ..algebra import Simplification
from ..barriers import Ordering
from ..compile import Build, Compiled
from ..cost import Estimate
from ..inside import Moved
from ..library import suits_library
from ..program import Program
from ..recompute import Recomputed
from ..stream import LoopPlan, Resident
from ..stream.reductions import Form
from ..structures import Structure

EFFORT, COMPILE_EFFORT = 16_000, 200
"""Eqns that may be compiled before no more loops are taken apart, and what each compile counts for beside its eqns.

Some fifteen to thirty seconds; what one axis alone reaches is searched through whatever it takes.
"""

LIBRARY_GAIN = 1.3
"""How much faster a chunk runs in the plain build, by what it may be estimated to take longer.

Of 22 rewritten reports that it suits, 18 ran faster in it: 0.79 times as long in the geometric mean.
"""


@dataclasses.dataclass(frozen=True)
class Rearranged:
    """An array that is computed at another point than as written, from the same.

    Attributes:
      op: the primitive that makes it, at the user's line `source`.
      why: what is done, for a person.
    """

    shape: tuple[int, ...]
    dtype: str
    op: str
    source: str | None
    why: str


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A rewritten program, traced and estimated.

    Attributes:
      structure, chunk_bytes, chunks: its loops and their chunks; None where only bodies are rewritten.
      form: how the reductions inside its loops are written.
      resident: rows that one of its loops keeps for later ones.
      bodies: what loops and branches of the program have got as their bodies.
      moved: what is made inside them now.
      simplified: what is not made any more.
      rearranged: what is computed at another point, so that loops need not run twice.
      recomputed: what is dropped and made again later.
      program: what its eqns are the eqns of, where that is not the program that was searched.
      order: the order that its eqns are kept in by barriers, where it is not XLA's.
      scheduled_by: whose order its HLO instructions run in, where it is not XLA's default.
    """

    closed: jex_core.ClosedJaxpr
    estimate: Estimate
    structure: Structure | None
    chunk_bytes: int = 0
    chunks: Mapping[LoopPlan, int] = dataclasses.field(default_factory=dict)
    form: Form = Form.BLOCKS
    resident: Resident | None = None
    bodies: tuple[Candidate, ...] = ()
    moved: tuple[Moved, ...] = ()
    simplified: tuple[Simplification, ...] = ()
    rearranged: tuple[Rearranged, ...] = ()
    recomputed: tuple[Recomputed, ...] = ()
    program: Program | None = None
    order: Ordering | None = None
    scheduled_by: str | None = None

    @functools.cached_property
    def suits_library(self) -> bool:
        """Whether it may run faster in XLA's plain build."""
        return suits_library(self.closed, self.estimate)


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """A candidate as XLA accounts for it.

    Attributes:
      program: what its eqns are the eqns of, or were before they were streamed.
      candidate: None for the program as written.
    """

    program: Program
    candidate: Candidate | None
    compiled: Compiled

    @property
    def peak_bytes(self) -> int:
        return self.compiled.bound_bytes

    @property
    def seconds(self) -> float:
        """An estimate that tells rewritten programs apart."""
        gain = LIBRARY_GAIN if self.compiled.build is Build.PLAIN else 1.0
        return self.candidate.estimate.seconds / gain if self.candidate else 0.0


class Effort:
    """What planning has taken so far, whichever search of one function it went to."""

    def __init__(self) -> None:
        self.spent = 0

    def compiles(self, jaxpr: jex_core.Jaxpr) -> None:
        self.spent += COMPILE_EFFORT + eqn_count(jaxpr)

    @property
    def is_over(self) -> bool:
        return self.spent > EFFORT


def eqn_count(jaxpr: jex_core.Jaxpr) -> int:
    """Eqns of a jaxpr and of the bodies in it."""
    return len(jaxpr.eqns) + sum(
        eqn_count(inner) for eqn in jaxpr.eqns for inner in jex_core.jaxprs_in_params(eqn.params)
    )
