"""The rewritten function as a person calls it: same arguments and results as the one they wrote."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from ._jax_private import under_jit
from .arguments import flat_arguments, positional_names
from .compile import Build, jit_flat
from .errors import ArgumentError
from .evaluate import precision_of
from .program import Program
from .target import Target


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """How a function was called when it was traced, so that later calls can be matched to it.

    Attributes:
      static: the values of static arguments, by position or name.
      program: gives the tree, shapes and dtypes of the rest.
    """

    fn: Callable[..., Any]
    program: Program
    positional: int
    static: Mapping[int | str, Any]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The flat arguments of the program.

        Raises:
          TypeError: another tree, shape, dtype or static value than the function was planned for.
        """
        given = self.dynamic(args, kwargs)
        if jax.tree.structure(given) != self.program.in_tree:
            given = self.dynamic(*self._as_planned(args, kwargs))
        return flat_arguments(self.program, *given)

    def _as_planned(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The same call with as many positional arguments as when it was traced."""
        try:
            bound = inspect.signature(self.fn).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return list(args), dict(kwargs)
        given = [*bound.args]
        named = dict(zip(positional_names(self.fn), given, strict=False))
        first = given[: self.positional]
        later = {name: named[name] for name in list(named)[self.positional :]}
        missing = positional_names(self.fn)[len(first) : self.positional]
        return [*first, *(bound.kwargs[name] for name in missing if name in bound.kwargs)], {
            **later,
            **{k: v for k, v in bound.kwargs.items() if k not in missing},
        }

    def dynamic(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that are not static.

        Raises:
          TypeError: a static argument has another value than the plan was made for.
        """
        given: dict[int | str, Any] = dict(enumerate(args))
        given.update(kwargs.items())
        for key, value in self.static.items():
            if key in given and given[key] != value:
                raise ArgumentError(
                    f"{self.program.name} was planned with {key!r} = {value!r} and called with {given[key]!r}: "
                    "a static argument is part of the plan, so plan it again for this value."
                )
        return (
            tuple(a for i, a in enumerate(args) if i not in self.static),
            {k: v for k, v in kwargs.items() if k not in self.static},
        )


class PlannedFunction:
    """A rewritten function, jitted with the compile options that its peak was accounted under.

    XLA's options hold for a whole executable, as an order of its instructions does, so under another trace
    (`jit`, `grad`, `vmap`) the rewritten eqns are inlined there without them. A trace may also be on its way to
    another place; a call is not, and raises TargetError where the target is not here.

    Args:
      compiled: the executable to run, where there is one already.
      suffix: of the function's name.
      export: what takes it to a target that is not here, as an error says.
    """

    def __init__(
        self,
        signature: Signature,
        closed: jex_core.ClosedJaxpr,
        build: Build,
        original: Callable[..., Any],
        target: Target,
        compiled: Callable[..., Any] | None = None,
        suffix: str = "safe",
        export: str = "plan.save",
    ) -> None:
        functools.update_wrapper(self, original)
        program = signature.program
        self.__name__ = f"{program.name}_{suffix}"
        self._signature = signature
        self._program = program
        self._target = target
        self._export = export
        run = jex_core.jaxpr_as_fun(closed)
        self._inlined = _as_differentiable(run, program, original)
        self._jitted = compiled or jit_flat(run, program.donated, build)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = self._signature.flatten(args, kwargs)
        traced = under_trace(leaves)
        if not traced and not self._target.is_here:
            raise self._target.absent(self._program.name, self._export)
        run = self._inlined if traced else self._jitted
        with precision_of(self._program):
            outs = run(*leaves)
        return jax.tree.unflatten(self._program.out_tree, outs)

    def __repr__(self) -> str:
        return f"<{self.__name__}, made by memscope from {self._program.name}>"


def under_trace(leaves: Sequence[Any]) -> bool:
    """True where a call with these arguments becomes part of another function's trace."""
    return under_jit() or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _as_differentiable(
    run: Callable[..., list[Any]], program: Program, original: Callable[..., Any]
) -> Callable[..., Sequence[Any]]:
    """`run`, differentiated as the user's own function is where that has derivative rules of its own.

    Inlining keeps what a `custom_jvp` or `custom_vjp` function computes, not its rule, and the rule may
    be what keeps a gradient finite.
    """
    if not program.custom_derivatives:
        return run

    def original_flat(*leaves: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(program.in_tree, leaves)
        return jax.tree.leaves(original(*args, **kwargs))

    safe = jax.custom_jvp(lambda *leaves: tuple(run(*leaves)))

    @safe.defjvp
    def _derivative(primals: Any, tangents: Any) -> Any:
        outs, out_tangents = jax.jvp(lambda *leaves: tuple(original_flat(*leaves)), primals, tangents)
        return outs, out_tangents

    return safe


def dynamic_only(fn: Callable[..., Any], static: Mapping[int | str, Any]) -> Callable[..., Any]:
    """`fn` of its non-static arguments alone."""
    if not static:
        return fn

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        rest = list(args)
        merged: list[Any] = []
        while rest or len(merged) in static:
            merged.append(static[len(merged)] if len(merged) in static else rest.pop(0))
        return fn(*merged, **kwargs, **{k: v for k, v in static.items() if isinstance(k, str)})

    return call
