"""Source against the program it was written from: same primitives, same values, same types, nothing but JAX."""

from __future__ import annotations

import ast
import collections
import dataclasses
import importlib.util
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex_core

from memscope._jax_private import scan_operands
from memscope.inline import inline
from memscope.program import Program
from memscope.source import python_source
from memscope.trace import trace

HERE = pathlib.Path(__file__).parent
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(6, 5)), jnp.float32)
W = jnp.asarray(RNG.normal(size=(5, 5)), jnp.float32)
V = jnp.asarray(RNG.normal(size=(5,)), jnp.float32)
I = jnp.asarray(RNG.integers(0, 5, size=(6,)), jnp.int32)  # noqa: E741
K = jax.random.key(3)


def written(program: Program, **options: Any) -> str:
    return python_source(
        program.closed,
        name=program.name,
        in_tree=program.in_tree,
        out_tree=program.out_tree,
        argument_names=program.argument_names,
        header=options.pop("header", "A test."),
        compiler_options=options.pop("compiler_options", {}),
        x64=program.x64,
        donated=program.donated,
        **options,
    )


def loaded(source: str, name: str) -> dict[str, Any]:
    """The module that `source` makes, with what it may import checked."""
    roots = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert roots <= {"jax", "numpy", "base64"}
    assert max(map(len, source.splitlines())) < 100
    namespace: dict[str, Any] = {"__name__": "exported"}
    exec(compile(source, f"{name}_safe.py", "exec"), namespace)
    return namespace


def check(fn: Callable[..., Any], *args: Any, tolerance: float = 0.0, same: bool = True, **kwargs: Any) -> str:
    """Traces, writes, executes and compares; the source."""
    program = trace(fn, args, kwargs)
    source = written(program)
    namespace = loaded(source, program.name)
    with jax.enable_x64(program.x64):
        again = trace(namespace[f"_{program.name}"], args, kwargs)
        run = jax.jit(lambda *flat: jex_core.jaxpr_as_fun(program.closed)(*flat))
        want = run(*jax.tree.leaves((args, kwargs)))
    got = namespace[f"{program.name}_safe"](*args, **kwargs)
    compare(jax.tree.leaves(got), want, tolerance)
    if same:
        different = differences(program.closed, again.closed)
        assert not different, f"{different[:3]}"
    if "flat tuple" not in source:
        assert jax.tree.structure(got) == program.out_tree
    return source


def compare(got: Any, want: Any, tolerance: float = 0.0) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        if jnp.issubdtype(g.dtype, jax.dtypes.prng_key):
            g, w = jax.random.key_data(g), jax.random.key_data(w)
        assert getattr(g, "weak_type", False) == getattr(w, "weak_type", False)
        exact = not jnp.issubdtype(g.dtype, jnp.inexact) or tolerance == 0.0
        if exact:
            np.testing.assert_array_equal(np.asarray(g), np.asarray(w))
        else:
            np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=tolerance, atol=tolerance)


# Two jaxprs side by side, whatever the order of their eqns


