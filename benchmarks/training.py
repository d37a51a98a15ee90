"""A training step of a transformer: does memscope find gradient accumulation by itself, and how long does it look?

    python -m benchmarks.training               # 12 layers, about 4,400 eqns
    python -m benchmarks.training --layers 2

Forward, backward and Adam, in one function. The limit is "arguments + outputs + 15% of the temporaries" of the
reference build. Nothing runs: the figures are XLA's, and the planning time.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random

import memscope
from memscope.plan import request_plan

SHARE = 0.15


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a transformer and of its batch."""

    layers: int = 12
    width: int = 256
    heads: int = 8
    hidden: int = 1024
    words: int = 1000
    batch: int = 32
    length: int = 129


def parameters(sizes: Sizes, key: Array) -> Any:
    """Weights of all layers, as a tree."""
    keys = iter(random.split(key, 4 * sizes.layers + 2))

    def matrix(*shape: int) -> Array:
        return 0.02 * random.normal(next(keys), shape)

    d, h = sizes.width, sizes.hidden
    layers = [
        {
            "qkv": matrix(d, 3 * d),
            "out": matrix(d, d),
            "up": matrix(d, h),
            "down": matrix(h, d),
            "norms": (jnp.ones(d), jnp.zeros(d), jnp.ones(d), jnp.zeros(d)),
            "biases": (jnp.zeros(h), jnp.zeros(d)),
        }
        for _ in range(sizes.layers)
    ]
    norm = jnp.ones(d), jnp.zeros(d)
    return {"words": matrix(sizes.words, d), "layers": layers, "norm": norm, "readout": matrix(d, sizes.words)}


def normalised(x: Array, gain: Array, offset: Array) -> Array:
    mean, spread = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(spread + 1e-5) * gain + offset


def attention(x: Array, layer: Any, heads: int) -> Array:
    batch, length, width = x.shape

    def by_head(t: Array) -> Array:
        return t.reshape(batch, length, heads, width // heads).swapaxes(1, 2)

    q, k, v = map(by_head, jnp.split(x @ layer["qkv"], 3, -1))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(width // heads)
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), -1)
    return (weights @ v).swapaxes(1, 2).reshape(batch, length, width) @ layer["out"]


def loss(weights: Any, tokens: Array, heads: int) -> Array:
    x = weights["words"][tokens[:, :-1]]
    for layer in weights["layers"]:
        g1, o1, g2, o2 = layer["norms"]
        b1, b2 = layer["biases"]
        x = x + attention(normalised(x, g1, o1), layer, heads)
        x = x + jax.nn.gelu(normalised(x, g2, o2) @ layer["up"] + b1) @ layer["down"] + b2
    scores = jax.nn.log_softmax(normalised(x, *weights["norm"]) @ weights["readout"])
    return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], -1))


def training_step(sizes: Sizes) -> Callable[..., Any]:
    """(weights, first and second moments, step number, tokens) -> (new weights, new moments, loss)."""

    def step(weights: Any, first: Any, second: Any, number: Array, tokens: Array) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, tokens, sizes.heads)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slopes)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, slopes)

        def moved(w: Array, m: Array, v: Array) -> Array:
            return w - 1e-3 * (m / (1 - 0.9**number)) / (jnp.sqrt(v / (1 - 0.99**number)) + 1e-8)

        return jax.tree.map(moved, weights, first, second), first, second, value

    return step


def arguments(sizes: Sizes) -> tuple[Any, ...]:
    """Fresh weights and random tokens."""
    weights = parameters(sizes, random.key(0))
    nothing = jax.tree.map(jnp.zeros_like, weights)
    tokens = random.randint(random.key(1), (sizes.batch, sizes.length), 0, sizes.words)
    return weights, nothing, nothing, jnp.float32(1), tokens


def planned(sizes: Sizes, say: Callable[[str], None]) -> memscope.Plan:
    """The plan at 15% of the temporaries."""
    shapes = jax.eval_shape(lambda: arguments(sizes))
    request = request_plan(
        training_step(sizes), shapes, {}, target=None, progress=say,
        static_argnums=(), static_argnames=(), donate_argnums=(),
    )  # fmt: skip
    original = request.search.original
    return request.plan(original.peak_bytes - round((1 - SHARE) * original.temp_bytes), best_effort=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args(argv)
    start = time.perf_counter()
    plan = planned(Sizes(layers=options.layers), lambda line: print("  " + line, file=sys.stderr, flush=True))
    seconds = time.perf_counter() - start
    print("\n".join(plan.explain().split("\n")[:10]))
    print(
        f"{len(plan.program.eqns):,} eqns planned in {seconds:.0f} s: {len(plan.loops)} loop(s) of "
        f"{', '.join(f'{loop.size} steps, {loop.chunk} at a time' for loop in plan.loops)}; "
        f"{100 * plan.temp_bytes / plan.original_temp_bytes:.1f}% of the temporaries"
    )
    return 0 if plan.fits else 1


if __name__ == "__main__":
    sys.exit(main())
