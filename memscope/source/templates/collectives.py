"""What only means something inside `shard_map`."""

from __future__ import annotations

from ..expr import Expr, call, packed
from ..site import Site, Template
from ..values import param_text


def _psum(name: str) -> Template:
    def write(site: Site) -> Expr | None:
        if site.params.get("axis_index_groups") is not None:
            return None
        return call(f"lax.{name}", packed([a.text for a in site.args]), param_text(site.params["axes"]))

    return write


COLLECTIVES: dict[str, Template] = {
    "psum": _psum("psum"),
    "psum_invariant": _psum("psum"),
    "pmax": _psum("pmax"),
    "pmin": _psum("pmin"),
    "pvary": lambda site: call("lax.pcast", site.args[0], param_text(site.params["axes"]), to='"varying"'),
    "axis_index": lambda site: call("lax.axis_index", param_text(site.params["axis_name"])),
}