class Graph:
    """Numbers each distinct computation, so that equal numbers mean the same primitives on the same inputs."""

    def __init__(self) -> None:
        self.number: dict[Any, int] = {}
        self.shown: dict[int, Any] = {}

    def intern(self, key: Any) -> int:
        index = self.number.setdefault(key, len(self.number))
        self.shown[index] = key
        return index

    def symbols(self, label: str, variables: Any) -> list[int]:
        return [self.intern((label, i, v.aval.shape, str(v.aval.dtype))) for i, v in enumerate(variables)]

    def const(self, value: Any, aval: Any) -> int:
        if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
            data = jax.random.key_data(value)
            return self.intern(("random_wrap", self.const(data, data)))
        array = np.asarray(value).astype(aval.dtype)
        return self.intern(("const", str(aval.dtype), array.shape, array.tobytes()))

    def run(self, jaxpr: Any, inputs: list[int]) -> list[int]:
        closed = jaxpr if isinstance(jaxpr, jex_core.ClosedJaxpr) else jex_core.ClosedJaxpr(jaxpr, [])
        closed = inline(closed, "cpu")
        env = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            env[var] = self.const(const, var.aval)
        for eqn in closed.jaxpr.eqns:
            env.update(zip(eqn.outvars, self.eqn(eqn, [self.read(env, a) for a in eqn.invars]), strict=True))
        return [self.read(env, a) for a in closed.jaxpr.outvars]

    def read(self, env: dict[Any, int], atom: Any) -> int:
        return env[atom] if isinstance(atom, jex_core.Var) else self.const(atom.val, atom.aval)

    def eqn(self, eqn: Any, ins: list[int]) -> list[int]:
        name = eqn.primitive.name
        if name in ("name", "copy_p", "copy", "device_put") or (
            name == "convert_element_type" and self.changes_nothing(eqn)
        ):
            return ins
        if name == "slice" and eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape:
            return ins
        if name in ("eq", "ne"):
            ins = sorted(ins)
        if name in ("gt", "ge"):
            name, ins = {"gt": "lt", "ge": "le"}[name], ins[::-1]
        if name == "convert_element_type" and self.shown[ins[0]][0] == "const":
            _, dtype, shape, data = self.shown[ins[0]]
            return [self.const(np.frombuffer(data, np.dtype(dtype)).reshape(shape), eqn.outvars[0].aval)]
        key: Any = (self.named(name), tuple(ins), self.params(eqn, ins))
        if name in ("scan", "while", "cond"):
            key = (name, *self.control(eqn, ins))
        if name == "random_wrap":
            key = (name, *ins)
        return [self.intern((*key, i) if i else key) for i in range(len(eqn.outvars))]

    def named(self, name: str) -> str:
        return "add" if name == "add_any" else name

    def changes_nothing(self, eqn: Any) -> bool:
        return eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype

    def control(self, eqn: Any, ins: list[int]) -> Any:
        p = eqn.params
        if eqn.primitive.name == "cond":
            return ins[0], tuple(tuple(self.run(b, ins[1:])) for b in p["branches"])
        if eqn.primitive.name == "while":
            first, second = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
            own = self.symbols("while", p["body_jaxpr"].jaxpr.invars[p["body_nconsts"] :])
            test = self.run(p["cond_jaxpr"], [*ins[:first], *own])
            return tuple(test), tuple(self.run(p["body_jaxpr"], [*ins[first:second], *own])), tuple(ins[second:])
        n, carry = scan_operands(p)
        body = self.run(p["jaxpr"], [*ins[:n], *self.symbols("scan", p["jaxpr"].jaxpr.invars[n:])])
        return p["length"], p["reverse"], p["unroll"], carry, tuple(body), tuple(ins[n:])

    def params(self, eqn: Any, ins: list[int]) -> Any:
        ignored = "sharding weak_type computation out_sharding np_printoptions in_tree update_jaxpr consts".split()
        shown = []
        for key, value in sorted(eqn.params.items()):
            if key == "jaxpr":
                shown.append((key, tuple(self.run(value, self.symbols("in", getattr(value, "jaxpr", value).invars)))))
            elif key not in ignored:
                shown.append((key, plain(key, value, eqn)))
        return tuple(shown), str([(v.aval.shape, str(v.aval.dtype)) for v in eqn.outvars])


def plain(key: str, value: Any, eqn: Any) -> Any:
    if key == "strides" and value is None:
        return ("1",) * len(eqn.params["start_indices"])
    if isinstance(value, (tuple, list)):
        return tuple(plain("", v, eqn) for v in value)
    return str(int(value)) if isinstance(value, np.integer) else str(value)


def differences(one: jex_core.ClosedJaxpr, other: jex_core.ClosedJaxpr) -> list[Any]:
    """What `other` computes that `one` does not; empty where all results are the same computations."""
    graph = Graph()
    inputs = graph.symbols("argument", one.jaxpr.invars)
    first = graph.run(one, inputs)
    known = len(graph.number)
    second = graph.run(other, inputs)
    new = [graph.shown[i] for i in range(known, len(graph.number))]
    return [] if first == second else [("results", first, second), *new]


# One function per thing that can be written


def softmax(x, w):
    s = x @ w
    return jax.nn.softmax(s, axis=1), jax.nn.logsumexp(s, axis=0)


