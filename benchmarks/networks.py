"""Networks whose order of instructions matters, in plain JAX: what `benchmarks.order` schedules.

A network is a loss of its weights and a batch; weights are made from their shapes alone, so that a gradient, an
inference or a training step of it is one line of `PROGRAMS`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

Weights = Any
Forward = Callable[[Weights, Array], Array]


@dataclasses.dataclass(frozen=True)
class Program:
    """A function to schedule.

    Attributes:
      make_args: its arguments, made on demand.
      donate_argnums: those that it may overwrite, as a training step does its state.
    """

    name: str
    fn: Callable[..., Any]
    make_args: Callable[[], tuple[Any, ...]]
    donate_argnums: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Network:
    """A function of weights and a batch, and the shapes of both."""

    forward: Forward
    weights: Any  # a tree of shapes
    batch: tuple[int, ...]


class Shape(tuple[int, ...]):
    """The shape of a weight: a leaf of a tree, which a tuple is not."""


def is_shape(x: Any) -> bool:
    return isinstance(x, Shape)


def dense(width: int, out: int) -> Shape:
    return Shape((width, out))


def kernel(size: int, channels: int, out: int) -> Shape:
    return Shape((size, size, channels, out))


def random_weights(shapes: Any, key: Array) -> Weights:
    """Normal weights, scaled by the number of inputs of each output."""
    leaves, tree = jax.tree.flatten(shapes, is_leaf=is_shape)
    keys = random.split(key, len(leaves))
    made = [random.normal(k, s) / math.sqrt(max(1, math.prod(s[:-1]))) for k, s in zip(keys, leaves, strict=True)]
    return tree.unflatten(made)


def conv(x: Array, w: Array, stride: int = 1) -> Array:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def normalised(x: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


# The networks.


def mlp(batch: int, width: int = 512, layers: int = 12) -> Network:
    def forward(weights: Weights, x: Array) -> Array:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    return Network(forward, [dense(width, width) for _ in range(layers)], (batch, width))


def resnet(batch: int, size: int = 32, widths: tuple[int, ...] = (16, 32, 64), blocks: int = 3) -> Network:
    """Residual blocks (He et al. 2016), halved in size from one width to the next."""

    def forward(weights: Weights, x: Array) -> Array:
        x = conv(x, weights["stem"])
        for stage in weights["stages"]:
            for i, block in enumerate(stage):
                stride = 2 if i == 0 else 1
                y = jax.nn.relu(normalised(conv(x, block["a"], stride)))
                y = normalised(conv(y, block["b"]))
                x = jax.nn.relu(y + (conv(x, block["skip"], stride) if "skip" in block else x))
        return x.mean((1, 2)) @ weights["head"]

    stages = []
    before = widths[0]
    for width in widths:
        stage = []
        for i in range(blocks):
            block = {"a": kernel(3, before, width), "b": kernel(3, width, width)}
            stage.append(block | ({"skip": kernel(1, before, width)} if i == 0 else {}))
            before = width
        stages.append(stage)
    weights = {"stem": kernel(3, 3, widths[0]), "stages": stages, "head": dense(widths[-1], 10)}
    return Network(forward, weights, (batch, size, size, 3))


def unet(batch: int, size: int = 64, width: int = 16, depth: int = 3) -> Network:
    """An encoder and a decoder with skips between them (Ronneberger et al. 2015)."""

    def forward(weights: Weights, x: Array) -> Array:
        skips = []
        for down in weights["down"]:
            x = jax.nn.relu(conv(jax.nn.relu(conv(x, down[0])), down[1]))
            skips.append(x)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        x = jax.nn.relu(conv(x, weights["middle"]))
        for up, skip in zip(weights["up"], reversed(skips), strict=True):
            x = jnp.concatenate([x.repeat(2, 1).repeat(2, 2), skip], -1)
            x = jax.nn.relu(conv(jax.nn.relu(conv(x, up[0])), up[1]))
        return conv(x, weights["out"])

    w = [width << i for i in range(depth + 1)]
    down = [(kernel(3, 3 if i == 0 else w[i - 1], w[i]), kernel(3, w[i], w[i])) for i in range(depth)]
    up = [(kernel(3, w[i + 1] + w[i], w[i]), kernel(3, w[i], w[i])) for i in reversed(range(depth))]
    weights = {"down": down, "middle": kernel(3, w[depth - 1], w[depth]), "up": up, "out": kernel(1, w[0], 3)}
    return Network(forward, weights, (batch, size, size, 3))


def attention(x: Array, qkv: Array, out: Array, heads: int) -> Array:
    batch, length, width = x.shape
    split = (x @ qkv).reshape(batch, length, 3, heads, width // heads)
    q, k, v = (split[:, :, i].swapaxes(1, 2) for i in range(3))
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / math.sqrt(width // heads), -1)
    return (weights @ v).swapaxes(1, 2).reshape(batch, length, width) @ out


def transformer(batch: int, layers: int = 4, width: int = 128, heads: int = 4, length: int = 128) -> Network:
    def forward(weights: Weights, x: Array) -> Array:
        for layer in weights:
            x = x + attention(normalised(x), layer["qkv"], layer["out"], heads)
            x = x + jax.nn.gelu(normalised(x) @ layer["up"]) @ layer["down"]
        return x

    layer = {
        "qkv": dense(width, 3 * width),
        "out": dense(width, width),
        "up": dense(width, 4 * width),
        "down": dense(4 * width, width),
    }
    return Network(forward, [layer] * layers, (batch, length, width))


def vit(batch: int, size: int = 64, patch: int = 8, width: int = 128, layers: int = 3) -> Network:
    """A transformer of patches of an image (Dosovitskiy et al. 2021)."""
    tokens = (size // patch) ** 2
    body = transformer(batch, layers, width, 4, tokens)

    def forward(weights: Weights, x: Array) -> Array:
        x = lax.conv_general_dilated(
            x, weights["patch"], (patch, patch), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = x.reshape(batch, tokens, width) + weights["place"]
        return body.forward(weights["body"], x).mean(1) @ weights["head"]

    weights = {
        "patch": kernel(patch, 3, width),
        "place": Shape((tokens, width)),
        "body": body.weights,
        "head": dense(width, 10),
    }
    return Network(forward, weights, (batch, size, size, 3))


def mixer(batch: int, tokens: int = 64, width: int = 128, layers: int = 4) -> Network:
    """MLPs over tokens and over channels in turn (Tolstikhin et al. 2021)."""

    def forward(weights: Weights, x: Array) -> Array:
        for layer in weights:
            y = normalised(x).swapaxes(1, 2)
            x = x + (jax.nn.gelu(y @ layer["t1"]) @ layer["t2"]).swapaxes(1, 2)
            x = x + jax.nn.gelu(normalised(x) @ layer["c1"]) @ layer["c2"]
        return x

    layer = {
        "t1": dense(tokens, 2 * tokens),
        "t2": dense(2 * tokens, tokens),
        "c1": dense(width, 4 * width),
        "c2": dense(4 * width, width),
    }
    return Network(forward, [layer] * layers, (batch, tokens, width))


def lstm(batch: int, steps: int = 24, width: int = 128) -> Network:
    """One cell (Hochreiter and Schmidhuber 1997), unrolled over its steps."""

    def forward(weights: Weights, x: Array) -> Array:
        h = c = jnp.zeros((batch, width))
        outs = []
        for t in range(steps):
            gates = x[:, t] @ weights["x"] + h @ weights["h"]
            i, f, g, o = jnp.split(gates, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            outs.append(h @ weights["out"])
        return jnp.stack(outs, 1)

    weights = {"x": dense(width, 4 * width), "h": dense(width, 4 * width), "out": dense(width, width)}
    return Network(forward, weights, (batch, steps, width))


def recurrent(batch: int, steps: int = 24, width: int = 128) -> Network:
    """A gated cell in a `scan`, a stack of branches in its body."""

    def forward(weights: Weights, x: Array) -> Array:
        def step(h: Array, x_t: Array) -> tuple[Array, Array]:
            branches = [jnp.tanh(h @ w + x_t) for w in weights["branches"]]
            mixed = sum(b * jax.nn.sigmoid(b @ weights["gate"]) for b in branches)
            h = jnp.tanh(mixed + h)
            return h, h @ weights["out"]

        return lax.scan(step, jnp.zeros((batch, width)), x.swapaxes(0, 1))[1]

    weights = {"branches": [dense(width, width)] * 4, "gate": dense(width, width), "out": dense(width, width)}
    return Network(forward, weights, (batch, steps, width))


def inception(batch: int, size: int = 32, width: int = 48, blocks: int = 4) -> Network:
    """Branches of several kernel sizes side by side (Szegedy et al. 2015)."""

    def forward(weights: Weights, x: Array) -> Array:
        x = conv(x, weights["stem"])
        for block in weights["blocks"]:
            a = conv(x, block["a"])
            b = conv(jax.nn.relu(conv(x, block["b"][0])), block["b"][1])
            c = conv(jax.nn.relu(conv(x, block["c"][0])), block["c"][1])
            d = conv(lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"), block["d"])
            x = jax.nn.relu(jnp.concatenate([a, b, c, d], -1))
        return x.mean((1, 2))

    part = width // 4
    block = {
        "a": kernel(1, width, part),
        "b": (kernel(1, width, width), kernel(3, width, part)),
        "c": (kernel(1, width, width // 2), kernel(5, width // 2, part)),
        "d": kernel(1, width, part),
    }
    return Network(forward, {"stem": kernel(3, 3, width), "blocks": [block] * blocks}, (batch, size, size, 3))


def random_wired(batch: int, nodes: int = 24, size: int = 32, width: int = 16, seed: int = 3) -> Network:
    """Nodes that each add up a few earlier ones (Xie et al. 2019)."""
    rng = np.random.default_rng(seed)
    inputs = [sorted(rng.choice(i + 1, size=min(i + 1, 1 + int(rng.integers(3))), replace=False)) for i in range(nodes)]

    def forward(weights: Weights, x: Array) -> Array:
        made = [conv(x, weights["stem"])]
        for w, picked in zip(weights["nodes"], inputs, strict=True):
            made.append(conv(jax.nn.relu(sum(made[p] for p in picked)), w))
        used = {p for picked in inputs for p in picked}
        return sum(made[i] for i in range(len(made)) if i not in used)

    weights = {"stem": kernel(3, 3, width), "nodes": [kernel(3, width, width)] * nodes}
    return Network(forward, weights, (batch, size, size, 3))


def graph_net(batch: int, points: int = 512, edges: int = 4096, width: int = 64, rounds: int = 4) -> Network:
    """Messages along edges, summed up at their ends (Battaglia et al. 2018)."""
    rng = np.random.default_rng(0)
    ends = rng.integers(points, size=(2, edges))

    def forward(weights: Weights, x: Array) -> Array:
        x = x @ weights["in"]
        for layer in weights["rounds"]:
            both = jnp.concatenate([x[:, ends[0]], x[:, ends[1]]], -1)
            message = jnp.tanh(both @ layer["edge"])
            gate = jax.nn.sigmoid(both @ layer["gate"])
            summed = jnp.zeros_like(x).at[:, ends[1]].add(message * gate)
            x = normalised(x + jax.nn.relu(jnp.concatenate([x, summed], -1) @ layer["node"]))
        return x

    layer = {"edge": dense(2 * width, width), "gate": dense(2 * width, width), "node": dense(2 * width, width)}
    return Network(forward, {"in": dense(16, width), "rounds": [layer] * rounds}, (batch, points, 16))


def kernels(points: int = 1024, features: int = 16) -> Network:
    """A mixture of kernel matrices, each applied to a target: independent branches."""

    def forward(weights: Weights, x: Array) -> Array:
        total = jnp.zeros(points)
        for scale, alpha in zip(weights["scales"], weights["alphas"], strict=True):
            z = x * scale
            d = (z**2).sum(1)[:, None] - 2 * z @ z.T + (z**2).sum(1)[None]
            total = total + (jnp.exp(-d) + 1 / (1 + jnp.abs(d))) @ alpha
        return total

    weights = {"scales": [Shape((features,))] * 8, "alphas": [Shape((points,))] * 8}
    return Network(forward, weights, (points, features))


# What is made of them.


def loss_of(network: Network) -> Callable[..., Array]:
    def loss(weights: Weights, x: Array) -> Array:
        return (network.forward(weights, x) ** 2).mean()

    return loss


def arguments(network: Network) -> tuple[Weights, Array]:
    return random_weights(network.weights, random.key(0)), random.normal(random.key(1), network.batch)


def gradient(name: str, network: Network) -> Program:
    return Program(f"{name} gradient", jax.grad(loss_of(network)), functools.partial(arguments, network))


def inference(name: str, network: Network) -> Program:
    return Program(f"{name} inference", network.forward, functools.partial(arguments, network))


def adam(name: str, network: Network) -> Program:
    """A step of Adam (Kingma and Ba 2015) that may overwrite its state."""
    loss = loss_of(network)

    def step(state: Any, x: Array) -> Any:
        weights, first, second, count = state
        count = count + 1
        slopes = jax.grad(loss)(weights, x)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slopes)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, slopes)

        def moved(w: Array, m: Array, v: Array) -> Array:
            return w - 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

        return jax.tree.map(moved, weights, first, second), first, second, count

    def make_args() -> tuple[Any, Array]:
        weights, x = arguments(network)
        nothing = jax.tree.map(jnp.zeros_like, weights)
        return (weights, nothing, jax.tree.map(jnp.zeros_like, weights), jnp.float32(0)), x

    return Program(f"{name} Adam step", step, make_args, donate_argnums=(0,))


def programs() -> Iterator[Program]:
    """All of them, small ones first."""
    yield gradient("MLP, batch 32", mlp(32))
    yield gradient("MLP, batch 2048", mlp(2048, 256))
    yield inference("mixture of kernels", kernels())
    yield gradient("mixture of kernels", kernels())
    yield gradient("ResNet, batch 1", resnet(1))
    yield gradient("ResNet, batch 32", resnet(32))
    yield gradient("U-Net, batch 4", unet(4))
    yield gradient("transformer, batch 1", transformer(1))
    yield gradient("transformer, batch 8", transformer(8))
    yield gradient("ViT, batch 8", vit(8))
    yield gradient("mixer, batch 32", mixer(32))
    yield gradient("unrolled LSTM, batch 32", lstm(32))
    yield gradient("unrolled LSTM, batch 256", lstm(256, 32))
    yield gradient("scanned cell, batch 256", recurrent(256))
    yield inference("U-Net, batch 4", unet(4))
    yield inference("inception, batch 1", inception(1))
    yield inference("inception, batch 32", inception(32))
    yield gradient("inception, batch 8", inception(8))
    yield inference("random-wired net, batch 1", random_wired(1, 32))
    yield inference("random-wired net, batch 32", random_wired(32))
    yield gradient("random-wired net, batch 8", random_wired(8))
    yield inference("graph net, batch 4", graph_net(4))
    yield gradient("graph net, batch 4", graph_net(4))
    yield adam("MLP, batch 2048", mlp(2048, 256))
    yield adam("ResNet, batch 32", resnet(32))
    yield adam("transformer, batch 8", transformer(8, 2))


def deep_transformer() -> Program:
    """24 layers: some 2,000 instructions."""
    return gradient("24-layer transformer, batch 4", transformer(4, 24))
