"""Elementwise primitives: operators where Python has one of the same meaning, else functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..expr import AND, ATOM, COMPARE, OR, POWER, PRODUCT, SUM, UNARY, XOR, Expr, call
from ..site import Site, Template
from ..values import (
    default_dtype,
    dtype_text,
    is_key,
    is_placed,
    kind_of,
    number,
    param_text,
    typed_number,
)


def infix(symbol: str, level: int, kinds: str, otherwise: str, *, associative: bool = False) -> Template:
    """An operator for operands of these kinds of number; `otherwise` the `lax` function."""

    def write(site: Site) -> Expr | None:
        if site.params.get("out_dtype") is not None:
            return None
        if site.kind() not in kinds or site.kind() == "" or site.kind() != site.kind(1):
            return call(f"lax.{otherwise}", *site.args)
        left, right = site.loose
        return Expr(f"{left.at(level)} {symbol} {right.at(level if associative else level + 1)}", level)

    return write


_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compare(symbol: str, otherwise: str) -> Template:
    def write(site: Site) -> Expr:
        if site.kind() == "" or (site.kind() == "c" and symbol not in ("==", "!=")):
            return call(f"lax.{otherwise}", *site.args)
        left, right = site.loose
        if left == right or (site.kind() == "b" and (site.is_literal(0) or site.is_literal(1))):
            # A test for NaN and a comparison with True are what linters take for a slip.
            return call(f"lax.{otherwise}", *site.args)
        if site.is_literal(0) and not site.is_literal(1):
            return Expr(f"{right.at(COMPARE + 1)} {_MIRRORED[symbol]} {left.at(COMPARE + 1)}", COMPARE)
        return Expr(f"{left.at(COMPARE + 1)} {symbol} {right.at(COMPARE + 1)}", COMPARE)

    return write


def unary(function: str) -> Template:
    """`function(x)`, with a parameter `accuracy` passed on where it is set."""

    def write(site: Site) -> Expr:
        accuracy = site.params.get("accuracy")
        if accuracy is None:
            return call(function, *site.args)
        exact = function.replace("jnp.", "lax.").replace("lax.sigmoid", "lax.logistic")
        return call(exact, *site.args, accuracy=param_text(accuracy))

    return write


def function(name: str) -> Template:
    return lambda site: call(f"lax.{name}", *site.args)


def extremum(jnp_name: str, lax_name: str) -> Template:
    def write(site: Site) -> Expr:
        if site.kind() in ("b", "c", ""):
            return call(f"lax.{lax_name}", *site.args)
        return call(f"jnp.{jnp_name}", *site.loose)

    return write


def _negative(site: Site) -> Expr:
    # `--x` is what linters take for a slip; `-2.0` would be Python's own number.
    if site.args[0].level == UNARY or site.is_literal(0):
        return call("lax.neg", site.args[0])
    return Expr(f"-{site.args[0].at(UNARY)}", UNARY)


def _invert(site: Site) -> Expr:
    if site.is_literal(0):
        return call("lax.bitwise_not", site.args[0])
    return Expr(f"~{site.args[0].at(UNARY)}", UNARY)


def _integer_pow(site: Site) -> Expr:
    y = site.params["y"]
    if y in (2, 3) and site.kind() in "if" and not site.is_literal(0):
        return Expr(f"{site.args[0].at(ATOM)} ** {y}", POWER)
    return call("lax.integer_pow", site.args[0], repr(int(y)))


def _select(site: Site) -> Expr:
    plain = len(site.args) == 3 and site.kind() == "b" and not is_key(site.out.dtype)
    if plain and site.aval(0).shape == site.aval(1).shape and not site.is_literal(0):
        return call("jnp.where", site.loose[0], site.loose[2], site.loose[1])
    return call("lax.select_n", *site.args)


def _cast(site: Site) -> Expr | None:
    if is_placed(site.params.get("sharding")) or is_key(site.out.dtype):
        return None
    dtype, source, target = site.params["new_dtype"], site.kind(), kind_of(site.params["new_dtype"])
    if source == "i" and dtype == site.aval().dtype and not site.returned and not site.is_literal(0):
        return site.args[0]  # a loop's counter made strong: the integers it meets are
    folded = _constant(site) if site.is_literal(0) else None
    if folded is not None:
        return folded
    if site.params["weak_type"] and dtype == default_dtype(target, site.x64):
        python = {"b": "bool", "i": "int", "f": "float", "c": "complex"}[target]
        return call("lax.convert_element_type", site.args[0], python)
    literal = site.is_literal(0)
    if source in "biuf" and target in "iuf" and dtype != site.aval().dtype and not literal:
        return Expr(f"{site.args[0].at(ATOM)}.astype({dtype_text(dtype)})")
    return call("lax.convert_element_type", site.args[0], dtype_text(dtype))


def _constant(site: Site) -> Expr | None:
    """A converted number, converted here: so does JAX while it traces."""
    literal: Any = site.eqn.invars[0]
    dtype, source = site.params["new_dtype"], site.kind()
    if literal.aval.shape or not source or (source in "fc" and kind_of(dtype) not in "fc"):
        return None  # a float out of an integer's range becomes what the device makes of it
    value = np.asarray(literal.val).astype(dtype)
    if not site.params["weak_type"]:
        return typed_number(value, dtype)
    plain = number(value, dtype) if dtype == default_dtype(kind_of(dtype), site.x64) else None
    return None if plain is None else call("jnp.asarray", plain)


def _round(site: Site) -> Expr:
    return call("lax.round", site.args[0], param_text(site.params["rounding_method"]))


def _reduce_precision(site: Site) -> Expr:
    bits = (param_text(site.params[name]) for name in ("exponent_bits", "mantissa_bits"))
    return call("lax.reduce_precision", site.args[0], *bits)


def _bitcast(site: Site) -> Expr:
    return call("lax.bitcast_convert_type", site.args[0], dtype_text(site.params["new_dtype"]))


def _polynomial(site: Site) -> Expr:
    x, *coefficients = site.args
    return call("lax.polynomial", x, f"[{', '.join(c.text for c in coefficients)}]")


_NUMPY = "exp exp2 expm1 log log2 log1p sin cos tan tanh sqrt floor ceil".split()
_JNP = {name: unary(f"jnp.{name}") for name in _NUMPY}
_LAX = """
    abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt cosh digamma erf erf_inv erfc imag
    is_finite lgamma real rsqrt sign sinh square logistic one_minus_square