def elementwise(x):
    y = x * 2.0 - (x + 1.0) / 3.0
    z = jnp.where(y > 0, y**3, -(y**2))
    u = jnp.arctan2(z, y) + lax.rem(x, 0.7) + jnp.power(jnp.abs(x), 1.3) + lax.integer_pow(x, -2)
    t = lax.erf(u) + lax.lgamma(jnp.abs(x) + 1) + lax.rsqrt(jnp.abs(y) + 1) + jnp.sign(x) + jnp.cbrt(x) + jnp.sinh(y)
    return (
        t - (u - z) - y,
        (x - y) - (y - x),
        x / (y / z),
        jnp.negative(-x),
        jnp.round(x),
        lax.clamp(-1.0, x, 1.0),
        x != x,
    )


def integers(i):
    a = (i * 3 + 1) // 2 % 4
    b = (a << 2) | (a >> 1) ^ i & 3
    return (
        a,
        ~b,
        lax.population_count(b),
        lax.clz(b),
        i.astype(jnp.int8) * 3,
        i.astype(jnp.uint32) ^ jnp.uint32(4294967295),
        -i,
        lax.div(i, i + 1),
    )


def booleans(x):
    p, q = x > 0, x < 1
    return (
        p & q,
        p | q,
        p ^ q,
        ~p,
        jnp.any(p, axis=0),
        jnp.all(q, axis=1),
        jnp.sum(p, axis=0),
        p + q,
        p.astype(jnp.float32),
    )


def low_precision(x):
    h, b = x.astype(jnp.float16), x.astype(jnp.bfloat16)
    return (
        h * 2 + 0.1,
        b - 1.5,
        jnp.sum(h, axis=0),
        jnp.max(b, axis=1),
        b @ b.T,
        jnp.maximum(b, 0.1),
        lax.reduce_precision(x, 5, 10),
    )


def complexes(x):
    z = lax.complex(x, 2 * x)
    return (
        z * (1 + 2j),
        jnp.abs(z),
        jnp.conj(z),
        z.real,
        jnp.imag(z),
        z == 1j,
        jnp.exp(z),
        jnp.fft.fft(z, axis=1),
        jnp.sum(z, axis=0),
        2 / z,
    )


def fourier(x):
    return jnp.fft.rfft(x, axis=1), jnp.fft.irfft(jnp.fft.rfft(x), n=5), jnp.fft.fft2(x)


def shapes(x):
    a = x[:, None, :] + x[None]
    b = jnp.concatenate([x, x[::2], x[1:3]], axis=0)
    c = jnp.pad(x, ((1, 2), (0, 1)), constant_values=3.0)
    d = jnp.flip(x, axis=(0, 1)), jnp.transpose(a, (2, 0, 1)), jnp.reshape(a, (6, 30)), jnp.tile(x, (2, 1))
    return (
        a,
        b,
        c,
        d,
        jnp.stack([x, x], axis=1),
        jnp.split(x, [2, 3], axis=1),
        x[2],
        x[:, 3],
        x[-1:, :-2],
        jnp.roll(x, 2, axis=0),
    )


def iotas(x):
    return (
        jnp.arange(6) * 2,
        lax.broadcasted_iota(jnp.uint8, (3, 2), 1),
        jnp.eye(4),
        jnp.full((2, 3), 7, jnp.int16),
        jnp.tril(x @ x.T),
        jnp.linspace(0, 1, 5),
    )


