"""`memsafe`: a function that keeps to a limit, planned anew for each kind of arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ._jax_private import api_boundary
from .arguments import static_values
from .plan import Plan, plan_call
from .sizes import check_limit
from .target import Target, resolve
from .trace import check_callable


class MemsafeFunction:
    """A function under a limit; called, traced and differentiated like one of `jax.jit`."""

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._options = options
        self._plans: dict[Any, Plan] = {}

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.plan(*args, **kwargs).fn(*args, **kwargs)

    @api_boundary
    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments, made at the first call with their shapes."""
        key = self._key(args, kwargs)
        if key not in self._plans:
            self._plans[key] = plan_call(self._fn, _shapes(args), _shapes(kwargs), **self._options)
        return self._plans[key]

    def _key(self, args: Any, kwargs: Any) -> Any:
        """Static arguments by value, the rest by what jax.jit would trace anew for."""
        nums, names = self._options["static_argnums"], self._options["static_argnames"]
        static = static_values(args, kwargs, nums, names, self._fn)
        traced = (
            [a for i, a in enumerate(args) if i not in static],
            {k: v for k, v in kwargs.items() if k not in static},
        )
        leaves, tree = jax.tree.flatten(traced)
        x64 = bool(jax.config.read("jax_enable_x64"))
        return tree, tuple(map(_leaf_key, leaves)), tuple(static.items()), len(args), x64

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<memsafe {getattr(self._fn, '__name__', self._fn)!r}, limit {self._options['limit']}>"


@api_boundary
def memsafe(
    fn: Callable[..., Any] | None = None,
    *,
    limit: int | float | str | None = None,
    target: str | Target | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
) -> Any:
    """`fn` under a memory limit, used like `jax.jit`; also as a decorator, `@memsafe(limit="1GiB")`.

    The first call with arguments of new shapes plans (seconds); later ones run.

    Args:
      fn: a function that `jax.jit` would take; for a training step, the function that contains the
        gradient (`memsafe(jax.grad(loss))`), so that the limit covers its backward pass.
      limit: bytes of the whole call, as in `memscope.plan`.
      target, static_argnums, static_argnames, donate_argnums: as in `memscope.plan`.

    Raises:
      ValueError, TypeError: here, where the limit is no size or `fn` no function.
      LimitError: at the first call, where the limit can't be met.
    """
    if limit is not None:
        check_limit(limit)
    resolve(target)
    options: dict[str, Any] = {
        "limit": limit,
        "target": target,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
    }
    if fn is None:
        return lambda f: memsafe(f, **options)
    check_callable(fn)
    return MemsafeFunction(fn, options)


def _leaf_key(leaf: Any) -> Any:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return tuple(leaf.shape), str(leaf.dtype), bool(getattr(leaf, "weak_type", False))
    if isinstance(leaf, (bool, int, float, complex)):
        return type(leaf)
    return leaf


def _shapes(tree: Any) -> Any:
    """Traced arguments of an outer function as shapes: planning looks at nothing else."""
    return jax.tree.map(
        lambda x: (
            jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) if isinstance(x, jax.core.Tracer) else x
        ),
        tree,
    )
