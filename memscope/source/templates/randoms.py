"""Random bits and PRNG keys."""

from __future__ import annotations

from typing import Any

from ..expr import Expr, call
from ..site import Site, Template
from ..values import InexpressibleError, is_placed, param_text

_NAMED = ("threefry2x32", "rbg", "unsafe_rbg")


def impl_text(impl: Any) -> str:
    """The name of a key's implementation; one that a user registered is not in another process."""
    name = str(getattr(impl, "name", impl))
    if name not in _NAMED:
        raise InexpressibleError(f"the PRNG implementation {name!r}")
    return f'"{name}"'


def _bits(site: Site) -> Expr | None:
    p = site.params
    if site.aval().shape:  # the function takes one key, the primitive a batch
        return None
    return call("jax.random.bits", site.args[0], param_text(p["shape"]), f"jnp.uint{p['bit_width']}")


def _wrap(site: Site) -> Expr:
    return call("jax.random.wrap_key_data", site.args[0], impl=impl_text(site.params["impl"]))


def _seed(site: Site) -> Expr:
    return call("jax.random.key", site.args[0], impl=impl_text(site.params["impl"]))


def _split(site: Site) -> Expr | None:
    return None if site.aval().shape else call("jax.random.split", site.args[0], param_text(site.params["shape"]))


def _fold_in(site: Site) -> Expr | None:
    return None if site.aval().shape or site.aval(1).shape else call("jax.random.fold_in", *site.args)


def _generator(site: Site) -> Expr | None:
    p = site.params
    if is_placed(p.get("sharding")) or is_placed(p.get("out_sharding")):
        return None
    dtype = f"jnp.{p['dtype']}"
    algorithm = param_text(p["algorithm"])
    return call("lax.rng_bit_generator", site.args[0], param_text(p["shape"]), dtype, algorithm=algorithm)


RANDOMS: dict[str, Template] = {
    "random_bits": _bits,
    "random_wrap": _wrap,
    "random_unwrap": lambda site: call("jax.random.key_data", site.args[0]),
    "random_seed": _seed,
    "random_split": _split,
    "random_fold_in": _fold_in,
    "random_clone": lambda site: call("jax.random.clone", site.args[0]),
    "rng_bit_generator": _generator,
    "rng_uniform": lambda site: call("lax.rng_uniform", *site.args, param_text(site.params["shape"])),
}
