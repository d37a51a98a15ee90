"""Arrays made again for each instruction that reads them: zeros, and slices of arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memscope
from memscope.compile import Build, Compiled, compile_program
from memscope.hlo.arithmetic import arithmetic
from memscope.hlo.module import parse_module
from memscope.schedule.remade import readers_of, remade, worth_remaking
from memscope.target import resolve
from memscope.trace import trace

PLACES = np.arange(500)[::-1] % 200
X = np.linspace(0, 3, 500 * 32, dtype=np.float32).reshape(500, 32)
XS = np.linspace(-1, 1, 6 * 64 * 64, dtype=np.float32).reshape(6, 64, 64)
W = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)


def scattered(x: jax.Array) -> jax.Array:
    """Zeros that each of four rounds adds to: XLA makes them once."""
    for _ in range(4):
        added = jnp.sort(jnp.tanh(x)[:, :, None] * jnp.arange(1.0, 40.0), 0).sum(-1)
        x = jnp.cos(jnp.zeros((500, 32)).at[PLACES].add(added))
    return x


def sliced(xs: jax.Array, w: jax.Array) -> jax.Array:
    """Slices of an argument that are read early and late."""
    h, before = jnp.zeros((64, 64)), []
    for x in xs:
        h = jnp.tanh(h @ w + x.T @ x.T)
        before.append(h)
    for x, early in zip(xs, before, strict=True):
        h = jnp.tanh(h @ w + jnp.sin(x.T @ early))
    return h


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scattered": (scattered, (X,)),
    "sliced": (sliced, (XS, W)),
    "sliced and doubled": (lambda xs, w: (xs * 2, sliced(xs, w)), (XS, W)),
    "sliced gradient": (jax.grad(lambda xs, w: (sliced(xs, w) ** 2).sum(), 1), (XS, W)),
}


@functools.cache
def compiled(name: str, *donated: int) -> Compiled:
    fn, args = PROGRAMS[name]
    return compile_program(trace(fn, args, donate_argnums=donated).as_traced, Build.PLAIN, resolve("cpu"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_fewer_bytes_the_same_bits_as_predicted(name: str) -> None:
    fn, args = PROGRAMS[name]
    found = memscope.schedule(fn, *args, seconds=1)
    best = found.found.best
    assert best.remade
    assert best.predicted_temp_bytes == pytest.approx(best.temp_bytes, rel=0.01)
    assert found.temp_bytes < 0.96 * min(each.temp_bytes for each in found.found.confirmed if each is not best)
    assert "made again" in str(found)
    want, got = jax.jit(fn)(*args), found.fn(*args)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(a, b)


def test_each_reader_has_an_array_of_its_own_and_copies_become_one() -> None:
    before = compiled("scattered")
    module = parse_module(before.module)
    names = worth_remaking(module, before.temp_bytes)
    (readers,) = readers_of(module, names).values()
    assert len(readers) == 4
    after = parse_module(remade(before.module, names))
    assert arithmetic(remade(before.module, names)) == arithmetic(before.module)
    assert sum(i.opcode == "copy" for i in module.entry.instructions) == 3
    assert not any(i.opcode == "copy" for i in after.entry.instructions)
    made = {i.called for i in after.entry.instructions if i.shape.dimensions == (500, 32) and not i.operands[1:]}
    assert len(made) >= 4  # a fusion has a computation of its own
    assert len({i.id for c in after.computations for i in c.instructions}) == len(after.instructions)


def test_what_is_not_worth_it_or_may_be_written_over_is_left_alone() -> None:
    plain = compiled("sliced")
    module = parse_module(plain.module)
    assert worth_remaking(module, plain.temp_bytes)
    assert not worth_remaking(module, 1 << 40)
    kept, given = compiled("sliced and doubled"), compiled("sliced and doubled", 0)
    assert worth_remaking(parse_module(kept.module), kept.temp_bytes)
    assert parse_module(given.module).donations
    assert not worth_remaking(parse_module(given.module), given.temp_bytes)


def test_names_that_are_not_there_change_nothing() -> None:
    serialized = compiled("sliced").module
    assert remade(serialized, ()) == serialized
    before, after = (parse_module(module).entry for module in (serialized, remade(serialized, {"nothing"})))
    assert [i.name for i in before.instructions] == [i.name for i in after.instructions]
    assert before.text == after.text  # the order in which XLA writes instructions


def test_nothing_is_made_again_where_that_saves_nothing() -> None:
    """Both readers run one after the other, before the peak."""

    def fn(xs: jax.Array, w: jax.Array) -> jax.Array:
        early = jnp.tanh(xs[0].T @ w) @ jnp.cos(xs[0].T @ w.T)
        large = jnp.sort(early[:, :, None] * jnp.arange(1.0, 200.0), 0)
        return large.sum(-1)

    found = memscope.schedule(fn, XS, W, seconds=1)
    assert not found.found.best.remade
    assert not any(".for." in instruction for instruction in found.order)
