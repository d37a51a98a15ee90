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


@rule("tridiagonal_solve", why="a tridiagonal solve goes through all rows of its matrix")
def tridiagonal_solve(eqn: Eqn) -> Sequence[Factor]:
    """`b n, b n, b n, b n m -> b n m`: batches, and each right-hand side by itself."""
    *batch, _, sides = shape_of(eqn.invars[3])
    last = len(batch) + 1
    return [*_batch(eqn, core=1), mapped(sides, [None, None, None, last], [last])]


@rule("ormqr", why="a product with Householder reflections mixes all rows along its matrix")
def ormqr(eqn: Eqn) -> Sequence[Factor]:
    """`b n k, b k, b n m -> b n m` from the left, `b m n` from the right: batches, and m."""
    shape = shape_of(eqn.invars[2])
    free = len(shape) - (1 if eqn.params["left"] else 2)
    return [*_batch(eqn), mapped(shape[free], [None, None, free], [free])]


@rule("lu_pivots_to_permutation", why="a permutation is made from all pivots in order")
def lu_pivots_to_permutation(eqn: Eqn) -> Sequence[Factor]:
    """`b k -> b n`: batches."""
    return _batch(eqn, core=1)


@rule("symmetric_product", why="each entry of the product needs two rows of its matrix")
def symmetric_product(eqn: Eqn) -> Sequence[Factor]:
    """`b n k, b n n -> b n n`: batches; the second operand is added once, so k is no sum of like parts."""
    return _batch(eqn)


@rule("cholesky", why=f"cholesky {COUPLES}")
def cholesky(eqn: Eqn) -> Sequence[Factor]:
    """Batches of matrices."""
    return _batch(eqn)


@rule(
    "lu",
    "qr",
    "geqrf",
    "geqp3",
    "householder_product",
    "eigh",
    "svd",
    "eig",
    "schur",
    "cholesky_update",
    "hessenberg",
    "tridiagonal",
    why=f"a matrix factorisation {COUPLES}",
)
def factorisation(eqn: Eqn) -> Sequence[Factor]:
    """Batches of matrices (or of the vectors that go with them)."""
    return _batch(eqn)


def _batch(eqn: Eqn, core: int = 2) -> Sequence[Factor]:
    """The axes before the last `core` ones of the first operand."""
    shape = shape_of(eqn.invars[0])
    batch = shape[: len(shape) - core]
    return [
        mapped(size, [axis] * len(eqn.invars), [axis] * len(eqn.outvars))
        for axis, size in enumerate(batch)
        if all(axis < len(shape_of(a)) and shape_of(a)[axis] == size for a in (*eqn.invars, *eqn.outvars))
    ]