""".split()
_FUNCTIONS = """
    atan2 clz complex conj igamma igamma_grad_a igammac mulhi nextafter polygamma population_count pow
    random_gamma_grad rem shift_left shift_right_arithmetic shift_right_logical stop_gradient zeta clamp
""".split()

ELEMENTWISE: dict[str, Template] = {
    **_JNP,
    **{name: unary(f"lax.{name}") for name in _LAX},
    **{name: function(name) for name in _FUNCTIONS},
    "add": infix("+", SUM, "iufc", "add"),
    "add_any": infix("+", SUM, "iufc", "add"),
    "sub": infix("-", SUM, "iufc", "sub"),
    "mul": infix("*", PRODUCT, "iufc", "mul"),
    "div": infix("/", PRODUCT, "fc", "div"),
    "and": infix("&", AND, "biu", "bitwise_and", associative=True),
    "or": infix("|", OR, "biu", "bitwise_or", associative=True),
    "xor": infix("^", XOR, "biu", "bitwise_xor", associative=True),
    "eq": compare("==", "eq"),
    "ne": compare("!=", "ne"),
    "lt": compare("<", "lt"),
    "le": compare("<=", "le"),
    "gt": compare(">", "gt"),
    "ge": compare(">=", "ge"),
    "max": extremum("maximum", "max"),
    "min": extremum("minimum", "min"),
    "neg": _negative,
    "not": _invert,
    "integer_pow": _integer_pow,
    "regularized_incomplete_beta": function("betainc"),
    "select_n": _select,
    "polynomial": _polynomial,
    "convert_element_type": _cast,
    "round": _round,
    "reduce_precision": _reduce_precision,
    "bitcast_convert_type": _bitcast,
    "copy": lambda site: call("jnp.copy", site.args[0]),
    "copy_p": lambda site: call("jnp.copy", site.args[0]),
}