def contractions(x, w, v):
    a = jnp.einsum("ni,ij,nj->n", x, w, x)
    b = jnp.dot(x, w, precision=lax.Precision.HIGHEST) + jnp.matmul(x, w, preferred_element_type=jnp.float32)
    c = lax.dot_general(
        x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    d = jnp.einsum("bi,bj->bij", x, x)
    return (
        a,
        b,
        c,
        d,
        v @ w,
        w @ v,
        v @ v,
        jnp.outer(v, v),
        lax.dot_general(w, w, (((0,), (1,)), ((), ())), precision=lax.DotAlgorithmPreset.F32_F32_F32),
    )


def reductions(x, i):
    return (
        jnp.prod(x, axis=0),
        jnp.min(x),
        jnp.max(x, axis=(0, 1)),
        jnp.argmax(x, axis=1),
        jnp.argmin(x),
        jnp.sum(i),
        jnp.max(i),
        jnp.cumsum(x, axis=0),
        jnp.cumprod(x, axis=1),
        lax.cummax(x, axis=1, reverse=True),
        lax.cumlogsumexp(x),
        jnp.std(x, axis=0),
        jnp.mean(i),
        jnp.median(x, axis=1),
        jnp.sum(x[:0], axis=0),
        lax.reduce_xor(i, (0,)),
    )


def sorting(x, i):
    k, v = lax.sort((i, x[:, 0]), num_keys=1)
    return (
        lax.top_k(x, 2),
        jnp.sort(x, axis=0),
        jnp.argsort(x, axis=1),
        k,
        v,
        lax.sort((i, i), num_keys=2, is_stable=False),
        lax.approx_max_k(x, 2),
    )


def indexing(x, i):
    g = (
        x[i % 6],
        x[i % 6, i],
        jnp.take(x, i, axis=1, mode="clip"),
        jnp.take_along_axis(x, i[:, None], 1),
        x.at[i].get(mode="fill", fill_value=7.0),
    )
    s = x.at[i].add(1.0), x.at[:, i].set(2.0), x.at[i].max(x), x.at[i].mul(x), x.at[i, i].min(0.5), x.at[1:3].set(0)
    t = jax.ops.segment_sum(x, i, num_segments=5), x.at[0, 1].subtract(3.0), jnp.zeros((5,)).at[i].add(1, mode="drop")
    return g, s, t


def dynamic(x, i):
    a = lax.dynamic_slice(x, (i[0], i[1]), (2, 3))
    b = lax.dynamic_update_slice(x, a, (i[1], i[2]))
    return (
        a,
        b,
        lax.dynamic_slice(x, (jnp.int32(0), i[3]), (3, 2)),
        lax.dynamic_index_in_dim(x, i[2], 0),
        lax.dynamic_update_slice(x, a, (1, 1)),
    )


def linear_algebra(x, w):
    a = w @ w.T + 3 * jnp.eye(5)
    c = jnp.linalg.cholesky(a)
    y = jax.scipy.linalg.solve_triangular(c, x.T, lower=True)
    return (
        c,
        y,
        jnp.linalg.solve(a, x.T),
        jax.scipy.linalg.cho_solve((c, True), x.T),
        jnp.linalg.inv(a),
        jnp.linalg.slogdet(a),
        jnp.linalg.qr(x),
    )


def decompositions(w):
    a = w @ w.T + 3 * jnp.eye(5)
    return jnp.linalg.eigh(a)[0], jnp.linalg.svd(w, compute_uv=False), jnp.linalg.svd(w, full_matrices=False)[1]


def convolutions(x):
    image, kernel = x.reshape(1, 1, 6, 5), jnp.ones((2, 1, 3, 2)) * 0.5
    y = lax.conv_general_dilated(image, kernel, (1, 2), "SAME", rhs_dilation=(2, 1))
    z = lax.conv_general_dilated(
        x.reshape(1, 6, 5, 1), jnp.ones((3, 2, 1, 2)), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    p = lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME")
    s = lax.reduce_window(x, 0.0, lax.add, (2, 1), (2, 1), "VALID")
    return y, z, p, s, jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID").sum())(x)


def own_reduction(x, i):
    s = lax.reduce(x, x.dtype.type(1.0), lambda a, b: a + b * a, (1,))

    def merge(p, q):
        return jnp.where(p[0] > q[0], p[0], q[0]), jnp.where(p[0] > q[0], p[1], q[1])

    m = lax.reduce((x[:, 0], i), (x.dtype.type(-jnp.inf), jnp.int32(0)), merge, (0,))
    w = lax.reduce_window(x, 1.0, lambda a, b: a * b + a, (2, 1), (1, 1), "VALID")
    return s, m, w


def loops(x, w):
    def body(i, carry):
        total, out = carry
        chunk = lax.dynamic_slice(x, (i * 2, 0), (2, 5)) @ w
        return total + jnp.sum(chunk), lax.dynamic_update_slice(out, chunk, (i * 2, 0))

    total, out = lax.fori_loop(0, 3, body, (0.0, jnp.zeros((6, 5))))
    plain = lax.fori_loop(2, 5, lambda i, c: c * 0.5 + i, total)
    same = lax.fori_loop(0, 4, lambda _, c: jnp.tanh(c @ w), x)
    late = lax.fori_loop(0, 4, lambda i, c: c + (i + 1), jnp.int32(0))
    return total, out, plain, same, late


def scans(x, w):
    h, hs = lax.scan(lambda h, v: (jnp.tanh(h @ w + v), h), x[0], x)
    _, ys = lax.scan(lambda c, v: (None, v * 2), None, x)
    (a, b), _ = lax.scan(lambda c, _: ((c[1], c[0] + c[1]), None), (1, 1), None, length=5)
    t, (u, v) = lax.scan(lambda c, v: (c + v[0].sum(), (v[0] * c, v[1])), 0.0, (x, x[:, 0]), reverse=True, unroll=2)
    return h, hs, ys, a, b, t, u, v, jax.lax.map(lambda r: jnp.sin(r) @ w, x), lax.associative_scan(jnp.add, x)


def whiles(x, n):
    a = lax.while_loop(lambda c: jnp.sum(c) < 100.0, lambda c: c * 1.5 + x[0, 0] ** 2 + 1, jnp.abs(x))
    b, c = lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * x), (0, x))
    return a, b, c, lax.fori_loop(n - 2, n + 1, lambda i, c: c + i, 0)


