"""Reductions, cumulative operations and orderings."""

from __future__ import annotations

from ..expr import Expr, call
from ..site import Site, Template
from ..values import dtype_text, is_placed, param_text


def _reduce(lax_name: str, jnp_name: str, kinds: str) -> Template:
    """The `jnp` function where it does exactly the primitive (it would widen small dtypes)."""

    def write(site: Site) -> Expr | None:
        if is_placed(site.params.get("out_sharding")):
            return None
        axes = tuple(int(a) for a in site.params["axes"])
        narrow = jnp_name in ("sum", "prod") and site.aval().dtype.itemsize < 4
        empty = 0 in site.aval().shape or not axes or site.is_literal(0)
        if site.kind() not in kinds or site.kind() == "" or narrow or empty:
            return call(f"lax.{lax_name}", site.args[0], param_text(axes))
        axis = None if len(axes) == len(site.aval().shape) else param_text(axes[0] if len(axes) == 1 else axes)
        return call(f"jnp.{jnp_name}", site.args[0], axis=axis)

    return write


def _cumulative(name: str) -> Template:
    def write(site: Site) -> Expr:
        reverse = "True" if site.params["reverse"] else None
        return call(f"lax.{name}", site.args[0], axis=param_text(site.params["axis"]), reverse=reverse)

    return write


def _arg(name: str) -> Template:
    def write(site: Site) -> Expr | None:
        axes = site.params["axes"]
        if len(axes) != 1:
            return None
        return call(f"lax.{name}", site.args[0], param_text(axes[0]), dtype_text(site.params["index_dtype"]))

    return write


def _sort(site: Site) -> Expr:
    p = site.params
    operands = site.args[0].text if len(site.args) == 1 else f"({', '.join(a.text for a in site.args)})"
    return call(
        "lax.sort",
        operands,
        dimension=param_text(p["dimension"]),
        is_stable=None if p["is_stable"] else "False",
        num_keys=None if p["num_keys"] == 1 else param_text(p["num_keys"]),
    )


def _top_k(site: Site) -> Expr | None:
    axis = site.params["axis"]
    last = axis in (-1, len(site.aval().shape) - 1)
    return call("lax.top_k", site.args[0], param_text(site.params["k"]), axis=None if last else param_text(axis))


REDUCTIONS: dict[str, Template] = {
    "reduce_sum": _reduce("reduce_sum", "sum", "fc"),
    "reduce_prod": _reduce("reduce_prod", "prod", "fc"),
    "reduce_max": _reduce("reduce_max", "max", "iuf"),
    "reduce_min": _reduce("reduce_min", "min", "iuf"),
    "reduce_and": _reduce("reduce_and", "all", "b"),
    "reduce_or": _reduce("reduce_or", "any", "b"),
    "reduce_xor": lambda site: call("lax.reduce_xor", site.args[0], param_text(site.params["axes"])),
    **{name: _cumulative(name) for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    "argmax": _arg("argmax"),
    "argmin": _arg("argmin"),
    "sort": _sort,
    "top_k": _top_k,
}
