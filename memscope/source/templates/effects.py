"""What a program does beside computing."""

from __future__ import annotations

from typing import Any

import jax

from ..expr import Expr, call
from ..site import Site, Template
from ..values import InexpressibleError, param_text


def _debug_print(site: Site) -> Expr:
    p = site.params
    if p.get("logging_record") is not None or p.get("static_args"):
        raise InexpressibleError("it prints what is no array")
    args, kwargs = jax.tree.unflatten(p["in_tree"], [a.text for a in site.args])
    ordered = "True" if p["ordered"] else None
    named = {name: _leaf(value) for name, value in kwargs.items()}
    return call("jax.debug.print", param_text(p["fmt"]), *[_leaf(a) for a in args], ordered=ordered, **named)


def _leaf(value: Any) -> str:
    if not isinstance(value, str):
        raise InexpressibleError("it prints a nested structure")
    return value


EFFECTS: dict[str, Template] = {"debug_print": _debug_print}