def branches(x, i):
    a = lax.cond(x[0, 0] > 0, lambda y: y * 2, lambda y: y - 1, x)
    b = lax.switch(i[0], [lambda y: y, lambda y: y.T @ y @ jnp.ones((5, 5)) * 0 + y[:5], lambda y: -y], x[:5])
    c = lax.cond(i[1], lambda: (x, 1), lambda: (x + 1, 2))
    return a, b, c, jax.vmap(lambda r, j: lax.cond(j > 2, jnp.sin, jnp.cos, r))(x, i)


def nested(x, w):
    def outer(i, acc):
        def inner(c, row):
            return lax.cond(row.sum() > 0, lambda: c + jax.nn.relu(row @ w), lambda: c), jax.nn.silu(row)

        c, rows = lax.scan(inner, acc, x * i)
        return lax.while_loop(lambda v: jnp.max(v) > 10, lambda v: v / 2, c + jnp.mean(rows, axis=0))

    return lax.fori_loop(0, 3, outer, jnp.zeros(5))


def randoms(key, x):
    a, b = jax.random.split(key)
    c = jax.random.fold_in(b, 7)
    many = jax.random.split(c, 3)
    return (
        jax.random.normal(a, (4, 3)),
        jax.random.uniform(c, (5,)),
        jax.random.bits(a, (3,), jnp.uint8),
        jax.vmap(lambda k: jax.random.normal(k, (2,)))(many),
        many,
        jax.random.permutation(a, x),
        jax.random.key_data(b),
        jax.random.key(5),
    )


def old_keys(x):
    key = jax.random.PRNGKey(4)
    return (
        jax.random.bernoulli(key, 0.3, (5,)),
        jax.random.categorical(key, x),
        jax.random.randint(key, (4,), 0, 9),
        jax.random.gumbel(key, (2, 2)),
    )


def gradients(x, w):
    def loss(w, x):
        h = jax.nn.gelu(x @ w) + jax.checkpoint(lambda y: jnp.sin(y) @ w)(x)
        return jnp.mean(jax.nn.log_softmax(h)[:, 0] ** 2) + jnp.sum(
            lax.scan(lambda c, r: (c + jnp.tanh(r @ w), None), x[0], x)[0]
        )

    return jax.value_and_grad(loss, argnums=(0, 1))(w, x), jax.hessian(lambda v: jnp.sum(jnp.tanh(v) ** 3))(x[0])


def special(x):
    return (
        x + jnp.float32(0.1),
        x * jnp.inf,
        jnp.where(x > 0, jnp.nan, -jnp.inf),
        x - -0.0,
        x * 1e-30,
        x + 16777217.0,
        jnp.maximum(x, -2.5),
        2.0 - x,
        1 / x,
        x**0.5,
    )


