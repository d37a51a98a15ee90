"""Arguments written as text: "f32[2000,64] f32[20000,64]"."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import jax

from .options import UsageError

DTYPES = {
    "bool": "bool",
    "pred": "bool",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
    **{f"{letter}{bits}": f"int{bits}" for letter in "is" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
_WIDE = {"float64", "complex128", "int64", "uint64"}
_SHAPE = re.compile(r"(?P<dtype>\w+)\[(?P<dims>[^\[\]]*)\]")
_EXPECTED = 'write one shape for each argument, as in "f32[2000,64] i32[2000] f32[]"'


def parse_shapes(text: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The arguments that `text` describes; needs x64 where `needs_x64(text)`.

    Raises:
      UsageError: something in `text` is no shape, or its dtype is unknown.
    """
    structs, end = [], 0
    for match in _SHAPE.finditer(text):
        _check_gap(text[end : match.start()])
        structs.append(jax.ShapeDtypeStruct(_dims(match), _dtype(match["dtype"], match[0])))
        end = match.end()
    _check_gap(text[end:])
    return tuple(structs)


def needs_x64(text: str) -> bool:
    """True where a dtype in `text` has 64 bits, which JAX cuts to 32 unless told otherwise."""
    return any(DTYPES.get(match["dtype"]) in _WIDE for match in _SHAPE.finditer(text))


def write_shapes(structs: Iterable[jax.ShapeDtypeStruct]) -> str:
    """The text that `parse_shapes` reads back."""
    names = {dtype: short for short, dtype in reversed(DTYPES.items())} | {"bool": "bool"}
    return " ".join(f"{names.get(s.dtype.name, s.dtype.name)}[{','.join(map(str, s.shape))}]" for s in structs)


def _dims(match: re.Match[str]) -> tuple[int, ...]:
    if not match["dims"].strip():
        return ()
    dims = [dim.strip().replace("_", "") for dim in match["dims"].split(",")]
    if not all(dim.isdecimal() for dim in dims):
        raise UsageError(f"{match[0]!r} is not a shape: its sizes must be whole numbers; {_EXPECTED}.")
    return tuple(map(int, dims))


def _dtype(short: str, token: str) -> str:
    if short in DTYPES:
        return DTYPES[short]
    full = {dtype: name for name, dtype in DTYPES.items()}
    near = [full[short]] if short in full else difflib.get_close_matches(short, DTYPES, n=3, cutoff=0.4)
    offer = ", ".join(near or sorted(set(DTYPES)))
    raise UsageError(f"{token!r} has an unknown dtype {short!r}: use {offer}.")


def _check_gap(text: str) -> None:
    rest = text.strip().strip(",").strip()
    if rest:
        raise UsageError(f"{rest!r} is not a shape: {_EXPECTED}.")
