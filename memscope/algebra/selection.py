"""Products with one-hot, identity and diagonal matrices: each picks rows of the other operand.

Such a matrix is zero but where its index along one axis equals a number that does not depend on that axis. It is
usually as large as the largest array of the function: a token for each row and a word for each column, or a seed for
each row and an input for each column, as `jax.jacfwd` and `jax.hessian` make it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..axes.factor import shape_of
from ..evaluate import Env
from ..program import Atom, Program, aval_of, is_var
from .along import Eqn, counts_from, eqn_of, is_constant, without
from .cheaper import Cheaper

_KEEPS_ELEMENTS = frozenset({"convert_element_type", "copy", "stop_gradient"})
_KEEPS_ZERO = _KEEPS_ELEMENTS | {"broadcast_in_dim", "reshape"}
_INDICES = (jnp.int32, jnp.int64)


@dataclasses.dataclass(frozen=True)
class Selection:
    """An array that is zero but where its index along `axis`, plus `first`, equals `index`.

    Attributes:
      shape: of the array.
      index: constant along `axis`.
      value: what stands there; None is one.
      scales: whether `value` goes along `axis` alone, rather than along all others.
    """

    shape: tuple[int, ...]
    axis: int
    first: int
    index: Atom
    value: Atom | None = None
    scales: bool = False

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape without `axis`."""
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]


def selection_product(program: Program, number: int) -> Cheaper | None:
    """The product of a selection, contracted along the axis that it selects on, and any other array."""
    eqn = program.eqns[number]
    if eqn.primitive.name != "dot_general":
        return None
    (contract, batch) = eqn.params["dimension_numbers"]
    if any(batch) or any(len(axes) != 1 for axes in contract):
        return None
    for side in (0, 1):
        if not _is_real(eqn.invars[1 - side]):
            continue
        selection = _selection(program, eqn.invars[side], int(contract[side][0]))
        if selection is not None:
            compute = functools.partial(_product, program, eqn, selection, side)
            return Cheaper({number: compute}, eqn.invars[side], _why(program, selection))
    return None


def _is_real(atom: Atom) -> bool:
    dtype = aval_of(atom).dtype
    return jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)


# Which arrays are selections.


def _selection(program: Program, atom: Atom, axis: int) -> Selection | None:
    """The array as a selection on `axis`, or None where it is not known to be one."""
    eqn = eqn_of(program, atom)
    if eqn is None:
        return None
    match eqn.primitive.name:
        case "eq":
            return _mask(program, eqn, axis)
        case "select_n":
            return _masked(program, eqn, axis)
        case "split" if len(eqn.outvars) == 1:
            return _selection(program, eqn.invars[0], axis)
        case name if name in _KEEPS_ELEMENTS:
            return _selection(program, eqn.invars[0], axis)
    return None


def _mask(program: Program, eqn: Eqn, axis: int) -> Selection | None:
    shape = shape_of(eqn.outvars[0])
    for counter, index in (eqn.invars, eqn.invars[::-1]):
        first = counts_from(program, counter, axis)
        if first is not None and shape_of(counter)[axis] == shape[axis] and is_constant(program, index, axis):
            return Selection(shape, axis, first, index) if aval_of(index).dtype in _INDICES else None
    return None


def _masked(program: Program, eqn: Eqn, axis: int) -> Selection | None:
    mask, *cases = eqn.invars
    if len(cases) != 2 or not is_zero(program, cases[0]) or shape_of(mask) != shape_of(eqn.outvars[0]):
        return None
    found = _selection(program, mask, axis)
    if found is None or found.value is not None:
        return None
    value = cases[1]
    if is_constant(program, value, axis):
        return dataclasses.replace(found, value=value)
    if len(shape_of(value)) == 2 and is_constant(program, value, 1 - axis):
        return dataclasses.replace(found, value=value, scales=True)
    return None


def is_zero(program: Program, atom: Atom) -> bool:
    """Whether all elements are zero by construction."""
    if not is_var(atom):
        return not shape_of(atom) and not atom.val
    eqn = eqn_of(program, atom)
    return eqn is not None and eqn.primitive.name in _KEEPS_ZERO and is_zero(program, eqn.invars[0])


def _is_identity(program: Program, selection: Selection) -> bool:
    """Whether it picks every row in its place."""
    rows, columns = selection.rows, selection.shape[selection.axis]
    return rows == (columns,) and counts_from(program, selection.index, 1 - selection.axis) == selection.first


# What computes the product.


def _product(
    program: Program, eqn: Eqn, selection: Selection, side: int, env: Env, values: Sequence[Any]
) -> Sequence[Any]:
    """The picked rows of the other operand; NaN where a zero meets an infinity or a NaN, as in the product."""
    other = values[1 - side]
    axis = int(eqn.params["dimension_numbers"][0][1 - side][0])
    rows = jnp.moveaxis(other, axis, 0).astype(aval_of(eqn.outvars[0]).dtype)
    picked = _pick(program, env, selection, rows)
    bad = None
    if jnp.issubdtype(other.dtype, jnp.floating):
        unequal = ~lax.is_finite(jnp.moveaxis(other, axis, 0))
        elsewhere = jnp.sum(unequal, 0, dtype=jnp.int32) - _pick(program, env, selection, unequal).astype(jnp.int32)
        bad = elsewhere > 0
    if selection.value is not None:
        picked = picked * _values(program, env, selection, picked)
    if bad is not None:
        picked = jnp.where(bad, jnp.asarray(jnp.nan, picked.dtype), picked)
    free = len(shape_of(eqn.invars[side])) - 1
    return [picked if side == 0 else jnp.moveaxis(picked, range(free), range(picked.ndim - free, picked.ndim))]


def _pick(program: Program, env: Env, selection: Selection, rows: Any) -> Any:
    """`rows[index]` along their first axis, and zero where the index is outside."""
    if _is_identity(program, selection):
        return rows
    index = jnp.broadcast_to(without(program, env, selection.index, selection.axis) - selection.first, selection.rows)
    return rows.at[index].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _values(program: Program, env: Env, selection: Selection, picked: Any) -> Any:
    """What stands at the selected places, of the dtype and rank of what they multiply."""
    assert selection.value is not None
    if selection.scales:
        value = _pick(program, env, selection, without(program, env, selection.value, 1 - selection.axis))
    else:
        value = without(program, env, selection.value, selection.axis)
    value = jnp.asarray(value, picked.dtype)
    return value.reshape(value.shape + (1,) * (picked.ndim - value.ndim)) if value.ndim else value


def _why(program: Program, selection: Selection) -> str:
    if _is_identity(program, selection):
        kind = "an identity matrix" if selection.value is None else "a diagonal matrix"
        return f"a product with {kind} is the other operand" + ("" if selection.value is None else ", scaled")
    return "a product with a one-hot matrix is an index into the other operand"