def plain_numbers(x):
    a = lax.cond(x[0, 0] > 0, lambda a: a * 3.0 / 7.0, lambda a: -a / 3.0, 0.1)
    b = lax.scan(lambda c, v: (c + v[0], v), lax.optimization_barrier(0.1) / 3.0, x)
    return (
        a,
        b,
        jnp.percentile(x, 30),
        checkpoint_name(0.1, "n") * 3.0 / 7.0,
        jax.device_put(0.3) / 0.7,
        lax.neg(0.1) / 0.3,
    )


def literals(x):
    return 1.5, jnp.float32(2), 3, True, x, x, jnp.asarray(2, jnp.int8), None


def barriers(x):
    a, b = lax.optimization_barrier((x, x * 2))
    return a + b, lax.optimization_barrier(a), lax.stop_gradient(b), checkpoint_name(x, "n")


def platforms(x):
    def body(i, c):
        return lax.platform_dependent(c, cpu=lambda y: y + 1, default=lambda y: y - 1)

    return lax.fori_loop(0, 2, body, x)


FUNCTIONS = [
    (softmax, (X, W)),
    (elementwise, (X,)),
    (integers, (I,)),
    (booleans, (X,)),
    (low_precision, (X,)),
    (complexes, (X,)),
    (fourier, (X,)),
    (shapes, (X,)),
    (iotas, (X,)),
    (contractions, (X, W, V)),
    (reductions, (X, I)),
    (sorting, (X, I)),
    (indexing, (X, I)),
    (dynamic, (X, I)),
    (linear_algebra, (X, W)),
    (decompositions, (W,)),
    (convolutions, (X,)),
    (own_reduction, (X, I)),
    (loops, (X, W)),
    (scans, (X, W)),
    (whiles, (X, jnp.int32(5))),
    (branches, (X, I)),
    (nested, (X, W)),
    (randoms, (K, X)),
    (old_keys, (X,)),
    (gradients, (X, W)),
    (special, (X,)),
    (literals, (X,)),
    (plain_numbers, (X,)),
    (barriers, (X,)),
    (platforms, (X,)),
]


