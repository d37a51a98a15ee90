"""Random JAX programs whose results can be compared: a Hypothesis strategy over a table of op generators.

A program grows from one op after another, each over values that are there already (or new arguments). A value
carries a bound on its magnitude and on how far rounding may have moved it. Arguments are small whole numbers and
most ops keep them whole and small, so that float arithmetic is exact in any order of summation: then the noise is
zero, values must agree exactly, and comparing, sorting or indexing by them is safe. An op that rounds (`exp`, a
quotient) makes its result noisy, and nothing discontinuous is fed from a noisy value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 1, 0)
LARGEST = 4096
"""Elements of the largest value: programs are small so that XLA compiles them quickly."""

WHOLE = {"bfloat16": 2.0**8, "float16": 2.0**11, "float32": 2.0**24, "float64": 2.0**53, "complex64": 2.0**24}
"""Up to where whole numbers are exact in any order of summation."""

Fn = Callable[..., Any]


class Unfit(Exception):
    """No op of this kind can be had from the values that are there: another is drawn."""


def kind_of(dtype: Any) -> str:
    """One letter: float, signed, unsigned, bool, complex."""
    names = {"f": jnp.floating, "i": jnp.signedinteger, "u": jnp.unsignedinteger, "c": jnp.complexfloating}
    return next((kind for kind, family in names.items() if jnp.issubdtype(dtype, family)), "b")


@dataclasses.dataclass(frozen=True)
class Value:
    """A value of the pool: no element is above `bound` or further than `noise` from the exact result."""

    index: int
    shape: tuple[int, ...]
    dtype: Any
    bound: float
    noise: float = 0.0
    special: bool = False
    """Some elements may be NaN or infinite."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        return kind_of(self.dtype)


@dataclasses.dataclass(frozen=True)
class Step:
    """An op of the program: `fn` of the values `inputs` gives the values `outputs`."""

    name: str
    fn: Fn
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class RandomProgram:
    """A function, arguments for it, and how exactly each result can be known."""

    name: str
    steps: tuple[Step, ...]
    arguments: tuple[tuple[int, np.ndarray], ...]
    outputs: tuple[Value, ...]
    x64: bool
    seed: int

    @property
    def args(self) -> list[Any]:
        return [jnp.asarray(array) for _, array in self.arguments]

    @property
    def ops(self) -> list[str]:
        return [step.name for step in self.steps]

    def __call__(self, *args: Any) -> list[Any]:
        env = dict(zip((index for index, _ in self.arguments), args, strict=True))
        for step in self.steps:
            outs = jax.tree.leaves(step.fn(*(env[i] for i in step.inputs)))
            env.update(zip(step.outputs, outs, strict=True))
        return [env[out.index] for out in self.outputs]

    @property
    def __name__(self) -> str:
        return "program"

    def __repr__(self) -> str:
        lines = [self.name, f"arguments {[(i, str(a.dtype), a.shape) for i, a in self.arguments]}, x64={self.x64}"]
        lines += [f"  {step.outputs} = {step.name} {step.inputs}" for step in self.steps]
        return "\n".join([*lines, f"  results {[out.index for out in self.outputs]}"])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How Hypothesis prints it."""
        printer.text(self.name)


class Builder:
    """A program in the making."""

    def __init__(
        self, seed: int, *, x64: bool, rough: bool, special: bool, dtypes: Sequence[str], largest: int = LARGEST
    ) -> None:
        self.random = Random(seed)
        self.rng = np.random.default_rng(seed)
        self.largest = largest
        self.x64, self.rough, self.special = x64, rough, special
        self.dtypes = dtypes
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.arguments: list[tuple[int, np.ndarray]] = []
        self.unread: set[int] = set()
        self.name = ""
        self.focus: Value | None = None

    def add(self, name: str) -> None:
        """One more op of a kind, where there can be one."""
        if name not in ROUGH or self.rough:
            self.name = name
            with contextlib.suppress(Unfit):
                OPS[name](self)

    def end_in(self, name: str) -> None:
        """One more op, of the largest value that nothing has read yet."""
        unread = [v for v in self.values if v.index in self.unread]
        self.focus = max(unread, key=lambda v: v.size, default=None)
        self.add(name)
        self.focus = None

    # Drawing.

    def choose(self, options: Sequence[Any]) -> Any:
        if not options:
            raise Unfit
        return self.random.choice(options)

    def maybe(self, one_in: int = 2) -> bool:
        return self.random.randrange(one_in) == 0

    def integer(self, low: int, high: int) -> int:
        if high < low:
            raise Unfit
        return self.random.randint(low, high)

    def sizes(self, rank: int) -> tuple[int, ...]:
        """Sizes of which one in twenty is zero."""
        few = SIZES if rank < 3 else (2, 3, 4, 5, 7, 8, 1)
        return tuple(self.choose(few if self.integer(0, 3) == 3 else few[:-2]) for _ in range(rank))

    def axis(self, x: Value, least: int = 0) -> int:
        return self.choose([a for a, s in enumerate(x.shape) if s >= least])

    # Values.

    def argument(self, shape: Sequence[int], dtype: Any, low: int = -3, high: int = 3) -> Value:
        """A new argument of small whole numbers."""
        kind = kind_of(dtype)
        numbers = self.rng.integers(0 if kind in "ub" else low, (1 if kind == "b" else high) + 1, size=tuple(shape))
        array = numbers.astype(dtype)
        if kind == "c":
            array = array + (1j * self.rng.integers(low, high + 1, size=tuple(shape))).astype(dtype)
        special = self.special and kind == "f" and array.size > 2 and low < 0
        if special:
            array.reshape(-1)[:: 1 + array.size // 3] = self.rng.choice([np.nan, np.inf, -np.inf])
        value = Value(
            len(self.values), tuple(shape), np.dtype(dtype), (2.0 if kind == "c" else 1.0) * high, special=special
        )
        self.values.append(value)
        self.arguments.append((value.index, array))
        return value

    def pick(
        self,
        kinds: str = "fiubc",
        rank: tuple[int, int] = (0, 4),
        exact: bool = False,
        ok: Callable[[Value], bool] = lambda v: True,
        shape: Sequence[int] | None = None,
    ) -> Value:
        """A value that fits: more often one that is new or that nothing has read yet. Else an argument of `shape`."""

        def fits(v: Value) -> bool:
            return v.kind in kinds and rank[0] <= v.ndim <= rank[1] and (not exact or v.noise == 0) and ok(v)

        if self.focus is not None and fits(self.focus):
            return self.focus
        found = [v for v in self.values if fits(v)]
        if not found:
            dtypes = [d for d in self.dtypes if kind_of(d) in kinds] or [
                {"i": "int32", "b": "bool", "c": "complex64"}.get(kinds[0])
            ]
            if dtypes[0] is None:
                raise Unfit
            if shape is None:
                shape = self.sizes(self.integer(max(rank[0], 1), max(min(rank[1], 3), 1)))
            fresh = self.argument(shape, self.choose(dtypes))
            if not fits(fresh):
                raise Unfit
            return fresh
        made = [v for v in found if v.index in self.unread]
        return self.choose((made or found)[-3:] if self.integer(0, 2) < 2 else found)

    def put(
        self,
        fn: Fn,
        *xs: Value,
        bound: float | None = None,
        gain: float = 1.0,
        rounds: int = 0,
        rough: bool = False,
        clean: bool = False,
    ) -> Value:
        """Adds an op with one result. See `put_all`."""
        return self.put_all(fn, *xs, bound=bound, gain=gain, rounds=rounds, rough=rough, clean=clean)[0]

    def put_all(
        self,
        fn: Fn,
        *xs: Value,
        bound: float | None = None,
        gain: float = 1.0,
        rounds: int = 0,
        rough: bool = False,
        clean: bool = False,
    ) -> list[Value]:
        """Adds an op.

        Args:
          bound: on the magnitude of its results; that of its operands if left out.
          gain: by how much it amplifies noise.
          rounds: how many roundings of size `bound` its result takes where arithmetic is not exact.
          rough: it rounds even if its operands are whole.
          clean: NaN does not pass through.
        """
        bound = max([x.bound for x in xs if x.kind != "b"], default=1.0) if bound is None else bound
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in xs]
        outs = jax.tree.leaves(jax.eval_shape(fn, *shapes))
        if any(out.size > self.largest for out in outs):
            raise Unfit
        values = []
        for out in outs:
            values.append(self._value(out, xs, bound, gain, rounds, rough, clean))
            self.values.append(values[-1])
        self.steps.append(Step(self.name, fn, tuple(x.index for x in xs), tuple(v.index for v in values)))
        self.unread -= {x.index for x in xs}
        self.unread |= {v.index for v in values}
        return values

    def _value(
        self, out: Any, xs: Sequence[Value], bound: float, gain: float, rounds: int, rough: bool, clean: bool
    ) -> Value:
        index, dtype = len(self.values), np.dtype(out.dtype)
        kind = kind_of(dtype)
        if kind in "iub":
            largest = 1 if kind == "b" else float(jnp.iinfo(dtype).max)
            return Value(index, out.shape, dtype, largest if kind == "u" else min(bound, largest))
        if bound > (2.0**14 if dtype == np.float16 else 2.0**20):
            raise Unfit
        noisy = rough or bound > WHOLE.get(str(dtype), 2.0**24) or any(x.noise for x in xs)
        noise = 0.0
        if noisy:
            noise = gain * sum(x.noise for x in xs) + (2 + rounds) * float(jnp.finfo(dtype).eps) * bound
        return Value(index, out.shape, dtype, bound, noise, not clean and any(x.special for x in xs))

    # Making operands fit.

    def fit(self, x: Value, bound: float) -> Value:
        """`x` itself where it is small enough, else one op that makes it so: exact for whole numbers."""
        if x.bound <= bound or x.kind == "b":
            return x
        if x.kind == "c":
            parts = [self.put(part, x) for part in (jnp.real, jnp.imag)]
            return self.put(lax.complex, *(self.fit(p, bound / 2) for p in parts), bound=bound)
        if x.noise:
            return self.put(lambda v: (bound * jnp.tanh(v / bound)).astype(v.dtype), x, bound=bound, rounds=2)
        modulus = int(bound) + 1
        return self.put(lambda v: lax.rem(v, jnp.asarray(modulus, v.dtype)), x, bound=float(modulus - 1))

    def hard(self, x: Value) -> Value:
        """For an op with kinks: the gradient at a kink that rounding moved is nobody's fault."""
        return self.put(lax.stop_gradient, x) if x.noise else x

    def finite(self, x: Value) -> Value:
        """Without NaN and infinities."""
        if not x.special:
            return x
        return self.put(lambda v: jnp.where(jnp.isfinite(v), v, 0), x, clean=True)

    def cast(self, x: Value, dtype: Any) -> Value:
        """`x` as another dtype, so that the result is known: exact where `x` is."""
        dtype = np.dtype(dtype)
        kind = kind_of(dtype)
        if x.dtype == dtype:
            return x
        if kind in "iub":
            if x.noise:
                raise Unfit
            x = self.finite(x)
        if x.kind == "c" and kind != "c":
            x = self.put(lambda v: jnp.real(v) + jnp.imag(v), x, bound=2 * x.bound)
        if kind == "b":
            return self.put(lambda v: v != 0, x, bound=1)
        if kind == "u" and x.kind != "b":
            x = self.put(jnp.abs, self.fit(x, 200)) if x.kind != "u" else x
        elif kind in "fc":
            x = self.fit(x, min(WHOLE.get(str(dtype), 2.0**24), 2.0**12))
        return self.put(lambda v: v.astype(dtype), x)

    def partner(self, x: Value, kinds: str = "fiubc") -> Value:
        """Another operand of `x`'s dtype that broadcasts with it."""

        def broadcasts(v: Value) -> bool:
            return (
                v.index != x.index
                and v.ndim <= x.ndim
                and all(s in (1, t) for s, t in zip(v.shape[::-1], x.shape[::-1], strict=False))
                and (v.dtype == x.dtype or (not v.noise and x.kind in "fi" and v.kind in "fi"))
            )

        if self.integer(0, 2) < 2:
            found = [v for v in self.values if v.kind in kinds and broadcasts(v)]
            if found:
                return self.cast(self.choose(found), x.dtype)
        square = [(i, j) for i in range(x.ndim) for j in range(i) if x.shape[i] == x.shape[j]]
        if square and self.maybe():
            i, j = self.choose(square)
            return self.put(lambda v: jnp.swapaxes(v, i, j), x)
        shape = tuple(1 if self.integer(0, 3) == 3 else s for s in x.shape)
        return self.argument(shape[self.integer(0, x.ndim) if self.maybe(3) else 0 :], x.dtype)

    def numbers(self, rank: tuple[int, int] = (1, 4), **kwargs: Any) -> Value:
        """A real operand for arithmetic, small enough that a few steps of it stay exact."""
        return self.fit(self.pick("fiu", rank, **kwargs), 50)

    def indices(self, shape: Sequence[int], size: int) -> Value:
        """Whole numbers below `size`: an argument, or computed from what is there."""
        if size == 0:
            raise Unfit
        if self.maybe(3):
            found = [v for v in self.values if v.shape == tuple(shape) and v.kind in "fi" and not v.noise]
            if found:
                x = self.cast(self.finite(self.choose(found)), "int32")
                return self.put(lambda v: jnp.abs(v) % size, x, bound=size - 1)
        return self.argument(shape, "int32", 0, size - 1)


