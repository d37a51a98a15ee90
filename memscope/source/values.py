"""Values as source: dtypes, scalars, arrays and the parameters of primitives."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core

from .expr import ATOM, UNARY, Expr, tuple_text


class InexpressibleError(Exception):
    """A value that no source can stand for; the message says which."""


def is_key(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jax.dtypes.extended))


def dtype_text(dtype: Any) -> str:
    """`jnp.float32` and the like."""
    if is_key(dtype):
        raise InexpressibleError(f"dtype {dtype}")
    if dtype == jax.dtypes.float0:
        return "jax.dtypes.float0"
    name = np.dtype(dtype).name
    name = "bool_" if name == "bool" else name
    return f"jnp.{name}" if hasattr(jnp, name) else f"jnp.dtype({name!r})"


def default_dtype(kind: str, x64: bool) -> str:
    """The dtype that JAX gives a Python number of this kind."""
    return {
        "b": "bool",
        "i": "int64" if x64 else "int32",
        "f": "float64" if x64 else "float32",
        "c": "complex128" if x64 else "complex64",
    }.get(kind, "")


def kind_of(dtype: Any) -> str:
    """NumPy's letter for the kind of number, with bfloat16 and its like counted as floating."""
    for kind, abstract in (
        ("b", jnp.bool_),
        ("u", jnp.unsignedinteger),
        ("i", jnp.signedinteger),
        ("c", jnp.complexfloating),
    ):
        if jnp.issubdtype(dtype, abstract):
            return kind
    return "f"


def number(value: Any, dtype: Any) -> Expr | None:
    """A plain Python number that becomes exactly `value` in `dtype`, or None where there is none."""
    array = np.asarray(value).astype(dtype, copy=False)
    kind = kind_of(dtype)
    if kind == "b":
        return Expr(repr(bool(array)))
    if kind in "iu":
        return _signed(repr(int(array)))
    if kind == "c":
        parts = [_real(part, part.dtype) for part in (array.real, array.imag)]
        if None in parts:
            return None
        return Expr(f"complex({', '.join(p.text for p in parts if p)})")
    return _real(array, array.dtype)


def _real(array: Any, dtype: Any) -> Expr | None:
    value = float(array)
    if math.isnan(value):
        return Expr("jnp.nan") if array.tobytes() == np.asarray(math.nan).astype(dtype).tobytes() else None
    if math.isinf(value):
        return _signed("jnp.inf" if value > 0 else "-jnp.inf")
    short = str(array)  # the shortest digits that give this number back
    exact = np.asarray(float(short)).astype(dtype).tobytes() == array.tobytes()
    return _signed(repr(float(short)) if exact else repr(value))


def _signed(text: str) -> Expr:
    return Expr(text, UNARY if text.startswith("-") else ATOM)


def typed_number(value: Any, dtype: Any) -> Expr | None:
    """As `number`, with the dtype spelled out: `jnp.float32(2.0)`."""
    plain = number(value, dtype)
    return None if plain is None else Expr(f"{dtype_text(dtype)}({plain.text})")


def list_text(array: np.ndarray) -> str | None:
    """A small array as nested lists, or None where a NaN would lose its bits."""
    if array.ndim == 0:
        item = number(array, array.dtype)
        return None if item is None else item.text
    items = [list_text(row) for row in array]
    return None if None in items else f"[{', '.join(i for i in items if i is not None)}]"


def param_text(value: Any) -> str:
    """A primitive's parameter as source.

    Raises:
      InexpressibleError: it is a function, a jaxpr, a device, ...
    """
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write(value)
    raise InexpressibleError(f"{type(value).__name__} {str(value)[:60]!r}")


def _sequence(value: Sequence[Any]) -> str:
    fields = getattr(value, "_fields", None)
    if fields is None:
        return tuple_text([param_text(v) for v in value])
    return _record(value, {f: getattr(value, f) for f in fields})


def _record(value: Any, fields: Mapping[str, Any]) -> str:
    """A named tuple of `lax`, such as GatherDimensionNumbers; empty batching dimensions are its default."""
    name = type(value).__name__
    if not hasattr(lax, name):
        raise InexpressibleError(name)
    shown = {f: v for f, v in fields.items() if not (v == () and "batching" in f)}
    return f"lax.{name}({', '.join(f'{f}={param_text(v)}' for f, v in shown.items())})"


def _lax_member(value: Any) -> str:
    name = type(value).__name__
    for module, prefix in ((lax, "lax"), (lax.linalg, "lax.linalg")):
        if hasattr(module, name):
            return f"{prefix}.{name}.{value.name}"
    raise InexpressibleError(f"{name}.{value.name}")


def _primitive(value: Any) -> str:
    text = primitive_text(value)
    if text is None:
        raise InexpressibleError(f"primitive {value.name}")
    return text


def primitive_text(primitive: Any) -> str | None:
    """Where a primitive can be had publicly, as source; None where it can't."""
    attribute = {"add_any": "add_jaxvals"}.get(primitive.name, primitive.name.replace("-", "_")) + "_p"
    for module, prefix in (
        (jex_core.primitives, "primitives"),
        (lax, "lax"),
        (lax.linalg, "lax.linalg"),
    ):
        if getattr(module, attribute, None) is primitive:
            return f"{prefix}.{attribute}"
    return None


def spec_text(spec: Any) -> str:
    return f"jax.P({', '.join(param_text(axis) for axis in spec)})"


def is_placed(sharding: Any) -> bool:
    """True where a sharding says anything; one over no mesh is what a trace without a mesh leaves."""
    return sharding is not None and bool(getattr(getattr(sharding, "mesh", None), "axis_names", True))


def mesh_text(mesh: Any) -> str:
    """A mesh of the same shape and axis names over this process's own devices."""
    kinds = tuple_text([f"jax.sharding.AxisType.{t.name}" for t in mesh.axis_types])
    return f"jax.make_mesh({param_text(mesh.axis_sizes)}, {param_text(mesh.axis_names)}, axis_types={kinds})"


def _sharding(value: Any) -> str:
    return f"jax.NamedSharding({mesh_text(value.mesh)}, {spec_text(value.spec)})"


def _float_text(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


_RAGGED = ("lhs_ragged_dimensions", "rhs_group_dimensions")

_WRITERS: tuple[tuple[Any, Any], ...] = (
    (type(None), repr),
    ((bool, np.bool_), lambda v: repr(bool(v))),
    (enum.Enum, _lax_member),
    ((int, np.integer), lambda v: repr(int(v))),
    ((float, np.floating), lambda v: _float_text(float(v))),
    (complex, repr),
    (str, lambda v: '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' if v.isprintable() else repr(v)),
    (jax.sharding.PartitionSpec, spec_text),
    (jax.NamedSharding, _sharding),
    (jax.sharding.Mesh, mesh_text),
    ((tuple, list), _sequence),
    (frozenset, lambda v: f"frozenset({tuple_text([param_text(x) for x in sorted(v)])})" if v else "frozenset()"),
    (
        lax.RaggedDotDimensionNumbers,
        lambda v: _record(v, {f: getattr(v, f) for f in ("dot_dimension_numbers", *_RAGGED)}),
    ),
    (np.dtype, dtype_text),
    (jex_core.Primitive, _primitive),
    (lax.Tolerance, lambda v: f"lax.Tolerance(atol={v.atol}, rtol={v.rtol}, ulps={v.ulps})"),
)