@pytest.mark.parametrize(("fn", "args"), FUNCTIONS, ids=[fn.__name__ for fn, _ in FUNCTIONS])
def test_same_program(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    check(fn, *args, same=fn is not gradients)  # lax.scan hoists a carry that stays the same


@pytest.mark.parametrize(
    ("fn", "args"),
    [f for f in FUNCTIONS if f[0] not in (low_precision, convolutions, platforms)],
    ids=lambda f: getattr(f, "__name__", ""),
)
def test_same_program_in_x64(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with jax.enable_x64(True):
        wide = [a.astype(jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a for a in args]
        source = check(fn, *wide, same=fn is not gradients)
    assert "with jax.enable_x64(True):" in source


# Reading it


def test_a_loop_reads_like_one_that_a_person_wrote() -> None:
    def nearest(q, x):
        def rows(i, out):
            part = lax.dynamic_slice(q, (i * 2, 0), (2, 5), allow_negative_indices=False)
            return lax.dynamic_update_slice(out, jnp.exp(-(part @ x.T)), (i * 2, 0), allow_negative_indices=False)

        return lax.fori_loop(0, 3, rows, jnp.zeros((6, 6)))

    source = check(nearest, X, X)
    body = re.sub(r"# test_source.*", "", source[source.index("def _nearest") : source.index("_compiled")])
    assert re.sub(r",?\s+", " ", body).replace("( ", "(").replace(" )", ")").strip() == (
        "def _nearest(q x): def body_1(i out_1): start_1 = i * 2 "
        "chunk_1 = lax.dynamic_slice(q (start_1 0) (2 5) allow_negative_indices=False) "
        "return lax.dynamic_update_slice(out_1 jnp.exp(-(chunk_1 @ x.T)) (start_1 0) allow_negative_indices=False) "
        "out_2 = lax.fori_loop(0 3 body_1 jnp.zeros((6 6) jnp.float32)) return out_2"
    )


def test_lines_of_the_user_stand_above_what_they_became() -> None:
    source = check(softmax, X, W)
    first = softmax.__code__.co_firstlineno + 1
    assert f"    # test_source.py:{first}\n    dot_1 = x @ w\n    # test_source.py:{first + 1}\n" in source
    assert source.count(f"# test_source.py:{first}\n") == 1


def test_header_is_the_docstring() -> None:
    program = trace(softmax, (X, W))
    for header in ("One line.", 'Says "this"', 'Has """ inside and \\ too\n\nand more.'):
        source = written(program, header=header)
        assert ast.get_docstring(ast.parse(source)) == header.replace('"""', "'''")


def test_output_does_not_change_from_one_time_to_the_next() -> None:
    assert written(trace(nested, (X, W))) == written(trace(nested, (X, W)))


def test_names_never_hide_a_builtin_or_an_import() -> None:
    def f(sum, lax_, **rest):
        return sum + lax_ + rest["jnp"] + rest["in_"]

    assert "def f_safe(sum_1, lax_, *, in_, **keywords):" in check(f, X, X, jnp=X, in_=X)


@pytest.mark.parametrize(
    "config", [["--isolated"], ["--isolated", "--select", "E,F,W,B,PLR0124,E711", "--line-length", "99"]]
)
def test_ruff_finds_nothing(config: list[str], tmp_path: pathlib.Path) -> None:
    for fn, args in FUNCTIONS:
        (tmp_path / f"{fn.__name__}.py").write_text(written(trace(fn, args), compiler_options={"a": "b"}))
    command = [sys.executable, "-m", "ruff", "check", *config, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_runs_where_memscope_is_not(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "exported.py"
    path.write_text(written(trace(loops, (X, W))))
    code = (
        "import sys; sys.modules['memscope'] = None\n"
        "import jax.numpy as jnp, exported\n"
        "print([str(a.dtype) for a in exported.loops_safe(jnp.ones((6, 5)), jnp.ones((5, 5)))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['float32', 'float32', 'float32', 'float32', 'int32']", done.stderr


# Arguments and results


Pair = collections.namedtuple("Pair", "left right")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    kernel: Any
    bias: Any


def test_nested_arguments_and_results() -> None:
    def f(params, xs, *rest, scale, opt=None):
        out = params["a"]["w"] @ xs[0] + rest[0] * scale + rest[1]
        return {"out": out, "parts": [xs[1], (None, out * 2), ()], "w": params["a"]["w"]}

    check(f, {"a": {"w": W}, "unused": X}, [V, (V)], V, V, scale=2.0, opt=None)
    check(lambda: jnp.arange(3))
    check(lambda x: (x,), X)
    check(lambda x: [], X)


def test_custom_nodes_come_in_as_they_are_and_go_out_rebuilt_or_flat() -> None:
    def step(layer, x):
        return Layer(layer.kernel + 1, layer.bias * 2), x @ layer.kernel

    def only(layer):
        return {"pair": Pair(layer.kernel, layer.bias)}

    layer = Layer(W, V)
    assert "jax.tree.unflatten(jax.tree.structure(layer)" in check(step, layer, X)
    assert "flat tuple" in check(only, layer)
    assert isinstance(loaded(written(trace(only, (layer,))), "only")["only_safe"](layer), tuple)
    check(lambda p: p.left + p.right, Pair(X, X))


def test_static_arguments_are_gone() -> None:
    def f(x, n, y):
        return x * n + y

    program = trace(f, (X, 3, X), static_argnums=1)
    source = written(program)
    compare([loaded(source, "f")["f_safe"](X, X)], [f(X, 3, X)])


def test_another_shape_is_refused() -> None:
    safe = loaded(written(trace(softmax, (X, W))), "softmax")["softmax_safe"]
    with pytest.raises(TypeError, match=r"float32\[6, 5\]"):
        safe(X[:3], W)
    with pytest.raises(TypeError, match="int32"):
        safe(X.astype(jnp.int32), W)
    compare(safe(np.asarray(X, np.float64), W), safe(X, W))


def test_donated_arguments_are_donated() -> None:
    program = trace(lambda x, y: (x + y, y * 2), (X, X), donate_argnums=0)
    source = written(program)
    assert "donate_argnums=(0,)" in source


def test_mixed_precision_without_x64() -> None:
    def f(x):
        with jax.enable_x64(True):
            y = x.astype(jnp.float64) / 3.0
            y = lax.fori_loop(0, 3, lambda i, c: c + i, y)
            return jnp.sum(y).astype(jnp.float32)

    check(f, X)


# Compiler options


OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}


def test_options_hold_outermost_and_give_way_to_a_trace() -> None:
    safe = loaded(written(trace(softmax, (X, W)), compiler_options=OPTIONS), "softmax")["softmax_safe"]
    want = jax.jit(softmax)(X, W)
    np.testing.assert_allclose(safe(X, W)[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(jax.jit(safe)(X, W)[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda: safe(X, W))()[0], want[0], rtol=1e-6)
    jax.grad(lambda x: safe(x, W)[1].sum())(X)
    jax.vmap(safe, in_axes=(0, None))(jnp.stack([X, X]), W)
    jax.jit(safe).lower(X, W).compile()


# Constants


def test_constants_of_every_kind() -> None:
    table = np.asarray(RNG.normal(size=(40, 5)), np.float32)
    half = np.asarray(RNG.normal(size=(3, 2)), ml_dtypes.bfloat16)
    big_half = jnp.asarray(RNG.normal(size=(20, 20)), jnp.bfloat16)
    key, keys = jax.random.key(1), jax.random.split(jax.random.key(2, impl="rbg"), 2)
    odd = np.array([np.nan, -np.inf, -0.0, 0.1, 1e-42], np.float32)
    payload = np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    mask = np.array([True, False])
    z = np.array([1 - 0j, complex(0, -0.0)], np.complex64)

    def f(x):
        bits = lax.bitcast_convert_type(jnp.asarray(payload), jnp.uint32)
        return (
            x[:, :1] + table[:6],
            half,
            big_half * 2,
            key,
            keys,
            jnp.asarray(odd),
            bits,
            mask,
            z,
            np.uint32(2**32 - 1),
        )

    source = check(f, X)
    assert "base64" in source
    assert "wrap_key_data" in source
    check(lambda x: (x, np.zeros((0, 2), np.int16)), X, same=False)


def test_constants_too_large_for_source() -> None:
    table = np.ones((600, 600), np.float32)
    with pytest.raises(ValueError, match=r"pass them as arguments.*jaxexport"):
        written(trace(lambda x: x[0, 0] * table, (X,)))


# What can't be written


def test_a_callback_is_refused_by_name() -> None:
    def f(x):
        return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(NotImplementedError, match=r"pure_callback \(test_source\.py:\d+\).*jaxexport"):
        written(trace(f, (X,)))
    with pytest.raises(NotImplementedError, match="pure_callback"):
        written(trace(lambda x: lax.fori_loop(0, 2, lambda i, c: f(c), x), (X,)))


def test_prints_stay(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x):
        jax.debug.print("sum {} of {n}", jnp.sum(x), n=6)
        return x * 2

    source = written(trace(f, (X,)))
    loaded(source, "f")["f_safe"](X)
    jax.effects_barrier()
    assert "of 6" in capfd.readouterr().out


# Real programs


CASES = sorted((HERE / "cases").glob("case_*.py"))


@pytest.mark.parametrize("path", CASES, ids=[path.stem[5:] for path in CASES])
def test_cases_are_the_same_program(path: pathlib.Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    program = trace(case.fn, jax.eval_shape(lambda: case.make_args(0.02)))
    if sum(getattr(c, "nbytes", 0) for c in program.closed.consts) > 1_000_000:
        with pytest.raises(ValueError, match="jaxexport"):
            written(program)
        return
    source = written(program)
    with jax.enable_x64(program.x64):
        again = trace(loaded(source, "fn")["_fn"], jax.eval_shape(lambda: case.make_args(0.02)))
    if "shard_map" not in source:  # its inner types carry the mesh they were traced with
        different = differences(program.closed, again.closed)
        assert not different, different[:3]


@pytest.mark.parametrize(
    "name", ["case_001", "case_038", "case_059", "case_066", "case_071", "case_090", "case_099", "case_100"]
)
def test_cases_give_the_same_values(name: str) -> None:
    path = next((HERE / "cases").glob(f"{name}_*.py"))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    args = case.make_args(0.02)
    program = trace(case.fn, args)
    got = loaded(written(program), "fn")["fn_safe"](*args)
    with jax.enable_x64(program.x64):
        want = jax.jit(jex_core.jaxpr_as_fun(program.closed))(*args)
    compare(jax.tree.leaves(got), want, tolerance=1e-6)
