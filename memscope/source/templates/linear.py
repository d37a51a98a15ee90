"""Contractions, convolutions, factorisations and Fourier transforms."""

from __future__ import annotations

from typing import Any

from ..expr import PRODUCT, Expr, call
from ..site import Site, Template
from ..values import dtype_text, is_key, is_placed, param_text


def _dtype(dtype: Any) -> str | None:
    return None if dtype is None else dtype_text(dtype)


def _dot(site: Site) -> Expr | None:
    p = site.params
    if is_placed(p.get("out_sharding")):
        return None
    if _is_matmul(site):
        return Expr(f"{site.args[0].at(PRODUCT)} @ {site.args[1].at(PRODUCT + 1)}", PRODUCT)
    return call(
        "lax.dot_general",
        *site.args,
        param_text(p["dimension_numbers"]),
        precision=None if p["precision"] is None else param_text(p["precision"]),
        preferred_element_type=_dtype(p["preferred_element_type"]),
    )


def _is_matmul(site: Site) -> bool:
    """True where `a @ b` traces to this very eqn."""
    p, a, b = site.params, site.aval(0), site.aval(1)
    ranks = (len(a.shape), len(b.shape))
    contract = ((ranks[0] - 1,), (0,))
    dims = tuple(tuple(tuple(int(i) for i in axes) for axes in pair) for pair in p["dimension_numbers"])
    return (
        set(ranks) <= {1, 2}
        and dims == (contract, ((), ()))
        and p["precision"] is None
        and a.dtype == b.dtype == p["preferred_element_type"]
        and not is_key(a.dtype)
        and not (site.is_literal(0) or site.is_literal(1))
    )


def _ragged_dot(site: Site) -> Expr | None:
    p = site.params
    if p.get("group_offset") is not None or is_placed(p.get("out_sharding")) or len(site.args) != 3:
        return None
    return call(
        "lax.ragged_dot_general",
        *site.args,
        param_text(p["ragged_dot_dimension_numbers"]),
        precision=param_text(p["precision"]),
        preferred_element_type=_dtype(p["preferred_element_type"]),
    )


def _conv(site: Site) -> Expr | None:
    p = site.params
    if is_placed(p.get("out_sharding")):
        return None
    options = "window_strides padding lhs_dilation rhs_dilation dimension_numbers".split()
    counts = [name for name in ("feature_group_count", "batch_group_count") if p[name] != 1]
    return call(
        "lax.conv_general_dilated",
        *site.args,
        **{name: param_text(p[name]) for name in (*options, *counts)},
        precision=None if p["precision"] is None else param_text(p["precision"]),
        preferred_element_type=_dtype(p["preferred_element_type"]),
    )


def _triangular_solve(site: Site) -> Expr:
    flags = "left_side lower transpose_a conjugate_a unit_diagonal".split()
    shown = {name: "True" for name in flags if site.params[name]}
    return call("lax.linalg.triangular_solve", *site.args, **shown)


def _lu(site: Site) -> Expr:
    return call("lax.linalg.lu", site.args[0])


def _fft(site: Site) -> Expr:
    return call("lax.fft", site.args[0], param_text(site.params["fft_type"]), param_text(site.params["fft_lengths"]))


LINEAR: dict[str, Template] = {
    "dot_general": _dot,
    "ragged_dot_general": _ragged_dot,
    "conv_general_dilated": _conv,
    "triangular_solve": _triangular_solve,
    "lu": _lu,
    "fft": _fft,
}
