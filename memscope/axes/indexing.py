"""Slices, pads, concatenations, gathers and scatters, along the axes they leave whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import GatherScatterMode

from ..program import aval_of
from .factor import At, Factor, shape_of
from .table import Eqn, folded, mapped, resize, rule


@rule("slice", why="the slice cuts this axis at a place of its own")
def slice_(eqn: Eqn) -> Sequence[Factor]:
    """Every axis that is kept whole."""
    operand, result = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    strides = eqn.params["strides"] or (1,) * len(operand)
    return [mapped(s, [a], [a]) for a, s in enumerate(operand) if result[a] == s and strides[a] == 1]


@resize("slice")
def _slice_limits(eqn: Eqn, factor: Factor, steps: int) -> dict[str, Any]:
    at = factor.outs[0]
    assert isinstance(at, At)
    limits = list(eqn.params["limit_indices"])
    limits[at.axis] = steps
    return {"limit_indices": tuple(limits)}


@rule("pad", why="the padding shifts this axis")
def pad(eqn: Eqn) -> Sequence[Factor]:
    """Every axis without padding; the padding value is a scalar."""
    shape = shape_of(eqn.invars[0])
    return [
        mapped(shape[a], [a, None], [a])
        for a, config in enumerate(eqn.params["padding_config"])
        if tuple(config) == (0, 0, 0)
    ]


@rule("concatenate", why="the concatenation joins arrays along this axis")
def concatenate(eqn: Eqn) -> Sequence[Factor]:
    """Every axis but the joined one."""
    shape = shape_of(eqn.outvars[0])
    joined = int(eqn.params["dimension"])
    return [mapped(s, [a] * len(eqn.invars), [a]) for a, s in enumerate(shape) if a != joined]


@rule("dynamic_slice", why="where this axis is cut is only known at run time")
def dynamic_slice(eqn: Eqn) -> Sequence[Factor]:
    """Every axis that is kept whole."""
    operand = shape_of(eqn.invars[0])
    rest = [None] * (len(eqn.invars) - 1)
    return [mapped(s, [a, *rest], [a]) for a, s in enumerate(operand) if eqn.params["slice_sizes"][a] == s]


@rule("dynamic_update_slice", why="where this axis is written is only known at run time")
def dynamic_update_slice(eqn: Eqn) -> Sequence[Factor]:
    """Every axis that the update covers."""
    operand, update = shape_of(eqn.invars[0]), shape_of(eqn.invars[1])
    rest = [None] * (len(eqn.invars) - 2)
    return [mapped(s, [a, a, *rest], [a]) for a, s in enumerate(operand) if update[a] == s]


@rule("gather", why="the gather may read anywhere along this axis")
def gather(eqn: Eqn) -> Sequence[Factor]:
    """`table, n i -> n w`: index rows and batches are mapped, and so are whole slices of the table.

    A slice of a whole axis starts at 0, or nowhere, whatever the index: so does that of a window of it.
    """
    dims, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    operand, indices, result = (shape_of(a) for a in (*eqn.invars[:2], eqn.outvars[0]))
    batch_out = [a for a in range(len(result)) if a not in dims.offset_dims]
    index_rows = list(range(len(indices) - 1))
    factors = []
    for out, row in zip(batch_out, index_rows, strict=True):
        if row in dims.start_indices_batching_dims:
            table = dims.operand_batching_dims[dims.start_indices_batching_dims.index(row)]
            factors.append(mapped(indices[row], [table, row], [out]))
        else:
            factors.append(mapped(indices[row], [None, row], [out]))
    hidden = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    window = [a for a in range(len(operand)) if a not in hidden]
    for out, axis in zip(dims.offset_dims, window, strict=True):
        if sizes[axis] == operand[axis]:
            factors.append(mapped(operand[axis], [axis, None], [out]))
    return [*factors, *_table_rows(eqn)]


def _table_rows(eqn: Eqn) -> list[Factor]:
    """`n w, i -> i w`: the indexed rows of the table, each found in the chunk that holds it."""
    operand = shape_of(eqn.invars[0])
    known = eqn.params["mode"] != GatherScatterMode.FILL_OR_DROP or missing_value(eqn) is not None
    return [folded(operand[axis], [axis, None], 1, "gather") for axis in picked_axes(eqn)] if known else []


def picked_axes(eqn: Eqn) -> dict[int, int]:
    """For each axis of the table of which an index names a single row, the column of the index that does so."""
    dims = eqn.params["dimension_numbers"]
    if eqn.primitive.name == "gather":
        indexed, single = dims.start_index_map, dims.collapsed_slice_dims
    else:
        indexed, single = dims.scatter_dims_to_operand_dims, dims.inserted_window_dims
    return {axis: column for column, axis in enumerate(indexed) if axis in single}


def start_inside(start: Any, last: int) -> Any:
    """The start of a slice, moved between 0 and the last one possible as `dynamic_slice` does."""
    dtype = jnp.result_type(start)
    return lax.clamp(np.array(0, dtype), start, np.array(min(last, jnp.iinfo(dtype).max), dtype))


def wide_indices(indices: Any) -> Any:
    """Indices in a type that holds any row number, and negative ones: those of a window count from its start."""
    narrow = indices.dtype.itemsize < np.dtype(np.int32).itemsize
    return indices.astype(np.int32) if narrow else indices


def missing_value(eqn: Eqn) -> Any:
    """What a gather gives for an index outside the table; None where JAX chooses it by type."""
    fill = eqn.params["fill_value"]
    if fill is not None or not jnp.issubdtype(aval_of(eqn.outvars[0]).dtype, jnp.inexact):
        return fill
    return np.nan


@resize("gather", "dynamic_slice")
def _slice_sizes(eqn: Eqn, factor: Factor, steps: int) -> dict[str, Any]:
    at = factor.ins[0]
    sizes = list(eqn.params["slice_sizes"])
    # A batching axis keeps its slice of 1; only an axis that is read whole shrinks with the window.
    if (
        isinstance(at, At)
        and sizes[at.axis] == shape_of(eqn.invars[0])[at.axis] == factor.size
        and not _batching(eqn, at.axis)
    ):
        sizes[at.axis] = steps
    return {"slice_sizes": tuple(sizes)}


def _batching(eqn: Eqn, axis: int) -> bool:
    dims = eqn.params.get("dimension_numbers")
    return dims is not None and axis in dims.operand_batching_dims


SCATTER_FOLDS = {
    "scatter-add": "scatter",
    "scatter-sub": "scatter",
    "scatter-mul": "scatter",
    "scatter-min": "scatter",
    "scatter-max": "scatter",
}


@rule("scatter", *SCATTER_FOLDS, why="the scatter may write anywhere along this axis")
def scatter(eqn: Eqn) -> Sequence[Factor]:
    """`table, n i, n w -> table`: batches, whole update windows and the table's rows are mapped; updates accumulate."""
    dims = eqn.params["dimension_numbers"]
    operand, indices, updates = (shape_of(a) for a in eqn.invars)
    rows = [a for a in range(len(updates)) if a not in dims.update_window_dims]
    factors = []
    for update, row in zip(rows, range(len(indices) - 1), strict=True):
        if row in dims.scatter_indices_batching_dims:
            table = dims.operand_batching_dims[dims.scatter_indices_batching_dims.index(row)]
            factors.append(mapped(indices[row], [table, row, update], [table]))
        elif eqn.primitive.name in SCATTER_FOLDS:
            factors.append(folded(indices[row], [None, row, update], 1, SCATTER_FOLDS[eqn.primitive.name]))
    hidden = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    window = [a for a in range(len(operand)) if a not in hidden]
    for update, axis in zip(dims.update_window_dims, window, strict=True):
        if updates[update] == operand[axis]:
            factors.append(mapped(operand[axis], [axis, None, update], [axis]))
    if eqn.params["mode"] != GatherScatterMode.CLIP:
        factors += [mapped(operand[axis], [axis, None, None], [axis]) for axis in picked_axes(eqn)]
    return factors


@resize("scatter", *SCATTER_FOLDS)
def _dropping(eqn: Eqn, factor: Factor, steps: int) -> dict[str, Any]:
    """A window of the table takes the updates of its own rows; those of others fall outside it."""
    at = factor.ins[0]
    drops = isinstance(at, At) and at.axis in picked_axes(eqn) and factor.ins[1] is None
    return {"mode": GatherScatterMode.FILL_OR_DROP} if drops else {}