OPS: dict[str, Callable[[Builder], Any]] = {}
"""Every kind of op, by name: a generator that adds one, and what it needs, to a program.

Two have no place here, as XLA's CPU compiler fails on them in plain JAX: a variadic reduction, which crashes it where
its results turn out to be read by nobody, and an FFT, which it refuses after some transposes.
"""


def op(generator: Callable[[Builder], Any]) -> Callable[[Builder], Any]:
    OPS[generator.__name__.strip("_")] = generator
    return generator


@st.composite
def programs(draw: Fn, floats_only: bool = False, scale: int = 1, without: Sequence[str] = ()) -> RandomProgram:
    """Programs of 3 to 12 ops and a few reductions after them.

    A seed says what each op would be, so that all ops are drawn alike; Hypothesis says which of them stay, so that
    a failure shrinks to a few.
    """
    kept = draw(st.binary(min_size=3 + MOST_ENDS, max_size=12 + MOST_ENDS).filter(any))
    places = tuple(i for i, byte in enumerate(kept) if byte > 20)
    return random_program(draw(st.integers(0, 2**64)), len(kept) - MOST_ENDS, places, floats_only, scale, without)


def random_program(
    seed: int,
    count: int,
    places: Sequence[int],
    floats_only: bool = False,
    scale: int = 1,
    without: Sequence[str] = (),
) -> RandomProgram:
    """The program of a seed.

    Args:
      count: of ops before those that a program ends in.
      places: of the ops that stay.
      floats_only: every argument but indices is float32 and nothing is NaN: for gradients.
      scale: multiplies the sizes of a first outer product, for plans that have something to save. Nothing is NaN
        where it is above 1: XLA's default CPU build loses NaN in the maximum of a large array.
      without: ops that are not drawn.
    """
    random = Random(seed)
    x64 = not floats_only and random.random() < 0.1
    with jax.enable_x64(x64):
        b = Builder(
            seed,
            x64=x64,
            rough=random.random() < 0.6,
            special=not floats_only and scale == 1 and random.random() < 0.2,
            dtypes=("float32",) if floats_only else random.choice(WIDE_TYPES if x64 else TYPES),
            largest=LARGEST * scale**2,
        )
        _start(b, scale)
        table, ends = sorted({*OPS} - {*without}), sorted({*ENDS} - {*without})
        for place in places:
            b.random = Random(f"{seed}/{place}")
            if place < count:
                b.add(b.choose(table))
            elif b.maybe():
                b.end_in(b.choose(ends))
        made = [v for step in b.steps for v in b.values if v.index in step.outputs]
        outputs = [v for v in made if v.index in b.unread][-2:]
        if not outputs or b.maybe(4):
            outputs.append(b.choose(made))
        name = f"random_program({seed}, {count}, {tuple(places)}, {floats_only}, {scale}, {tuple(without)})"
        return RandomProgram(name, tuple(b.steps), tuple(b.arguments), tuple(outputs), x64, seed)


