"""Matching the arguments of a call to those a program was traced with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import ArgumentError
from .program import Program


def flat_arguments(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The leaves of a call's arguments, as arrays of the program's dtypes.

    Raises:
      TypeError: their tree, a shape or a dtype is not what the program was traced with.
    """
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    if tree != program.in_tree:
        raise ArgumentError(
            f"{program.name} was planned for arguments of the tree {_short(program.in_tree)}, but was given "
            f"{_short(tree)}: "
            "pass arguments of the same structure, or plan again."
        )
    avals = [v.aval for v in program.jaxpr.invars]
    return [
        _as_argument(leaf, aval, name, program)
        for leaf, aval, name in zip(leaves, avals, program.argument_names, strict=True)
    ]


def _as_argument(leaf: Any, aval: Any, name: str, program: Program) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise ArgumentError(f"{name} is a shape without values: pass an array, as {program.name} is to be run.")
    array: Any = leaf
    if isinstance(leaf, (bool, int, float, complex)):
        given = np.asarray(leaf, jnp.result_type(leaf))
        # A number takes the dtype it was traced with, where that can hold it, as it would under jit.
        array = given.astype(aval.dtype) if np.can_cast(given.dtype, aval.dtype, "same_kind") else given
    elif not isinstance(leaf, jax.Array):
        array = np.asarray(leaf)
    dtype = array.dtype
    if isinstance(array, np.ndarray):
        if dtype.kind in "OSU":
            raise ArgumentError(f"{name} is {described(leaf)}, which is no JAX type: pass an array or a number.")
        with jax.enable_x64(program.x64):
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        array = array.astype(dtype, copy=False)
    if tuple(array.shape) != tuple(aval.shape) or dtype != aval.dtype:
        raise ArgumentError(
            f"{name} is {_type(dtype, array.shape)}, but {program.name} was planned for "
            f"{_type(aval.dtype, aval.shape)}: plan again for it, or use memscope.memsafe."
        )
    return array


def _short(tree: Any) -> str:
    text = str(tree)
    return text if len(text) <= 200 else text[:197] + "..."


def _type(dtype: Any, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def positional_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the parameters that can be given by position."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def static_values(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    static_argnums: int | Sequence[int],
    static_argnames: str | Sequence[str],
    fn: Callable[..., Any],
) -> dict[int | str, Any]:
    """The static arguments of a call, by position or by name, as `jax.jit` would pick them."""
    nums = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)
    names = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)
    positions = positional_names(fn)
    nums = {n % max(1, len(positions) or len(args)) for n in nums}
    nums |= {i for i, name in enumerate(positions) if name in names}
    names |= {positions[n] for n in nums if n < len(positions)}
    picked: dict[int | str, Any] = {i: a for i, a in enumerate(args) if i in nums}
    picked.update({k: v for k, v in kwargs.items() if k in names})
    return picked


def described(leaf: Any) -> str:
    """What an argument is, where it is none that JAX takes."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return f"a NumPy array of dtype {leaf.dtype}"
    return f"of type {type(leaf).__name__}"
