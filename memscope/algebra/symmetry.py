"""Matrices that equal their transpose by construction, which then need not be made.

`jnp.linalg.cholesky` and `eigh` take the mean of a matrix and its transpose first. That of a kernel matrix is the
matrix itself, to the last bit where distances are summed up from differences: `(a - b)**2` is `(b - a)**2`. To read it
by its columns costs XLA CPU more than to make it, in a loop over many such matrices most of the time.
"""

from __future__ import annotations

from collections.abc import Callable

from jax.extend import core as jex_core

from ..axes.elementwise import ELEMENTWISE
from ..axes.factor import shape_of
from ..program import Atom, Program, is_var, nbytes
from .along import Eqn, eqn_of
from .cheaper import Cheaper

Var = jex_core.Var

COMMUTATIVE = frozenset("add add_any mul max min eq ne and or xor".split())
EVEN = frozenset("abs square cosh cos".split())
"""Functions of `x` that are the same of `-x`."""

DEEPEST = 50
"""Eqns on the way back after which an array counts as another one: a kernel takes a dozen, and the stack has an end."""


def symmetric_transpose(program: Program, number: int) -> Cheaper | None:
    """The transpose of a large matrix, or of many at once, that is symmetric."""
    eqn = program.eqns[number]
    if eqn.primitive.name != "transpose" or nbytes(eqn.outvars[0]) < program.large_bytes:
        return None
    moved = [axis for axis, source in enumerate(eqn.params["permutation"]) if axis != int(source)]
    (matrix,) = eqn.invars
    if len(moved) != 2 or not Mirror(program).alike(matrix, matrix, (moved[0], moved[1])):
        return None
    return Cheaper({number: lambda env, values: values}, eqn.outvars[0], "the matrix is its own transpose")


Axes = tuple[int, int]


class Mirror:
    """Tells whether an array equals another one mirrored: with two of its axes exchanged."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[tuple[Var, Var, Axes], bool] = {}
        self._depth = 0

    def alike(self, a: Atom, b: Atom, axes: Axes) -> bool:
        """Whether `b` is `a` with these axes exchanged, as far as the eqns that make them tell."""
        if not is_var(a) or not is_var(b):
            return _same_literal(a, b)
        if (a, b, axes) not in self._known:
            if self._depth == DEEPEST:
                return False
            self._depth += 1
            self._known[a, b, axes] = self._alike(a, b, axes)
            self._depth -= 1
        return self._known[a, b, axes]

    def _alike(self, a: Var, b: Var, axes: Axes) -> bool:
        if a is b and (not shape_of(a) or all(shape_of(a)[axis] == 1 for axis in axes)):
            return True
        if self._is_transpose(a, b, axes) or self._is_transpose(b, a, axes):
            return True
        first, second = eqn_of(self._program, a), eqn_of(self._program, b)
        if first is None or second is None or first.primitive is not second.primitive:
            return self._past_zero(a, b, axes)
        rule = _RULES.get(first.primitive.name)
        if rule is not None:
            return rule(self, first, second, axes)
        if first.primitive.name not in ELEMENTWISE or first.params != second.params:
            return False
        return self._elementwise(first, second, axes) or self._past_zero(a, b, axes)

    def _is_transpose(self, a: Var, b: Var, axes: Axes) -> bool:
        eqn = eqn_of(self._program, a)
        if eqn is None or eqn.primitive.name != "transpose" or eqn.invars[0] is not b:
            return False
        return [int(axis) for axis in eqn.params["permutation"]] == [
            _exchanged(n, axes) for n in range(len(shape_of(b)))
        ]

    def _elementwise(self, first: Eqn, second: Eqn, axes: Axes) -> bool:
        ones, others = first.invars, second.invars
        if self._all(ones, others, axes):
            return True
        name = first.primitive.name
        if name in COMMUTATIVE and self._all(ones, others[::-1], axes):
            return True
        if name in EVEN or (name == "integer_pow" and first.params["y"] % 2 == 0):
            return self._opposite(ones[0], others[0], axes)
        return (
            name == "mul" and ones[0] is ones[1] and others[0] is others[1] and self._opposite(ones[0], others[0], axes)
        )

    def _opposite(self, a: Atom, b: Atom, axes: Axes) -> bool:
        """Whether `b` is `-a` with the axes exchanged: both differences of the same."""
        first, second = eqn_of(self._program, a), eqn_of(self._program, b)
        if first is None or second is None or not first.primitive.name == second.primitive.name == "sub":
            return False
        return self._all(first.invars, second.invars[::-1], axes)

    def _all(self, ones: list[Atom], others: list[Atom], axes: Axes) -> bool:
        return all(self.alike(a, b, axes) for a, b in zip(ones, others, strict=True))

    def _past_zero(self, a: Atom, b: Atom, axes: Axes) -> bool:
        """The same of what a zero was added to, as `jnp.eye` does."""
        inner_a, inner_b = self._without_zero(a), self._without_zero(b)
        return (inner_a is not a or inner_b is not b) and self.alike(inner_a, inner_b, axes)

    def _without_zero(self, atom: Atom) -> Atom:
        eqn = eqn_of(self._program, atom)
        if eqn is not None and eqn.primitive.name == "add" and not is_var(eqn.invars[1]) and eqn.invars[1].val == 0:
            return eqn.invars[0]
        return atom


def _same_literal(a: Atom, b: Atom) -> bool:
    return not is_var(a) and not is_var(b) and not shape_of(a) and not shape_of(b) and bool(a.val == b.val)


def _exchanged(axis: int, axes: Axes) -> int:
    return {axes[0]: axes[1], axes[1]: axes[0]}.get(axis, axis)


def _broadcasts(mirror: Mirror, first: Eqn, second: Eqn, axes: Axes) -> bool:
    """Each axis of the operand has to go where the other's goes, mirrored, or both axes have to be in the operand."""
    dims, others = (list(map(int, eqn.params["broadcast_dimensions"])) for eqn in (first, second))
    (a,), (b,) = first.invars[:1], second.invars[:1]
    mirrored = shape_of(second.outvars[0])
    if shape_of(first.outvars[0]) != tuple(mirrored[_exchanged(axis, axes)] for axis in range(len(mirrored))):
        return False
    if all(axis in dims for axis in axes) and dims == others:
        return mirror.alike(a, b, (dims.index(axes[0]), dims.index(axes[1])))
    return (a is b or _same_literal(a, b)) and [_exchanged(axis, axes) for axis in dims] == others


def _counts(mirror: Mirror, first: Eqn, second: Eqn, axes: Axes) -> bool:
    same_type = first.params["dtype"] == second.params["dtype"]
    return same_type and _exchanged(int(first.params["dimension"]), axes) == int(second.params["dimension"])


def _reductions(mirror: Mirror, first: Eqn, second: Eqn, axes: Axes) -> bool:
    """Over the same other axes."""
    if first.params != second.params:
        return False
    reduced = {int(axis) for axis in first.params["axes"]}
    kept = [axis for axis in range(len(shape_of(first.invars[0]))) if axis not in reduced]
    return mirror.alike(first.invars[0], second.invars[0], (kept[axes[0]], kept[axes[1]]))


_RULES: dict[str, Callable[[Mirror, Eqn, Eqn, Axes], bool]] = {
    "broadcast_in_dim": _broadcasts,
    "iota": _counts,
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), _reductions),
}