TYPES = (("float32",), ("float32",), ("float32", "int32"), ("float32", "bfloat16", "bool"), ("float16", "float32"),
         ("float32", "uint8", "int32"), ("float32", "complex64"), ("bfloat16",), ("int32", "bool"))  # fmt: skip
WIDE_TYPES = (("float64",), ("float64", "float32", "int64"))

MOST_ENDS = 3
ENDS = ("reduce_sum", "reduce_max", "argmax", "weights", "gram", "einsum", "segments", "scatter_sum", "count", "scan",
        "reduce_logic", "reduce_bits", "moments", "normalise", "trace", "sort", "cumulative", "reduce_prod", "solve",
        "take_along")  # fmt: skip
"""What large values mostly end in."""


def _start(b: Builder, scale: int) -> None:
    """Something to stream: an outer product, or what one op makes of an argument."""
    b.name = "start"
    dtype, joined = b.choose(b.dtypes), b.maybe() or scale > 1
    rank = b.integer(1, 2 if joined else 3)
    x = b.argument([*(s * scale for s in b.sizes(1)), *b.sizes(rank - 1)], dtype)
    if joined:
        y = b.argument([s * scale for s in b.sizes(1)], dtype)
        join = jnp.logical_xor if x.kind == "b" else b.choose([jnp.add, jnp.subtract, jnp.multiply])
        b.put(lambda u, v: join(u[..., None], v), x, y, bound=x.bound * y.bound + 3)
    elif x.kind != "b":
        b.put(lambda v: v * 2, x, bound=2 * x.bound)
    else:
        b.put(jnp.logical_not, x)


# Elementwise.

ROUGH: set[str] = set()
"""Ops that round: for programs that may."""


def rough(generator: Callable[[Builder], Any]) -> Callable[[Builder], Any]:
    ROUGH.add(generator.__name__.strip("_"))
    return op(generator)


WHOLE_UPDATE = "whole update"
"""An update of all elements: XLA (jaxlib 0.10.2) makes a map of it, and ends the process where that is reversed."""


def _doubled_in_place(v: Any) -> Any:
    return v.at[...].multiply(2)


@op
def unary(b: Builder) -> None:
    x = b.fit(b.pick("fiuc"), 50)
    options: list[tuple[Fn, float, float]] = [
        (lambda v: v * v, x.bound**2, 2 * x.bound),
        (jnp.negative, x.bound, 1),
        (lambda v: lax.integer_pow(v, 3), x.bound**3, 3 * x.bound**2),
        (lambda v: 3 * v + 1, 3 * x.bound + 1, 3),
        (_doubled_in_place, 2 * x.bound, 2),
    ]
    fn, bound, gain = b.choose(options)
    b.name = WHOLE_UPDATE if fn is _doubled_in_place else b.name
    b.put(fn, x, bound=bound, gain=gain, rounds=3)


@op
def kinked(b: Builder) -> None:
    """Elementwise with kinks: continuous."""
    x = b.hard(b.pick("fiu"))
    bounds = {"abs": x.bound, "relu": x.bound, "clamp": 2.0}
    fns = {
        "abs": jnp.abs,
        "relu": lambda v: jnp.maximum(v, 0),
        "clamp": lambda v: lax.clamp(jnp.asarray(0, v.dtype), v, jnp.asarray(2, v.dtype)),
    }
    name = b.choose(list(fns))
    b.put(fns[name], x, bound=bounds[name])


@op
def stepped(b: Builder) -> None:
    """Elementwise with jumps."""
    x = b.pick("fi", exact=True)
    if x.kind == "i":
        b.put(b.choose([jnp.sign, lambda v: lax.population_count(v), lambda v: lax.rem(v, jnp.asarray(3, v.dtype))]), x)
        return
    fns = [jnp.sign, jnp.floor, lambda v: jnp.round(v * 0.5), lambda v: lax.reduce_precision(v, 5, 3)]
    b.put(b.choose([*fns, lambda v: lax.rem(v, jnp.asarray(3, v.dtype))]), x, bound=x.bound + 1, gain=0)


SMOOTH: dict[str, Fn] = {
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "logistic": jax.nn.sigmoid,
    "log1p": lambda v: jnp.log1p(v * v),
    "sqrt": lambda v: jnp.sqrt(1 + v * v),
    "rsqrt": lambda v: lax.rsqrt(1 + v * v),
    "reciprocal": lambda v: 1 / (1 + v * v),
    "erf": lambda v: lax.erf(0.5 * v),
    "expm1": jnp.expm1,
    "atan": jnp.arctan,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}


@rough
def smooth(b: Builder) -> None:
    name = b.choose(list(SMOOTH))
    x = b.fit(b.pick("f"), 2 if name in ("exp", "expm1") else 8)
    fn = SMOOTH[name]
    b.put(lambda v: fn(v).astype(v.dtype), x, bound=9.0, gain=8, rounds=8, rough=True)


@rough
def divide(b: Builder) -> None:
    x = b.fit(b.pick("f"), 50)
    y = b.hard(b.fit(b.partner(x), 50))
    b.put(lambda u, v: u / (1 + v * v), x, y, bound=x.bound, gain=2 + x.bound, rounds=4, rough=True)


def _binary(b: Builder, fn: Fn, kinds: str, bound: Callable[[float, float], float], kink: bool = False) -> None:
    x = b.fit(b.pick(kinds), 50)
    y = b.fit(b.partner(x), 50)
    if kink:
        x, y = b.hard(x), b.hard(y)
    if b.maybe(3):
        x, y = y, x
    gain = 1 if kink else max(1.0, bound(x.bound, y.bound) / max(1.0, min(x.bound, y.bound)))
    b.put(fn, x, y, bound=bound(x.bound, y.bound), gain=gain, rounds=1)


OPS["add"] = lambda b: _binary(b, jnp.add, "fiuc", lambda m, n: m + n)
OPS["sub"] = lambda b: _binary(b, jnp.subtract, "fiuc", lambda m, n: m + n)
OPS["mul"] = lambda b: _binary(b, jnp.multiply, "fiuc", lambda m, n: m * n)
OPS["maximum"] = lambda b: _binary(b, jnp.maximum, "fiu", max, kink=True)
OPS["minimum"] = lambda b: _binary(b, jnp.minimum, "fiu", max, kink=True)


@op
def compare(b: Builder) -> None:
    x = b.pick("fiu", exact=True)
    y = b.partner(x)
    if y.noise:
        raise Unfit
    b.put(b.choose([jnp.greater, jnp.less_equal, jnp.equal, jnp.not_equal]), x, y, bound=1)


@op
def select(b: Builder) -> None:
    x = b.fit(b.pick("fiuc"), 100)
    y = b.fit(b.partner(x), 100)
    mask = b.pick("b", ok=lambda v: v.shape in (x.shape, x.shape[1:], ())) if b.maybe() else None
    if mask is None:
        z = b.pick("fi", exact=True, ok=lambda v: v.shape in (x.shape, x.shape[1:], ()))
        mask = b.put(lambda v: v > 0, z, bound=1)
    b.put(jnp.where, mask, x, y)


@op
def logic(b: Builder) -> None:
    x = b.pick("biu")
    y = b.partner(x)
    bound = float(2 * max(x.bound, y.bound) + 1)
    b.put(b.choose([jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor]), x, y, bound=bound)


@op
def invert(b: Builder) -> None:
    x = b.pick("bi")
    b.put(jnp.bitwise_not, x, bound=x.bound + 1)


