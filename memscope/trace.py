"""Function + arguments -> Program. Nothing runs and nothing is allocated."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .arguments import described, positional_names, static_values
from .errors import ArgumentError
from .evaluate import precision_of
from .inline import has_custom_derivatives, inline
from .program import Program, is_var, source_lines
from .target import Target

RESERVED = ("limit", "target", "best_effort", "static_argnums", "static_argnames", "donate_argnums", "progress")


def trace(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    platform: str = "cpu",
) -> Program:
    """Traces `fn(*args, **kwargs)` to a flat Program.

    Args:
      fn: a function that `jax.jit` would take.
      args, kwargs: arrays, NumPy arrays, Python scalars, pytrees of these, or
        `jax.ShapeDtypeStruct` in place of any array.
      platform: which branch of a platform-dependent computation to keep.

    Raises:
      TypeError: `fn` is not callable, its own keywords clash with ours, or an argument is neither
        an array nor marked static.
      Whatever `fn` raises while traced, with the user's own traceback.
    """
    kwargs = dict(kwargs or {})
    check_callable(fn)
    jitted = jax.jit(
        fn, static_argnums=static_argnums, static_argnames=static_argnames or None, donate_argnums=donate_argnums
    )
    _check_leaves(fn, args, kwargs, static_values(args, kwargs, static_argnums, static_argnames, fn))
    traced = jitted.trace(*args, **kwargs)
    closed = inline(traced.jaxpr, platform)
    infos = jax.tree_util.tree_flatten_with_path(traced.args_info)[0]
    names = traced.jaxpr.jaxpr.debug_info.arg_names or ()
    return Program(
        name=function_name(fn),
        closed=closed,
        in_tree=jax.tree.structure(traced.args_info),
        out_tree=jax.tree.structure(traced.out_info),
        sources=source_lines(closed),
        argument_names=tuple(names[i] if i < len(names) and names[i] else f"arg{i}" for i in range(len(infos))),
        donated=_donated([info.donated for _, info in infos], closed),
        x64=bool(jax.config.read("jax_enable_x64")) or _has_64_bits(closed),
        custom_derivatives=has_custom_derivatives(traced.jaxpr.jaxpr),
        traced=traced.jaxpr,
    )


def _donated(given: Sequence[bool], closed: Any) -> tuple[bool, ...]:
    """Which arguments may be written over; one that nothing reads stays with the caller, as `jax.jit` has it."""
    read = {a for eqn in closed.jaxpr.eqns for a in eqn.invars if is_var(a)}
    read.update(a for a in closed.jaxpr.outvars if is_var(a))
    return tuple(donated and v in read for donated, v in zip(given, closed.jaxpr.invars, strict=True))


def trace_flat(run: Callable[..., Any], program: Program, platform: str) -> Any:
    """The flat jaxpr of a function of `program`'s flat arguments."""
    with precision_of(program):
        return inline(jax.jit(run).trace(*program.argument_shapes).jaxpr, platform)


def function_name(fn: Callable[..., Any]) -> str:
    """A valid identifier for `fn`: its `__name__`, or "fn" for lambdas and unnamed callables."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = str(getattr(fn, "__name__", type(fn).__name__))
    return name if name.isidentifier() else "fn"


def check_callable(fn: object) -> None:
    """Refuses what is no function, and what JAX can't keep in its caches."""
    if not callable(fn):
        raise ArgumentError(
            f"memscope needs a function to trace, not {type(fn).__name__}: pass the function and its arguments "
            "separately, as in profile(fn, x)."
        )
    try:
        weakref.ref(fn)
    except TypeError:
        raise ArgumentError(
            f"JAX can't trace {function_name(fn)}, as a {type(fn).__name__} takes no weak references: call it in a "
            "function of your own, and jax.numpy's in place of NumPy's."
        ) from None


def check_keywords(fn: Callable[..., Any], target: Any = None, reserved: Sequence[str] = RESERVED) -> None:
    """Refuses a function whose keywords memscope would take, or has just taken, for itself.

    Args:
      reserved: memscope's own keywords.

    Raises:
      TypeError: names the clash and the way out (`functools.partial`).
    """
    check_callable(fn)
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return
    bound = fn.keywords if isinstance(fn, functools.partial) else {}
    taken = ["target"] if not isinstance(target, (str, Target, type(None))) else []
    clash = [
        p.name
        for p in parameters
        if p.name in reserved and p.name not in bound and (p.kind is p.KEYWORD_ONLY or p.name in taken)
    ]
    if clash:
        raise ArgumentError(
            f"{function_name(fn)} has a keyword {clash[0]!r} that memscope takes for itself: "
            f"wrap it first, as in functools.partial({function_name(fn)}, {clash[0]}=...)."
        )


def _check_leaves(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], static: Mapping[int | str, Any]
) -> None:
    names = positional_names(fn)
    for i, arg in enumerate(args):
        if i not in static:
            _check_tree(arg, names[i] if i < len(names) else f"argument {i}")
    for key, arg in kwargs.items():
        if key not in static:
            _check_tree(arg, key)


def _check_tree(arg: Any, name: str) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]:
        if _is_array_like(leaf):
            continue
        where = name + jax.tree_util.keystr(path)
        raise ArgumentError(
            f"{where} is {described(leaf)}, which is no JAX type: pass an array, a number or a jax.ShapeDtypeStruct, "
            f"mark it static (static_argnames={name!r}), or bind it first, as functools.partial does."
        )


def _is_array_like(leaf: Any) -> bool:
    if isinstance(leaf, (bool, int, float, complex, jax.Array, jax.ShapeDtypeStruct)):
        return True
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype.kind in "biufcV"
    return hasattr(leaf, "__jax_array__") or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


def _has_64_bits(closed: Any) -> bool:
    """True where the function turned x64 on for itself: its eqns must then be bound in that mode."""
    avals = (v.aval for eqn in closed.jaxpr.eqns for v in eqn.outvars)
    return any(getattr(a, "dtype", None) in (np.float64, np.int64, np.uint64, np.complex128) for a in avals)
