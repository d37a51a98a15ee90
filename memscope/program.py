"""A traced function as one flat jaxpr: what every later stage reads."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from typing import TYPE_CHECKING, Any, cast

import jax
from jax.extend import core as jex_core
from jax.tree_util import PyTreeDef

from ._jax_private import user_frame, user_line

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Atom = jex_core.Var | jex_core.Literal

LARGE_EQNS = 1000

LARGE = 1 / 8
"""An array of at least this fraction of the largest one is large."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A flat, closed jaxpr with the trees and source lines of the function it came from.

    Calls (`jit`, `custom_jvp_call`, `custom_vjp_call`, `checkpoint`, ...) are inlined and dead eqns
    are gone; `scan`, `while` and `cond` stay. Arguments and results are flat, in the order of
    `in_tree` and `out_tree`.

    Attributes:
      traced: the jaxpr before its calls were inlined, where it was traced from a function.
    """

    name: str
    closed: jex_core.ClosedJaxpr
    in_tree: PyTreeDef
    out_tree: PyTreeDef
    sources: tuple[str | None, ...]
    argument_names: tuple[str, ...]
    donated: tuple[bool, ...]
    x64: bool
    custom_derivatives: bool = False
    traced: jex_core.ClosedJaxpr | None = None

    @property
    def jaxpr(self) -> jex_core.Jaxpr:
        return self.closed.jaxpr

    @property
    def eqns(self) -> list[jex_core.JaxprEqn]:
        return self.jaxpr.eqns

    @functools.cached_property
    def producer(self) -> dict[jex_core.Var, int]:
        """The index of the eqn that defines each intermediate."""
        return {v: i for i, eqn in enumerate(self.eqns) for v in eqn.outvars}

    @functools.cached_property
    def consumers(self) -> dict[jex_core.Var, tuple[int, ...]]:
        """The indices of the eqns that read each var, in program order."""
        readers: dict[jex_core.Var, list[int]] = {}
        for i, eqn in enumerate(self.eqns):
            for v in dict.fromkeys(a for a in eqn.invars if is_var(a)):
                readers.setdefault(v, []).append(i)
        return {v: tuple(eqns) for v, eqns in readers.items()}

    @functools.cached_property
    def outputs(self) -> frozenset[jex_core.Var]:
        return frozenset(v for v in self.jaxpr.outvars if is_var(v))

    @property
    def argument_shapes(self) -> list[jax.ShapeDtypeStruct]:
        """What stands for the flat arguments when the program is traced or compiled again."""
        avals = map(aval_of, self.jaxpr.invars)
        return [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]

    @functools.cached_property
    def large_bytes(self) -> float:
        """Bytes from which an intermediate is large, among those of the program."""
        return LARGE * max((nbytes(v) for v in self.producer), default=0)

    @property
    def is_large(self) -> bool:
        """Whether tracing what it is rewritten to takes long enough to make do with fewer tries."""
        return len(self.eqns) >= LARGE_EQNS

    @property
    def as_traced(self) -> Program:
        """The same function with its calls as they were: what XLA makes of it is what a plain `jax.jit` runs.

        Inlining a call earlier than XLA does can change how XLA simplifies, and so the last bit of a result.
        """
        return self if self.traced is None else self.rewritten(self.traced)

    def rewritten(self, closed: jex_core.ClosedJaxpr) -> Program:
        """The same function with another flat jaxpr that computes it."""
        return dataclasses.replace(self, closed=closed, sources=source_lines(closed))


def source_lines(closed: jex_core.ClosedJaxpr) -> tuple[str | None, ...]:
    """The user's own line of each eqn."""
    return tuple(user_line(eqn.source_info) for eqn in closed.jaxpr.eqns)


def inner_lines(jaxpr: jex_core.Jaxpr) -> dict[tuple[str, int], str]:
    """The user's lines of what loops and branches do: as text, by the file's name without its folder and the number."""
    found: dict[tuple[str, int], str] = {}
    for eqn in jaxpr.eqns:
        for body in jex_core.jaxprs_in_params(eqn.params):
            for inner in body.eqns:
                frame, text = user_frame(inner.source_info), user_line(inner.source_info)
                if frame is not None and text is not None:
                    found[os.path.basename(frame[0]), frame[1]] = text
            found.update(inner_lines(body))
    return found


def is_var(atom: Any) -> TypeIs[jex_core.Var]:
    return isinstance(atom, jex_core.Var)


def aval_of(atom: Atom) -> jax.core.ShapedArray:
    """The aval of an atom that is an array."""
    return cast(jax.core.ShapedArray, atom.aval)


def nbytes(atom: Atom) -> int:
    """Bytes of an array of this aval, before layout and padding; 0 for tokens and the like."""
    return aval_bytes(atom.aval)


def aval_bytes(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or dtype is None:
        return 0
    return math.prod(shape) * dtype.itemsize