@op
def shift(b: Builder) -> None:
    x = b.fit(b.pick("i"), 100)
    by = b.integer(0, 4)
    b.put(b.choose([lambda v: v << by, lambda v: v >> by]), x, bound=x.bound * 2**by)


@op
def convert(b: Builder) -> None:
    x = b.pick()
    dtypes = ["float32", "bfloat16", "float16", "int32", "bool", "uint8", "complex64"]
    if x.noise:
        dtypes = ["float32", "bfloat16", "float16"]
    if b.x64:
        dtypes += ["float64"] if x.noise else ["float64", "int64"]
    b.cast(x, b.choose(dtypes))


@op
def complex_parts(b: Builder) -> None:
    x = b.fit(b.pick("fc"), 50)
    if x.kind == "c":
        parts: list[Fn] = [lambda v: jnp.real(v * v), lambda v: jnp.imag(v * v), lambda v: jnp.conj(v) * v]
        b.put(b.choose(parts), x, bound=x.bound**2, gain=2 * x.bound, rounds=2)
        return
    if x.dtype not in (np.float32, np.float64):
        raise Unfit
    y = b.fit(b.partner(x), 50)
    b.put(lambda u, v: lax.complex(*jnp.broadcast_arrays(u, v)), x, y, bound=x.bound + y.bound)


@op
def bitcast(b: Builder) -> None:
    """Of whole numbers only: two zeros of unlike sign are equal as floats."""
    x = b.pick("i")
    dtype = b.choose(["uint8", "uint32", "uint16"] if x.dtype.itemsize == 4 else ["uint64", "int32"])
    b.put(lambda v: lax.bitcast_convert_type(v, dtype), x, bound=2.0**31)


# Broadcasts and layouts.


@op
def outer(b: Builder) -> None:
    x, y = b.numbers((1, 2)), b.pick("fiu", (1, 2))
    y = b.fit(b.cast(y, x.dtype), 20)
    fn = b.choose([jnp.add, jnp.subtract, jnp.multiply])
    b.put(
        lambda u, v: fn(u.reshape(*u.shape, *[1] * v.ndim), v), x, y, bound=x.bound * y.bound + x.bound + y.bound,
        gain=x.bound + y.bound, rounds=1,
    )  # fmt: skip


@op
def pairwise(b: Builder) -> None:
    """Squared differences of all rows with all rows."""
    x = b.fit(b.pick("f", (2, 2)), 8)
    y = b.fit(b.partner(x), 8)
    if y.ndim != 2:
        raise Unfit
    b.put(lambda u, v: (u[:, None] - v[None]) ** 2, x, y, bound=(x.bound + y.bound) ** 2, gain=40, rounds=2)


@op
def broadcast(b: Builder) -> None:
    x = b.pick(rank=(0, 3))
    at, size = b.integer(0, x.ndim), b.choose(SIZES)
    shape = [*x.shape[:at], size, *x.shape[at:]]
    b.put(lambda v: jnp.broadcast_to(jnp.expand_dims(v, at), shape), x)


@op
def stretch(b: Builder) -> None:
    x = b.pick(rank=(1, 3))
    axis, size = b.axis(x), b.choose(SIZES)
    shape = [size if a == axis else s for a, s in enumerate(x.shape)]
    b.put(lambda v: jnp.broadcast_to(lax.slice_in_dim(v, 0, min(1, v.shape[axis]), axis=axis), shape)
          if v.shape[axis] else jnp.zeros(shape, v.dtype), x)  # fmt: skip


@op
def transpose(b: Builder) -> None:
    x = b.pick(rank=(2, 4))
    order = b.random.sample(range(x.ndim), x.ndim)
    b.put(lambda v: jnp.transpose(v, order), x)


