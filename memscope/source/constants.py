"""Arrays that a program closes over, as source."""

from __future__ import annotations

import base64
import textwrap
from typing import Any

import jax
import numpy as np

from .expr import Expr, tuple_text
from .names import Names
from .values import dtype_text, is_key, list_text

INLINE_SIZE = 64  # elements: at most this many are written out as numbers
INLINE_BYTES = 1_000_000  # all larger constants together


class Constants:
    """The constants used so far: those at the top of the module, and those at the top of the function."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.module_lines: list[str] = []
        self.body_lines: list[str] = []
        self.uses_numpy = False
        self.uses_base64 = False
        self._bytes = 0
        self._known: dict[int, tuple[Any, Expr]] = {}

    def reference(self, const: Any) -> Expr:
        """The name that `const` has in the function; defines it where that is its first use.

        Raises:
          ValueError: the constants are too large to travel in source.
        """
        if id(const) not in self._known:
            self._known[id(const)] = (const, self._define(const))
        return self._known[id(const)][1]

    def _define(self, const: Any) -> Expr:
        dtype = getattr(const, "dtype", None)
        if dtype is not None and is_key(dtype):
            implementation = str(jax.random.key_impl(const))
            data = self._array(np.asarray(jax.random.key_data(const)))
            return self._named("key", f'jax.random.wrap_key_data({data}, impl="{implementation}")')
        return self._named("table", self._array(np.asarray(const)))

    def _named(self, base: str, text: str) -> Expr:
        name = self.names.numbered(base)
        self.body_lines.append(f"{name} = {text}")
        return Expr(name)

    def _array(self, array: np.ndarray) -> str:
        dtype, shape = dtype_text(array.dtype), array.shape
        if array.dtype == jax.dtypes.float0:
            self.uses_numpy = True
            return f"np.zeros({shape!r}, {dtype})"
        if array.size == 0:
            return f"jnp.zeros({shape!r}, {dtype})"
        items = list_text(array) if array.size <= INLINE_SIZE else None
        if items is not None:
            return f"jnp.asarray({items}, dtype={dtype})"
        return f"jnp.asarray({self._encoded(array)})"

    def _encoded(self, array: np.ndarray) -> str:
        """A NumPy array at module level: nothing reaches a device before the function is called."""
        self._bytes += array.nbytes
        if self._bytes > INLINE_BYTES:
            raise ValueError(
                f"the function closes over more than {INLINE_BYTES:,} bytes of arrays (here a "
                f"{array.dtype}{list(array.shape)}), too much for source: pass them as arguments, or save the "
                "plan as .jaxexport."
            )
        self.uses_numpy = self.uses_base64 = True
        name = self.names.numbered("_TABLE")
        text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        rows = [f'    "{row}"' for row in textwrap.wrap(text, 88)]
        shape = tuple_text([str(n) for n in array.shape]) if array.shape else "()"
        self.module_lines += [
            f"{name} = np.frombuffer(",
            "    base64.b64decode(",
            *("    " + row for row in rows),
            "    ),",
            f"    dtype={dtype_text(array.dtype)},",
            f").reshape({shape})",
        ]
        return name
