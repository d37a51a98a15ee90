from __future__ import annotations

import functools
import pathlib
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memscope.call import Call, abstract_arguments, is_static, user_traceback
from memscope.options import Options, UsageError


def plain(x: Any, k: int = 3) -> Any:
    return jax.lax.top_k(x, k)


@pytest.mark.parametrize("value", [3, True, "sum", None, len, (3, 4), ("a", 1), np.float32])
def test_what_belongs_to_the_call_is_static(value: object) -> None:
    assert is_static(value)


@pytest.mark.parametrize(
    "value", [0.5, 1j, np.float32(2), np.ones(2), jnp.ones(2), (jnp.ones(2), 3), {"k": 3}, [1, 2], (), (1, 0.5)]
)
def test_what_is_traced(value: object) -> None:
    assert not is_static(value)


def test_static_arguments_by_position_and_name() -> None:
    call = Call(plain, (np.ones(5), 2), {"mode": "clip", "scale": 0.5})
    assert call.static_argnums == (1,)
    assert call.static_argnames == ("mode",)


def test_a_call_without_values_says_so() -> None:
    assert Call(plain, (jax.ShapeDtypeStruct((3,), "float32"),)).abstract
    assert not Call(plain, (np.ones(3),)).abstract


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (Call(plain, ()), "missing a required argument: 'x'"),
        (Call(plain, (1, 2, 3)), "too many positional arguments"),
        (Call(plain, (1,), {"j": 2}), "unexpected keyword argument 'j'"),
        (Call(3, (1,)), "type int can't be called"),  # type: ignore[arg-type]
        (Call(functools.partial(plain, k=1), (1,), {"limit": 2}), "functools.partial(plain, limit=...)"),
    ],
)
def test_what_is_bound_to_fail_is_refused(call: Call, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        call.check()
    assert said in str(caught.value)


def test_a_non_jax_argument_is_refused_with_a_sentence() -> None:
    call = Call(plain, ([object()],))
    with pytest.raises(UsageError, match="which is no JAX type"):
        call.profile(Options())


def test_abstract_arguments_allocate_nothing() -> None:
    def make_args() -> tuple[Any, ...]:
        return jnp.ones((10**7, 10**4)), 3, {"w": jnp.zeros(4, jnp.int32)}, "clip"

    huge, three, tree, text = abstract_arguments(make_args)
    assert huge == jax.ShapeDtypeStruct((10**7, 10**4), jnp.float32)
    assert tree == {"w": jax.ShapeDtypeStruct((4,), jnp.int32)}
    assert (three, text) == (3, "clip")


def test_arguments_that_cannot_be_traced_are_made() -> None:
    def make_args() -> tuple[Any, ...]:
        x = jnp.arange(4.0)
        return (x * float(x.sum()),)

    (x,) = abstract_arguments(make_args)
    np.testing.assert_allclose(np.asarray(x), np.arange(4.0) * 6)


def test_shapes_stay_shapes() -> None:
    struct = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert abstract_arguments(lambda: (struct, np.ones(3))) == (struct, jax.ShapeDtypeStruct((3,), jnp.float32))


def test_arguments_that_raise_raise() -> None:
    with pytest.raises(ZeroDivisionError):
        abstract_arguments(lambda: (1 / 0,))


def test_the_users_traceback_has_no_frame_of_memscope() -> None:
    def fails(x: Any) -> Any:
        return x + 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        Call(fails, (np.ones(3),)).profile(Options())
    files = {pathlib.Path(f.filename).parts[-2] for f in traceback.extract_tb(user_traceback(caught.value))}
    assert "memscope" not in files
    assert traceback.extract_tb(user_traceback(caught.value))[-1].name == "fails"