@op
def reshape(b: Builder) -> None:
    x = b.pick(rank=(1, 4))
    shape = list(x.shape)
    if b.maybe() and x.ndim > 1:
        at = b.integer(0, x.ndim - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    elif b.maybe():
        at = b.axis(x)
        factor = b.choose([f for f in range(1, shape[at] + 1) if shape[at] % f == 0])
        shape[at : at + 1] = [factor, shape[at] // factor]
    else:
        size = x.size
        factor = b.choose([f for f in range(1, min(size, 60) + 1) if size % f == 0])
        shape = [factor, size // factor]
    b.put(lambda v: jnp.reshape(v, shape), x)


@op
def expand(b: Builder) -> None:
    x = b.pick(rank=(0, 3))
    at = b.integer(0, x.ndim)
    b.put(lambda v: lax.expand_dims(v, (at,)), x)


@op
def squeeze(b: Builder) -> None:
    x = b.pick(rank=(1, 4), ok=lambda v: 1 in v.shape, shape=[1, 8])
    axis = b.choose([a for a, s in enumerate(x.shape) if s == 1])
    b.put(lambda v: lax.squeeze(v, (axis,)), x)


@op
def rev(b: Builder) -> None:
    if any(step.name == WHOLE_UPDATE for step in b.steps):
        raise Unfit
    x = b.pick(rank=(1, 4))
    axes = sorted({b.axis(x), b.axis(x)})
    b.put(lambda v: jnp.flip(v, axes), x)


# Reductions.


def _axes(b: Builder, x: Value) -> tuple[int, ...]:
    return tuple(sorted({b.axis(x) for _ in range(b.integer(1, 2))}))


def _count(x: Value, axes: Sequence[int]) -> int:
    return math.prod(x.shape[a] for a in axes)


@op
def reduce_sum(b: Builder) -> None:
    x = b.fit(b.pick("fiuc", (1, 4)), 20)
    axes, keep = _axes(b, x), b.maybe(4)
    n = max(1, _count(x, axes))
    b.put(lambda v: jnp.sum(v, axes, keepdims=keep, dtype=v.dtype), x, bound=n * x.bound, gain=n, rounds=n)


@op
def reduce_max(b: Builder) -> None:
    x = b.hard(b.pick("fiu", (1, 4), ok=lambda v: v.size > 0))
    fn, axes, keep = b.choose([jnp.max, jnp.min]), _axes(b, x), b.maybe(4)
    b.put(lambda v: fn(v, axes, keepdims=keep), x)


@op
def reduce_max_complex(b: Builder) -> None:
    x = b.pick("c", (1, 4), exact=True, ok=lambda v: v.size > 0)
    axis, fn = b.axis(x), b.choose([jnp.max, jnp.min])
    b.put(lambda v: lax.stop_gradient(fn(v, axis)), x)


@op
def reduce_prod(b: Builder) -> None:
    x = b.pick("fi", (1, 4), exact=True)
    axis = b.axis(x)
    x = b.fit(x, 1)
    b.put(lambda v: jnp.prod(v, axis, dtype=v.dtype), x, bound=1)


@op
def reduce_logic(b: Builder) -> None:
    x = b.pick("b", (1, 4))
    fn, axes = b.choose([jnp.any, jnp.all]), _axes(b, x)
    b.put(lambda v: fn(v, axes), x)


@op
def reduce_bits(b: Builder) -> None:
    x = b.pick("iub", (1, 4))
    names = ["reduce_xor", "reduce_and", "reduce_or"]
    fn, axes = getattr(lax, b.choose(names)), _axes(b, x)
    b.put(lambda v: fn(v, axes), x, bound=2.0**31)


@op
def count(b: Builder) -> None:
    x = b.pick("fi", (1, 4), exact=True)
    axis = b.axis(x)
    b.put(lambda v: jnp.sum(v > 0, axis), x, bound=float(x.size))


@op
def argmax(b: Builder) -> None:
    x = b.pick("fiub", (1, 4), exact=True, ok=lambda v: v.size > 0)
    fn, axis = b.choose([jnp.argmax, jnp.argmin]), b.axis(x)
    b.put(lambda v: fn(v, axis), x, bound=float(x.size))


@rough
def moments(b: Builder) -> None:
    x = b.fit(b.pick("f", (1, 4), ok=lambda v: v.size > 0), 20)
    axis = b.axis(x)
    fn = b.choose([jnp.mean, jnp.var, lambda v, a: jnp.sqrt(1 + jnp.var(v, a))])
    n = x.shape[axis]
    b.put(lambda v: fn(v, axis), x, bound=x.bound**2 + 1, gain=4 * x.bound + 4, rounds=n + 4, rough=True)


@rough
def normalise(b: Builder) -> None:
    """Softmax, log-sum-exp, norms, layer norms."""
    x = b.fit(b.pick("f", (1, 4), ok=lambda v: v.size > 0), 8)
    axis = b.axis(x)
    options: list[Fn] = [
        lambda v: jax.nn.softmax(v, axis),
        lambda v: jax.nn.logsumexp(v, axis),
        lambda v: jax.nn.log_softmax(v, axis),
        lambda v: jnp.sqrt(1 + jnp.sum(v * v, axis)),
        lambda v: v / jnp.sqrt(1 + jnp.sum(v * v, axis, keepdims=True)),
        lambda v: (v - jnp.mean(v, axis, keepdims=True)) * lax.rsqrt(jnp.var(v, axis, keepdims=True) + 1),
        lambda v: jax.nn.softmax(jnp.where(jnp.arange(v.shape[axis]).reshape([-1 if a == axis else 1 for a in
                  range(v.ndim)]) < 2, v, -1e4).astype(v.dtype), axis),
    ]  # fmt: skip
    b.put(b.choose(options), x, bound=40.0, gain=20, rounds=x.shape[axis] + 9, rough=True)


# Contractions.

EINSUMS = ("ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "bij,bjk->bik", "bij,bkj->bik", "bij,bij->b", "bij,jk->bik",
           "ijb,bj->ib", "bij,cij->bc", "ij,ij->", "bihd,bjhd->bhij", "bij,bj->ib")  # fmt: skip


@op
def einsum(b: Builder) -> None:
    spec = b.choose(EINSUMS)
    left, right = spec.split("->")[0].split(",")
    x = b.fit(b.pick("fiuc", (len(left), len(left))), 8)
    size = dict(zip(left, x.shape, strict=True))
    shape = [size.get(c) or b.choose(SIZES[:8]) if c not in size else size[c] for c in right]
    found = [v for v in b.values if v.shape == tuple(shape) and v.dtype == x.dtype]
    y = b.choose(found) if found and b.maybe() else b.argument(shape, x.dtype)
    _dot(b, lambda u, v: jnp.einsum(spec, u, v), x, y, [size[c] for c in left if c not in spec.split("->")[1]])


def _dot(b: Builder, fn: Fn, x: Value, y: Value, contracted: Sequence[int]) -> None:
    x, y = b.fit(x, 8), b.fit(y, 8)
    n = max(1, math.prod(contracted))
    b.put(fn, x, y, bound=n * max(1, x.bound) * max(1, y.bound), gain=n * (x.bound + y.bound), rounds=n)


@op
def gram(b: Builder) -> None:
    x = b.fit(b.pick("fic", (2, 3)), 8)
    if b.maybe():
        _dot(b, lambda u, v: u @ jnp.swapaxes(v, -1, -2), x, x, [x.shape[-1]])
    else:
        _dot(b, lambda u, v: jnp.swapaxes(u, -1, -2) @ v, x, x, [x.shape[-2]])


@op
def weights(b: Builder) -> None:
    """`x @ w` with a new argument, wide or narrow."""
    x = b.pick("fi", (1, 3))
    w = b.argument([x.shape[-1], *([b.choose(SIZES)] if b.maybe() else [])], x.dtype)
    _dot(b, jnp.matmul, x, w, [x.shape[-1]])


@op
def wide_dot(b: Builder) -> None:
    """A dot whose result is of a wider type than its operands."""
    x = b.pick("iuf", (2, 2), ok=lambda v: v.noise == 0 or v.dtype != np.float32)
    narrow, wide = ("int8", np.int32) if x.kind in "iu" else (x.dtype, np.float32)
    if x.dtype == np.float64:
        raise Unfit
    x = b.fit(x, 8)
    b.put(
        lambda v: lax.dot(v.astype(narrow), v.T.astype(narrow), preferred_element_type=wide),
        x, bound=max(1, x.shape[1]) * x.bound**2, gain=2 * x.shape[1] * x.bound, rounds=x.shape[1],
    )  # fmt: skip


@op
def convolve(b: Builder) -> None:
    x = b.fit(b.pick("f", (3, 3), ok=lambda v: v.shape[-1] > 2 and v.size > 0), 8)
    width = b.integer(1, 3)
    w = b.argument([b.integer(1, 3), x.shape[1], width], x.dtype)
    n = x.shape[1] * width
    pads, stride = b.choose(["SAME", "VALID"]), b.integer(1, 2)
    b.put(
        lambda u, v: lax.conv_general_dilated(u, v, (stride,), pads), x, w,
        bound=n * x.bound * 3, gain=3 * n, rounds=n,
    )  # fmt: skip


@op
def pool(b: Builder) -> None:
    """Reductions over sliding windows."""
    x = b.hard(b.fit(b.pick("fi", (2, 3), ok=lambda v: v.size > 0), 20))
    window = [b.integer(1, min(3, s)) for s in x.shape]
    strides = [b.integer(1, 2) for _ in x.shape]
    pads = b.choose(["SAME", "VALID"])
    total = math.prod(window)
    add = b.maybe()
    low = 0 if add else -jnp.inf if x.kind == "f" else jnp.iinfo(x.dtype).min
    join = lax.add if add else lax.max

    def fn(v: Any) -> Any:
        v = lax.stop_gradient(v)
        sums = lax.reduce_window(v, jnp.asarray(low, v.dtype), join, window, strides, pads)
        return sums if add else jnp.maximum(sums, 0)

    b.put(fn, x, bound=total * x.bound, gain=total, rounds=total)


# Indexing.


@op
def take_rows(b: Builder) -> None:
    x = b.pick(rank=(1, 3))
    axis = b.axis(x, 1)
    rows = b.indices(b.sizes(b.integer(1, 2)), x.shape[axis])
    b.put(lambda v, i: jnp.take(v, i, axis), x, rows, bound=x.bound)


@op
def take_out_of_bounds(b: Builder) -> None:
    """Rows that lie outside: filled, clipped or counted from the end."""
    x = b.pick("fi", rank=(1, 3))
    axis = b.axis(x, 1)
    rows = b.argument(b.sizes(1), "int32", -2 * x.shape[axis], 2 * x.shape[axis])
    mode = b.choose(["clip", "wrap", "fill"])
    fill = {"fill_value": 7} if mode == "fill" else {}
    b.put(lambda v, i: jnp.take(v, i, axis, mode=mode, **fill), x, rows, bound=max(7, x.bound))


@op
def take_along(b: Builder) -> None:
    x = b.pick(rank=(1, 3))
    axis = b.axis(x, 1)
    shape = [b.choose(SIZES[:6]) if a == axis else s for a, s in enumerate(x.shape)]
    rows = b.indices(shape, x.shape[axis])
    b.put(lambda v, i: jnp.take_along_axis(v, i, axis), x, rows, bound=x.bound)


@op
def take_pairs(b: Builder) -> None:
    x = b.pick(rank=(2, 3))
    count = b.choose(SIZES[:8])
    i, j = b.indices([count], x.shape[0]), b.indices([count], x.shape[-1])
    b.put(lambda v, i, j: v[i, ..., j], x, i, j, bound=x.bound)


@op
def take_own_best(b: Builder) -> None:
    x = b.pick("fi", (2, 3), exact=True, ok=lambda v: v.size > 0)
    axis = b.axis(x)
    b.put(lambda v: jnp.take_along_axis(v, jnp.argmax(v, axis, keepdims=True), axis), x)


@op
def index_one(b: Builder) -> None:
    """A row by a number that is only known at run time."""
    x = b.pick(rank=(1, 4))
    row = b.indices([], x.shape[0])
    b.put(lambda v, i: v[i], x, row, bound=x.bound)


@op
def diagonal(b: Builder) -> None:
    x = b.pick(rank=(2, 3))
    offset = b.integer(-1, 1)
    if min(x.shape[:2]) < 2:
        raise Unfit
    b.put(lambda v: jnp.diagonal(v, offset), x)


@op
def trace(b: Builder) -> None:
    x = b.fit(b.pick("fic", (2, 3), ok=lambda v: v.shape[0] == v.shape[1] > 0, shape=[7, 7]), 20)
    n = x.shape[0]
    b.put(lambda v: jnp.trace(v), x, bound=n * x.bound, gain=n, rounds=n)


@op
def diag(b: Builder) -> None:
    x = b.pick("fi", (1, 1), ok=lambda v: 0 < v.size < 20)
    b.put(jnp.diag, x)


@op
def scatter_sum(b: Builder) -> None:
    """Updates added to rows, drawn with repeats; or multiplied into them, or their extremes taken."""
    x = b.fit(b.pick("fi", (1, 3), ok=lambda v: v.shape[0] > 0), 20)
    count = b.choose(SIZES[:9])
    rows = b.indices([count], x.shape[0])
    found = [v for v in b.values if v.shape == (count, *x.shape[1:]) and v.dtype == x.dtype]
    updates = b.fit(b.choose(found), 20) if found and b.maybe() else b.argument([count, *x.shape[1:]], x.dtype)
    kind = b.choose(["add", "add", "max", "min", "mul"])
    if kind == "add":
        bound = x.bound + count * updates.bound
        b.put(lambda t, i, u: t.at[i].add(u), x, rows, updates, bound=bound, gain=count + 1, rounds=count)
        return
    x, updates = b.hard(x), b.hard(updates)
    if kind == "mul":
        if x.noise or updates.noise:
            raise Unfit
        updates = b.fit(updates, 1)
    fns: dict[str, Fn] = {
        "max": lambda t, i, u: t.at[i].max(u),
        "min": lambda t, i, u: t.at[i].min(u),
        "mul": lambda t, i, u: t.at[i].mul(u),
    }
    fn = fns[kind]
    b.put(lambda t, i, u: fn(*map(lax.stop_gradient, (t, i, u))), x, rows, updates, bound=max(x.bound, updates.bound))


@op
def scatter_set(b: Builder) -> None:
    """Rows overwritten, each at most once."""
    x = b.pick("fiub", (1, 3), ok=lambda v: v.shape[0] > 1)
    updates = b.argument([x.shape[0] - 1, *x.shape[1:]], x.dtype)
    order = b.argument([x.shape[0]], "int32", 0, 9)
    b.put(lambda t, o, u: t.at[jnp.argsort(o)[1:]].set(u), x, order, updates, bound=max(3, x.bound))


@op
def scatter_pairs(b: Builder) -> None:
    x = b.fit(b.pick("fi", (2, 3), ok=lambda v: v.size > 0), 20)
    count = b.choose(SIZES[:9])
    i, j = b.indices([count], x.shape[0]), b.indices([count], x.shape[1])
    bound = x.bound + 2 * count
    b.put(lambda t, i, j: t.at[i, j].add(jnp.asarray(2, t.dtype)), x, i, j, bound=bound)


@op
def segments(b: Builder) -> None:
    x = b.fit(b.pick("fi", (1, 3), ok=lambda v: v.shape[0] > 0), 20)
    n = x.shape[0]
    labels = b.indices([n], b.choose([1, 2, 3, 5, 9]))
    if b.maybe():
        b.put(lambda v, i: jax.ops.segment_sum(v, i, 5), x, labels, bound=n * x.bound, gain=n, rounds=n)
    else:
        x = b.hard(x)
        b.put(lambda v, i: jnp.maximum(jax.ops.segment_max(lax.stop_gradient(v), i, 5), 0), x, labels, bound=x.bound)


@op
def histogram(b: Builder) -> None:
    x = b.pick("i", (1, 2), exact=True)
    b.put(lambda v: jnp.zeros(7, jnp.int32).at[jnp.abs(v) % 9].add(1), x, bound=float(x.size))


# Windows of rows.


@op
def slice_(b: Builder) -> None:
    x = b.pick(rank=(1, 4))
    axis = b.axis(x)
    start = b.integer(0, x.shape[axis])
    stop, stride = b.integer(start, x.shape[axis]), b.integer(1, 3)
    b.put(lambda v: lax.slice_in_dim(v, start, stop, stride, axis), x)


@op
def pad(b: Builder) -> None:
    x = b.pick("fiu", (1, 3))
    config = [(b.integer(-1, 3), b.integer(-1, 3), b.choose([0, 0, 1])) for _ in x.shape]
    if any(s + lo + hi + max(0, s - 1) * i < 0 for s, (lo, hi, i) in zip(x.shape, config, strict=True)):
        raise Unfit
    value = b.integer(0, 2)
    b.put(lambda v: lax.pad(v, jnp.asarray(value, v.dtype), config), x, bound=max(2, x.bound))


@op
def pad_mode(b: Builder) -> None:
    x = b.pick("fi", (1, 3), ok=lambda v: v.size > 0)
    axis, mode = b.axis(x), b.choose(["edge", "wrap", "symmetric"])
    widths = [(min(2, s), 1) if a == axis else (0, 0) for a, s in enumerate(x.shape)]
    b.put(lambda v: jnp.pad(v, widths, mode), x)


@op
def concatenate(b: Builder) -> None:
    x = b.pick(rank=(1, 4))
    axis = b.axis(x)
    alike = [v for v in b.values if v.dtype == x.dtype and _but(v.shape, axis) == _but(x.shape, axis)]
    others = [b.choose(alike) for _ in range(b.integer(1, 2))]
    if b.maybe():
        others[0] = b.argument([b.choose(SIZES) if a == axis else s for a, s in enumerate(x.shape)], x.dtype)
    parts = [x, *others] if b.maybe() else [*others, x]
    b.put(lambda *vs: jnp.concatenate(vs, axis), *parts)


def _but(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (len(shape), *shape[:axis], *shape[axis + 1 :])


@op
def stack(b: Builder) -> None:
    x = b.pick(rank=(0, 3))
    axis = b.integer(0, x.ndim)
    others = [v for v in b.values if v.dtype == x.dtype and v.shape == x.shape]
    b.put(lambda *vs: jnp.stack(vs, axis), x, b.choose(others))


@op
def split(b: Builder) -> None:
    x = b.pick(rank=(1, 4))
    axis = b.axis(x, 2)
    at = sorted(b.integer(0, x.shape[axis]) for _ in range(b.integer(1, 2)))
    b.put_all(lambda v: jnp.split(v, at, axis), x)


@op
def roll(b: Builder) -> None:
    x = b.pick(rank=(1, 4))
    axis, by = b.axis(x), b.integer(-3, 5)
    b.put(lambda v: jnp.roll(v, by, axis), x)


@op
def stencil(b: Builder) -> None:
    """Rows with their neighbours."""
    x = b.fit(b.pick("fi", (1, 3)), 20)
    axis = b.axis(x, 3)
    if b.maybe():
        b.put(lambda v: jnp.diff(v, axis=axis), x, bound=2 * x.bound, gain=2, rounds=1)
    else:
        b.put(lambda v: jnp.roll(v, 1, axis) + jnp.roll(v, -1, axis) - v - v, x, bound=4 * x.bound, gain=4, rounds=3)


@op
def dynamic_slice(b: Builder) -> None:
    x = b.pick(rank=(1, 3))
    axis = b.axis(x, 1)
    start, size = b.argument([], "int32", 0, x.shape[axis]), b.integer(0, x.shape[axis])
    b.put(lambda v, i: lax.dynamic_slice_in_dim(v, i, size, axis), x, start, bound=x.bound)


@op
def dynamic_update(b: Builder) -> None:
    x = b.pick(rank=(1, 3))
    axis = b.axis(x, 1)
    size = b.integer(0, x.shape[axis])
    start = b.argument([], "int32", 0, x.shape[axis])
    shape = [size if a == axis else s for a, s in enumerate(x.shape)]
    found = [v for v in b.values if v.shape == tuple(shape) and v.dtype == x.dtype]
    update = b.choose(found) if found and b.maybe() else b.argument(shape, x.dtype)
    bound = max(x.bound, update.bound)
    b.put(lambda v, u, i: lax.dynamic_update_slice_in_dim(v, u, i, axis), x, update, start, bound=bound)


# Masks, counts and draws.


@op
def mask(b: Builder) -> None:
    x = b.pick("fi", (2, 3))
    options: list[Fn] = [
        lambda v: jnp.tril(v),
        lambda v: jnp.triu(v, 1),
        lambda v: jnp.where(jnp.eye(*v.shape[-2:], dtype=bool), v, 0),
        lambda v: jnp.where(jnp.arange(v.shape[-1]) < v.shape[-1] // 2, v, -1),
        lambda v: jnp.where(jnp.arange(v.shape[-2])[:, None] >= jnp.arange(v.shape[-1]), v, 2),
    ]
    b.put(b.choose(options), x, bound=max(2, x.bound))


@op
def iota(b: Builder) -> None:
    x = b.fit(b.pick("fiu", (1, 4)), 50)
    axis = b.axis(x)
    b.put(lambda v: v + lax.broadcasted_iota(v.dtype, v.shape, axis), x, bound=x.bound + x.shape[axis], rounds=1)


@op
def eye(b: Builder) -> None:
    x = b.fit(b.pick("f", (2, 3), ok=lambda v: v.shape[-1] == v.shape[-2], shape=[b.choose(SIZES)] * 2), 50)
    b.put(lambda v: v + 2 * jnp.eye(v.shape[-1], dtype=v.dtype), x, bound=x.bound + 2, rounds=1)


@op
def one_hot(b: Builder) -> None:
    n = b.choose(SIZES[:9])
    labels = b.indices(b.sizes(b.integer(1, 2)), n)
    dtype = b.choose([d for d in b.dtypes if kind_of(d) in "fi"])
    b.put(lambda i: jax.nn.one_hot(i, n, dtype=dtype), labels, bound=1)


@op
def bernoulli(b: Builder) -> None:
    """Dropout: the bits are the same, whichever part is drawn."""
    x = b.pick("fi", (1, 4))
    seed = b.integer(0, 9)
    b.put(lambda v: jnp.where(jax.random.bernoulli(jax.random.key(seed), 0.6, v.shape), v, 0), x)


@op
def random_integers(b: Builder) -> None:
    x = b.fit(b.pick("fi", (1, 3)), 20)
    seed = b.integer(0, 9)
    fns: list[Fn] = [
        lambda v: jax.random.randint(jax.random.key(seed), v.shape, -4, 5),
        lambda v: jax.random.bits(jax.random.key(seed), v.shape, "uint8") % np.uint8(9),
        lambda v: jax.vmap(lambda k: jax.random.randint(k, v.shape[1:], 0, 5))(
            jax.random.split(jax.random.key(seed), v.shape[0])
        ),
    ]
    fn = b.choose(fns)
    b.put(lambda v: v + fn(v).astype(v.dtype), x, bound=x.bound + 9, rounds=1)


@rough
def random_floats(b: Builder) -> None:
    x = b.fit(b.pick("f", (1, 3)), 20)
    seed, fn = b.argument([], "int32", 0, 9), b.choose([jax.random.normal, jax.random.uniform])
    b.put(lambda v, s: v + fn(jax.random.key(s), v.shape, v.dtype), x, seed, bound=x.bound + 9, rounds=9, rough=True)


# Orders.


@op
def cumulative(b: Builder) -> None:
    x = b.pick("fi", (1, 4))
    axis, reverse = b.axis(x), b.maybe()
    n = max(1, x.shape[axis])
    name = b.choose(["cumsum", "cumsum", "cummax", "cummin", "cumprod"])
    fn = getattr(lax, name)
    if name == "cumsum":
        x = b.fit(x, 20)
        b.put(lambda v: fn(v, axis, reverse), x, bound=n * x.bound, gain=n, rounds=n)
        return
    x = b.hard(x)
    if name == "cumprod":
        if x.noise:
            raise Unfit
        x = b.fit(x, 1)
    b.put(lambda v: fn(v, axis, reverse), x)


@op
def sort(b: Builder) -> None:
    x = b.hard(b.pick("fiu", (1, 4)))
    axis = b.axis(x)
    b.put(lambda v: jnp.sort(v, axis), x)


@op
def argsort(b: Builder) -> None:
    x = b.pick("fi", (1, 4), exact=True)
    axis, descending = b.axis(x), b.maybe()
    b.put(lambda v: jnp.argsort(v, axis, descending=descending), x, bound=float(max(1, x.shape[axis])))


@op
def sort_with(b: Builder) -> None:
    """Values in the order of keys."""
    x = b.pick("fi", (1, 3), exact=True)
    y = b.partner(x)
    if y.shape != x.shape:
        raise Unfit
    axis = b.axis(x)
    b.put_all(lambda u, v: lax.sort((u, v), dimension=axis, num_keys=1, is_stable=True), x, y)


@op
def top_k(b: Builder) -> None:
    x = b.pick("fi", (1, 3), exact=True, ok=lambda v: v.size > 0)
    k = b.integer(1, x.shape[-1])
    b.put_all(lambda v: lax.top_k(v, k), x, bound=max(x.bound, x.shape[-1]))


# Bodies for control flow and transformations: of a carry and a row, whatever their shapes.

EXACT: tuple[Fn, ...] = (
    lambda c, x: lax.rem(c + x, jnp.full((), 7, c.dtype)),
    lambda c, x: lax.rem(c * 2 - x, jnp.full((), 5, c.dtype)),
    lambda c, x: lax.rem(jnp.where(x > 0, x + 1, c), jnp.full((), 11, c.dtype)),
)
ROUNDING: tuple[Fn, ...] = (
    lambda c, x: jnp.tanh(c + x),
    lambda c, x: 0.5 * c + jnp.sin(x),
    lambda c, x: c * jax.nn.sigmoid(x),
)


def _longest(*xs: Value) -> int:
    """Steps of the longest loop over operands: rounding adds up over them."""
    return max((s for x in xs for s in x.shape), default=0)


def _body(b: Builder, *xs: Value) -> tuple[Fn, dict[str, Any]]:
    """An elementwise body of two operands with a carry below 12, and what `put` should know of its loop."""
    how = {"gain": 20 + 2 * _longest(*xs), "rounds": 60 + 9 * _longest(*xs)}
    if b.rough and all(x.kind == "f" for x in xs) and b.maybe():
        return b.choose(ROUNDING), {"rough": True, **how}
    if any(x.noise for x in xs):
        return b.choose(ROUNDING), how
    return b.choose(EXACT), {}


@op
def scan(b: Builder) -> None:
    """A carry of rows' shape; results stacked from it."""
    x = b.fit(b.pick("fi", (1, 3)), 10)
    body, how = _body(b, x)
    reverse, stacked = b.maybe(3), b.maybe()

    def fn(v: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            c = body(c, row)
            return c, (c + row if stacked else None)

        return lax.scan(step, jnp.ones(v.shape[1:], v.dtype), v, reverse=reverse)

    b.put_all(fn, x, bound=22, **how)


@op
def scan_dot(b: Builder) -> None:
    """A recurrent net: the carry goes through a matrix, and the loop reads another value whole."""
    x = b.fit(b.pick("f", (2, 3), ok=lambda v: v.shape[-1] > 0), 3)
    k = x.shape[-1]
    w = b.argument([k, k], x.dtype, -1, 1)

    def fn(v: Any, w: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            if b.rough or x.noise:  # a mean, as a sum over many steps would be chaotic
                c = jnp.tanh(c @ w / k + row).astype(c.dtype)
            else:
                c = lax.rem(c @ w + row, jnp.full((), 3, c.dtype))
            return c, c * 2

        return lax.scan(step, jnp.zeros(v.shape[1:], v.dtype), v)

    b.put_all(fn, x, w, bound=6, rough=b.rough, gain=50 + 2 * _longest(x), rounds=100 * k + 9 * _longest(x))


@op
def map_(b: Builder) -> None:
    x = b.fit(b.pick("fi", (1, 3)), 10)
    y = b.fit(b.partner(x), 10)
    body, how = _body(b, x, y)
    z = y if y.ndim < x.ndim or not y.ndim else x
    b.put(lambda v, w: lax.map(lambda row: body(row, w[..., :1].sum() if w.ndim else w), v), x, z, bound=200, **how)


@op
def fori_loop(b: Builder) -> None:
    x = b.fit(b.pick("fi", (0, 3)), 10)
    body, how = _body(b, x)
    trips, static = b.integer(0, 4), b.maybe()
    count = b.argument([], "int32", 0, 3)

    def fn(v: Any, n: Any) -> Any:
        if static:
            return lax.fori_loop(0, trips, lambda i, c: body(c, v + i.astype(v.dtype)), v)
        v = lax.stop_gradient(v)
        return lax.fori_loop(0, n, lambda i, c: body(c, v), v)

    b.put(fn, x, count, bound=max(12, x.bound), **how)


@op
def while_loop(b: Builder) -> None:
    x = b.fit(b.pick("fi", (1, 3)), 10)
    body, how = _body(b, x)

    def fn(v: Any) -> Any:
        v = lax.stop_gradient(v)
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, body(s[1], v)), (0, v))[1]

    b.put(fn, x, bound=max(12, x.bound), **how)


@op
def cond(b: Builder) -> None:
    x = b.fit(b.pick("fi", (0, 3)), 10)
    body, how = _body(b, x)
    which = b.argument([], "int32", 0, 2)
    branches: list[Fn] = [lambda v: body(v, v), lambda v: v, lambda v: v * 2]
    if b.maybe():
        b.put(lambda v, i: lax.switch(i, branches, v), x, which, bound=20, **how)
    else:
        b.put(lambda v, i: lax.cond(i > 0, *branches[:2], v), x, which, bound=20, **how)


# Derivatives, vmap and calls.


@op
def grad(b: Builder) -> None:
    """The gradient of a sum over bodies that are polynomial, or smooth."""
    x = b.fit(b.pick("f", (1, 3)), 4)
    y = b.fit(b.partner(x), 4)
    how: dict[str, Any] = {"gain": 60 + 4 * _longest(x), "rounds": 200 + 20 * _longest(x)}
    exact: list[Fn] = [
        lambda v, w: jnp.sum((v * w) ** 2),
        lambda v, w: jnp.sum(v * v * w),
        lambda v, w: jnp.sum(lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(v.shape[1:], v.dtype), v)[1]),
        lambda v, w: jnp.sum(jnp.cumsum(v * w, 0) * v) if v.shape[0] < 9 else jnp.sum(v),
    ]
    smooth_: list[Fn] = [
        lambda v, w: jnp.sum(jnp.sin(v * w)),
        lambda v, w: jnp.sum(jnp.tanh(v) * w),
        lambda v, w: jnp.sum(jax.nn.softmax(v + w, 0) ** 2) if v.size else jnp.sum(v),
        lambda v, w: jnp.sum(lax.map(lambda row: jnp.cos(row) * row, v)),
        lambda v, w: jnp.sum(lax.scan(lambda c, row: (jnp.tanh(c + row), c), jnp.zeros(v.shape[1:], v.dtype), v)[1]),
    ]
    if b.rough and b.maybe():
        fn, how["rough"] = b.choose(smooth_), True
    else:
        fn = b.choose(exact)
    of = b.choose([jax.grad, lambda f: jax.grad(jax.checkpoint(f)), lambda f: lambda *a: jax.value_and_grad(f)(*a)[1]])
    b.put(of(fn), x, y, bound=4000, **how)


@op
def jvp(b: Builder) -> None:
    x = b.fit(b.pick("f", (1, 3)), 6)
    y = b.fit(b.partner(x), 6)
    if y.shape != x.shape:
        raise Unfit
    b.put(lambda u, v: jax.jvp(lambda t: t * t * t, (u,), (v,))[1], x, y, bound=700, gain=300, rounds=4)


@op
def jacobian(b: Builder) -> None:
    x = b.fit(b.pick("f", (1, 1), ok=lambda v: v.size < 14), 6)
    of = b.choose([jax.jacrev, jax.jacfwd, lambda f: jax.hessian(lambda v: jnp.sum(f(v)))])
    b.put(of(lambda v: v * v * jnp.sum(v)), x, bound=2000, gain=200, rounds=60)


@op
def vmap(b: Builder) -> None:
    x = b.fit(b.pick("f", (2, 3)), 4)
    axis = b.axis(x)
    bodies: list[Fn] = [
        lambda v: jnp.cumsum(v, 0),
        lambda v: v * jnp.sum(v),
        lambda v: jax.grad(lambda u: jnp.sum(u * u))(v),
        lambda v: v[::-1] + v[:1],
        lambda v: jnp.dot(v, v[0] if v.ndim > 1 and v.shape[0] == v.shape[-1] else v.T),
        lambda v: lax.fori_loop(0, 2, lambda i, c: lax.rem(c + v, jnp.full((), 5, v.dtype)), v),
    ]
    fn, n = b.choose(bodies), max(1, x.size)
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise Unfit
    out = b.integer(0, 1)
    try:
        b.put(jax.vmap(fn, axis, out), x, bound=min(n, 200) * 16, gain=n * 8, rounds=n)
    except ValueError:
        raise Unfit from None


@op
def called(b: Builder) -> None:
    """Functions within functions: jit, checkpoint, rules for derivatives."""
    x = b.fit(b.pick("f", (0, 3)), 20)
    double = jax.custom_jvp(lambda v: v * v + v)
    double.defjvp(lambda p, t: (double(p[0]), t[0] * (2 * p[0] + 1)))
    triple = jax.custom_vjp(lambda v: v * v + v)
    triple.defvjp(lambda v: (v * v + v, v), lambda v, g: (g * (2 * v + 1),))
    plain: Fn = lambda v: v * v + v  # noqa: E731
    fns = [jax.jit(plain), jax.checkpoint(plain), double, triple, lambda v: lax.optimization_barrier(v) * v + v]
    b.put(b.choose(fns), x, bound=x.bound**2 + x.bound, gain=2 * x.bound + 1, rounds=2)


# Linear algebra and transforms.


@rough
def cholesky(b: Builder) -> None:
    x = b.fit(b.pick("f", (2, 3), ok=lambda v: v.dtype in (np.float32, np.float64) and v.size > 0), 3)
    n = x.shape[-1] * x.bound**2

    def factor(v: Any) -> Any:
        return jnp.linalg.cholesky(v @ jnp.swapaxes(v, -1, -2) + 4 * jnp.eye(v.shape[-2], dtype=v.dtype))

    b.put(factor, x, bound=n + 4, gain=200 * n, rounds=200, rough=True)


@rough
def solve(b: Builder) -> None:
    """Triangular solves, of one matrix or of batches of them, from the left and the right."""
    x = b.fit(b.pick("f", (2, 3), ok=lambda v: v.dtype in (np.float32, np.float64) and v.size > 0), 3)
    left = b.maybe()
    n = x.shape[-2 if left else -1]
    a = b.argument([*x.shape[:-2], n, n], x.dtype, -1, 1)
    transposed = b.maybe()

    def fn(a: Any, v: Any) -> Any:
        a = jnp.tril(a, -1) / 8 + 2 * jnp.eye(n, dtype=a.dtype)
        return lax.linalg.triangular_solve(a, v, left_side=left, lower=True, transpose_a=transposed)

    b.put(fn, b.finite(a), x, bound=6 * x.bound, gain=20, rounds=200, rough=True)
