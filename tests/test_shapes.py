from __future__ import annotations

import jax
import pytest

from memscope.options import UsageError
from memscope.shapes import DTYPES, needs_x64, parse_shapes, write_shapes


def test_one_struct_for_each_shape() -> None:
    q, x, i, s = parse_shapes("f32[2000,64] bf16[20_000, 64], i32[7] f32[]")
    assert (q.shape, q.dtype) == ((2000, 64), "float32")
    assert (x.shape, x.dtype) == ((20000, 64), "bfloat16")
    assert (i.shape, i.dtype) == ((7,), "int32")
    assert (s.shape, s.dtype) == ((), "float32")


def test_nothing_is_no_argument() -> None:
    assert parse_shapes("") == parse_shapes("  ") == ()


@pytest.mark.parametrize(("short", "dtype"), DTYPES.items())
def test_every_dtype(short: str, dtype: str) -> None:
    with jax.enable_x64(True):
        (struct,) = parse_shapes(f"{short}[3]")
        assert struct.dtype == dtype
        assert parse_shapes(write_shapes([struct])) == (struct,)


def test_64_bits_are_noticed() -> None:
    assert needs_x64("f32[2] f64[3]")
    assert needs_x64("s64[]")
    assert not needs_x64("f32[64] c64[2]")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("f32[2000,64", "f32[2000,64"),
        ("f32", "f32"),
        ("f32[a]", "whole numbers"),
        ("f32[-1]", "whole numbers"),
        ("f32[2.5]", "whole numbers"),
        ("f32[2] and f32[3]", "'and'"),
        ("f33[2]", "f32"),
        ("float32[2]", "use f32"),
        ("(f32[2], f32[3])", "'('"),
    ],
)
def test_what_is_no_shape_is_named(text: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shapes(text)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
