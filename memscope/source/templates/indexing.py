"""Slices at run-time positions, gathers and scatters."""

from __future__ import annotations

from ..expr import Expr, call, tuple_text
from ..site import Site, Template
from ..values import param_text


def _dynamic_slice(site: Site) -> Expr:
    starts = tuple_text([a.text for a in site.args[1:]]) if len(site.args) > 1 else "()"
    sizes = param_text(site.params["slice_sizes"])
    return call("lax.dynamic_slice", site.args[0], starts, sizes, allow_negative_indices=_in_range(site, 1))


def _dynamic_update_slice(site: Site) -> Expr:
    starts = tuple_text([a.text for a in site.args[2:]]) if len(site.args) > 2 else "()"
    return call("lax.dynamic_update_slice", *site.args[:2], starts, allow_negative_indices=_in_range(site, 2))


def _in_range(site: Site, first: int) -> str | None:
    """The primitive clamps and no more; by default the function counts negative starts from the end."""
    return None if all(site.is_literal(i) for i in range(first, len(site.args))) else "False"


def _flags(site: Site) -> dict[str, str | None]:
    return {
        "unique_indices": "True" if site.params["unique_indices"] else None,
        "indices_are_sorted": "True" if site.params["indices_are_sorted"] else None,
        "mode": None if site.params["mode"] is None else param_text(site.params["mode"]),
    }


def _gather(site: Site) -> Expr:
    p = site.params
    fill = p.get("fill_value")
    return call(
        "lax.gather",
        *site.args,
        param_text(p["dimension_numbers"]),
        slice_sizes=param_text(p["slice_sizes"]),
        **_flags(site),
        fill_value=None if fill is None else param_text(fill),
    )


def _scatter(name: str) -> Template:
    def write(site: Site) -> Expr:
        return call(f"lax.{name}", *site.args, param_text(site.params["dimension_numbers"]), **_flags(site))

    return write


INDEXING: dict[str, Template] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter("scatter"),
    **{f"scatter-{op}": _scatter(f"scatter_{op}") for op in ("add", "sub", "mul", "min", "max")},
    **{f"scatter_{op}": _scatter(f"scatter_{op}") for op in ("add", "sub", "mul", "min", "max")},
}
