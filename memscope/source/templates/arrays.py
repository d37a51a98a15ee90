"""Primitives that make, move and reshape arrays."""

from __future__ import annotations

from typing import Any

from ..expr import ATOM, Expr, call
from ..site import Site, Template
from ..values import dtype_text, is_key, is_placed, number, param_text


def _broadcast(site: Site) -> Expr | None:
    if is_placed(site.params.get("sharding")):
        return None
    shape, dims = site.params["shape"], site.params["broadcast_dimensions"]
    if site.is_literal(0) and not site.out.weak_type:
        return _full(site)
    kept = [shape[d] for d in dims]
    adds_axes = tuple(kept) == site.aval().shape and all(n == 1 for i, n in enumerate(shape) if i not in dims)
    if adds_axes and kept and len(shape) > len(kept) and not is_key(site.out.dtype):
        return Expr(f"{site.args[0].at(ATOM)}[{_new_axes(len(shape), dims)}]")
    return call("lax.broadcast_in_dim", site.args[0], param_text(shape), param_text(dims))


def _new_axes(rank: int, dims: tuple[int, ...]) -> str:
    """`None, :` up to the last new axis: the axes after it need no colon."""
    last = max((i for i in range(rank) if i not in dims), default=-1)
    return ", ".join(":" if i in dims else "None" for i in range(last + 1)) or "..."


def _full(site: Site) -> Expr:
    literal: Any = site.eqn.invars[0]
    shape, dtype, value = param_text(site.params["shape"]), dtype_text(site.out.dtype), literal.val
    if value == 0 and str(value) in ("0", "0.0", "0j", "False"):
        return call("jnp.zeros", shape, dtype)
    return call("jnp.full", shape, number(value, site.out.dtype) or site.args[0], dtype)


def _iota(site: Site) -> Expr | None:
    p = site.params
    if is_placed(p.get("sharding")) or site.args:
        return None
    if len(p["shape"]) == 1:
        return call("lax.iota", dtype_text(p["dtype"]), param_text(p["shape"][0]))
    return call("lax.broadcasted_iota", dtype_text(p["dtype"]), param_text(p["shape"]), param_text(p["dimension"]))


def _reshape(site: Site) -> Expr | None:
    p = site.params
    if is_placed(p.get("sharding")) or len(site.args) != 1:
        return None
    dimensions = None if p["dimensions"] is None else param_text(p["dimensions"])
    return call("lax.reshape", site.args[0], param_text(p["new_sizes"]), dimensions=dimensions)


def _transpose(site: Site) -> Expr:
    permutation = tuple(site.params["permutation"])
    if permutation == (1, 0) and not is_key(site.out.dtype):
        return Expr(f"{site.args[0].at(ATOM)}.T")
    return call("lax.transpose", site.args[0], param_text(permutation))


def _slice(site: Site) -> Expr:
    p = site.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    bounds = list(zip(p["start_indices"], p["limit_indices"], strides, site.aval().shape, strict=True))
    if is_key(site.out.dtype) or 0 in site.out.shape or any(step > 1 for _, _, step, _ in bounds):
        shown = [k for k in ("start_indices", "limit_indices", "strides") if p[k] is not None]
        return call("lax.slice", site.args[0], *(param_text(p[k]) for k in shown))
    if site.out.shape == site.aval().shape:
        return site.args[0]
    parts = [_range(int(start), int(stop), size) for start, stop, _, size in bounds]
    while len(parts) > 1 and parts[-1] == ":":
        parts.pop()
    return Expr(f"{site.args[0].at(ATOM)}[{', '.join(parts)}]")


def _range(start: int, stop: int, size: int) -> str:
    return f"{start or ''}:{'' if stop == size else stop}"


def _squeeze(site: Site) -> Expr:
    return call("lax.squeeze", site.args[0], param_text(site.params["dimensions"]))


def _several(function: str, parameter: str) -> Template:
    def write(site: Site) -> Expr:
        operands = ", ".join(a.text for a in site.args)
        return call(function, f"[{operands}]", param_text(site.params[parameter]))

    return write


def _split(site: Site) -> Expr:
    return call("lax.split", site.args[0], param_text(site.params["sizes"]), axis=param_text(site.params["axis"]))


def _pad(site: Site) -> Expr:
    return call("lax.pad", *site.args, param_text(site.params["padding_config"]))


def _barrier(site: Site) -> Expr:
    if len(site.args) == 1:
        return call("lax.optimization_barrier", site.args[0])
    return call("lax.optimization_barrier", f"({', '.join(a.text for a in site.args)})")


def _sharding_constraint(site: Site) -> Expr:
    return call("lax.with_sharding_constraint", site.args[0], param_text(site.params["sharding"]))


ARRAYS: dict[str, Template] = {
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "squeeze": _squeeze,
    "concatenate": _several("lax.concatenate", "dimension"),
    "stack": _several("lax.stack", "axis"),
    "split": _split,
    "tile": lambda site: call("lax.tile", site.args[0], param_text(site.params["reps"])),
    "pad": _pad,
    "rev": lambda site: call("lax.rev", site.args[0], param_text(site.params["dimensions"])),
    "optimization_barrier": _barrier,
    "sharding_constraint": _sharding_constraint,
}
