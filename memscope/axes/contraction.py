"""dot_general: batch and free axes are mapped, contracted ones summed."""

from __future__ import annotations

from collections.abc import Sequence

from .factor import Factor, shape_of
from .table import Eqn, folded, mapped, rule


@rule("dot_general")
def dot_general(eqn: Eqn) -> Sequence[Factor]:
    """`b n k, b m k -> b n m`, with k added up."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = eqn.params["dimension_numbers"]
    lhs, rhs = shape_of(eqn.invars[0]), shape_of(eqn.invars[1])
    lhs_free = [a for a in range(len(lhs)) if a not in {*lhs_contract, *lhs_batch}]
    rhs_free = [a for a in range(len(rhs)) if a not in {*rhs_contract, *rhs_batch}]
    batch, rows = len(lhs_batch), len(lhs_batch) + len(lhs_free)
    return [
        *(mapped(lhs[i], [i, j], [axis]) for axis, (i, j) in enumerate(zip(lhs_batch, rhs_batch, strict=True))),
        *(mapped(lhs[i], [i, None], [batch + axis]) for axis, i in enumerate(lhs_free)),
        *(mapped(rhs[j], [None, j], [rows + axis]) for axis, j in enumerate(rhs_free)),
        *(folded(lhs[i], [i, j], 1, "dot") for i, j in zip(lhs_contract, rhs_contract, strict=True)),
    ]
