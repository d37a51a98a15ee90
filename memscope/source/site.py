"""One eqn as its template sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jax.extend import core as jex_core

from .expr import Expr
from .values import is_key, kind_of


@dataclasses.dataclass(frozen=True)
class Site:
    """An eqn with its operands written.

    Attributes:
      args: the operands as arguments of a `lax` function, which promotes nothing.
      loose: the operands of an operator or a `jnp` function: a literal is a plain Python number there.
      x64: the mode the text runs in, for what a Python number stands for.
      returned: the function returns a result of this eqn, so its weak type shows.
    """

    eqn: jex_core.JaxprEqn
    args: tuple[Expr, ...]
    loose: tuple[Expr, ...]
    x64: bool
    returned: bool

    @property
    def params(self) -> dict[str, Any]:
        return self.eqn.params

    def aval(self, i: int = 0) -> Any:
        return self.eqn.invars[i].aval

    @property
    def out(self) -> Any:
        return self.eqn.outvars[0].aval

    def kind(self, i: int = 0) -> str:
        """The kind of number of operand `i`: one of "biufc", or "" for PRNG keys."""
        dtype = self.aval(i).dtype
        return "" if is_key(dtype) else kind_of(dtype)

    def is_literal(self, i: int) -> bool:
        return isinstance(self.eqn.invars[i], jex_core.Literal)


# None: this eqn has no nice form; it is bound as the primitive it is.
Template = Callable[[Site], Expr | None]
