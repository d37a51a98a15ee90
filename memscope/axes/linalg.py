"""Dense linear algebra: batch axes are free; a factorisation couples its matrix's rows."""

from __future__ import annotations

from collections.abc import Sequence

from .factor import Factor, shape_of
from .table import Eqn, mapped, rule

COUPLES = "couples all rows and columns of its matrix"


@rule("triangular_solve", why=f"triangular_solve {COUPLES}")
def triangular_solve(eqn: Eqn) -> Sequence[Factor]:
    """`b n n, b n m -> b n m` for a left solve: batches, and each right-hand side by itself."""
    shape = shape_of(eqn.invars[1])
    sides = len(shape) - (1 if eqn.params["left_side"] else 2)
    return [*_batch(eqn), mapped(shape[sides], [None, sides], [sides])]


@rule("cholesky", why=f"cholesky {COUPLES}")
def cholesky(eqn: Eqn) -> Sequence[Factor]:
    """Batches of matrices."""
    return _batch(eqn)


@rule(
    "lu",
    "lu_pivots_to_permutation",
    "qr",
    "geqrf",
    "householder_product",
    "eigh",
    "svd",
    "eig",
    "schur",
    "tridiagonal_solve",
    "hessenberg",
    "tridiagonal",
    why=f"a matrix factorisation {COUPLES}",
)
def factorisation(eqn: Eqn) -> Sequence[Factor]:
    """Batches of matrices (or of the vectors that go with them)."""
    return _batch(eqn)


_CORE_RANK = {"lu_pivots_to_permutation": 1}


def _batch(eqn: Eqn) -> Sequence[Factor]:
    shape = shape_of(eqn.invars[0])
    batch = shape[: len(shape) - _CORE_RANK.get(eqn.primitive.name, 2)]
    return [
        mapped(size, [axis] * len(eqn.invars), [axis] * len(eqn.outvars))
        for axis, size in enumerate(batch)
        if all(axis < len(shape_of(a)) and shape_of(a)[axis] == size for a in (*eqn.invars, *eqn.outvars))
    ]
