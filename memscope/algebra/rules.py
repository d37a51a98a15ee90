"""A program with the eqns that a rule knows a cheaper way for computed in that way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .._jax_private import at_source
from ..cost import estimate
from ..evaluate import Env, run_program
from ..machine import machine_of
from ..program import Program, aval_of, nbytes
from ..target import Target
from ..trace import trace_flat
from .cheaper import Cheaper, Compute
from .selection import selection_product
from .sorting import first_of_sort
from .symmetry import symmetric_transpose


@dataclasses.dataclass(frozen=True)
class Simplification:
    """An array that is not made any more.

    Attributes:
      shape, dtype, bytes: of the array.
      op: the primitive that made it or read it whole, at the user's line `source`.
      why: what computes the same.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    op: str
    source: str | None
    why: str


Rule = Callable[[Program, int], Cheaper | None]
"""Of a program and the index of one of its eqns."""

RULES: tuple[Rule, ...] = (selection_product, symmetric_transpose)
CPU_RULES: tuple[Rule, ...] = (*RULES, first_of_sort)
"""How `top_k` treats NaN is the platform's own."""


def simplify(program: Program, target: Target) -> tuple[Program, tuple[Simplification, ...]]:
    """The program with all that the rules find, and what that was; the program itself where that is nothing.

    It is left as it is too where the estimate sees no gain: a product with few columns may be faster than an index.
    """
    simpler, found = apply_rules(program, target)
    machine = machine_of(target)
    if found and estimate(simpler.closed, machine).seconds <= estimate(program.closed, machine).seconds:
        return simpler, found
    return program, ()


def apply_rules(program: Program, target: Target) -> tuple[Program, tuple[Simplification, ...]]:
    """`simplify`, gain or no gain."""
    rules = CPU_RULES if target.platform == "cpu" else RULES
    instead: dict[int, Compute] = {}
    found: list[Simplification] = []
    for index in range(len(program.eqns)):
        cheaper = next((c for rule in rules if (c := rule(program, index)) is not None), None)
        if cheaper is not None:
            instead.update({at: _at_line(program, at, compute) for at, compute in cheaper.instead.items()})
            found.append(_described(program, index, cheaper))
    if not found:
        return program, ()
    return program.rewritten(trace_flat(run_program(program, instead), program, target.platform)), tuple(found)


def _described(program: Program, index: int, cheaper: Cheaper) -> Simplification:
    aval, op = aval_of(cheaper.gone), program.eqns[index].primitive.name
    return Simplification(
        tuple(aval.shape), str(aval.dtype), nbytes(cheaper.gone), op, program.sources[index], cheaper.why
    )


def _at_line(program: Program, index: int, compute: Compute) -> Compute:
    """`compute`, whose eqns carry the user's line of the one that they replace."""

    def run(env: Env, values: Sequence[Any]) -> Sequence[Any]:
        with at_source(program.eqns[index].source_info):
            return compute(env, values)

    return run
