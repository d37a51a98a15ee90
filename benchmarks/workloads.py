"""The workloads of the eXLA paper ("Memory Safe Computations with XLA Compiler", arXiv 2206.14148), as one would
write them without a thought for memory.

Sizes at scale 1 are for a machine of 8 GB: 0.4 to 1.7 GB of temporaries in the reference build where a user's own
form allows. `scale` shrinks the long axes; those that stay are the ones that nobody would split.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.scipy.linalg import solve_triangular

CASES = Path(__file__).resolve().parent.parent / "tests" / "cases"

Args = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Workload:
    """A function and its arguments at any scale; `scale` is the one to run it at."""

    name: str
    fn: Callable[..., Any]
    make_args: Callable[[float], Args]
    scale: float = 1.0

    def args(self) -> Args:
        return self.make_args(self.scale)


def size(full: int, scale: float, least: int = 16) -> int:
    return max(least, round(full * scale))


# Kernel product: squared exponential, the inner step of every iterative Gaussian process.


def squared_distances(x: Array, y: Array) -> Array:
    return jnp.sum(x * x, 1)[:, None] + jnp.sum(y * y, 1)[None] - 2.0 * x @ y.T


def kernel_product(x: Array, y: Array, v: Array, lengthscale: Array) -> Array:
    """(n, d), (m, d), (m,) -> (n,): the (n, m) kernel is built to be multiplied by one vector."""
    return jnp.exp(-0.5 * jnp.maximum(squared_distances(x, y), 0.0) / lengthscale**2) @ v


def kernel_product_args(scale: float) -> Args:
    n = size(16_000, scale)  # 1.0 GB for each array of n x n
    k = random.split(random.key(1), 3)
    return random.normal(k[0], (n, 8)), random.normal(k[1], (n, 8)), random.normal(k[2], (n,)), jnp.float32(1.5)


# k nearest neighbours: all distances, then the ten smallest of each row.

NEIGHBOURS = 10


def nearest(distances: Array) -> tuple[Array, Array]:
    negated, index = lax.top_k(-distances, NEIGHBOURS)
    return -negated, index


def knn_l2_direct(q: Array, x: Array) -> tuple[Array, Array]:
    """Differences first: exact, and d times the memory if nothing is fused."""
    return nearest(jnp.sqrt(jnp.sum((q[:, None, :] - x[None, :, :]) ** 2, -1)))


def knn_l2_expanded(q: Array, x: Array) -> tuple[Array, Array]:
    """By one matrix product."""
    return nearest(jnp.sqrt(jnp.maximum(squared_distances(q, x), 0.0)))


def knn_l1(q: Array, x: Array) -> tuple[Array, Array]:
    return nearest(jnp.sum(jnp.abs(q[:, None, :] - x[None, :, :]), -1))


def knn_cosine(q: Array, x: Array) -> tuple[Array, Array]:
    q = q / jnp.linalg.norm(q, axis=1, keepdims=True)
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    return nearest(1.0 - q @ x.T)


def knn_direct_args(scale: float) -> Args:
    # d is at most 32, beyond which the reference build materialises the reduction (DESIGN.md, fact 1).
    return knn_args(size(4_000, scale), size(20_000, scale), 16)


def knn_matmul_args(scale: float) -> Args:
    return knn_args(size(4_000, scale), size(40_000, scale), 64)  # 0.64 GB of distances


def knn_args(queries: int, points: int, d: int) -> Args:
    k = random.split(random.key(2), 2)
    return random.normal(k[0], (queries, d)), random.normal(k[1], (points, d))


# Sparse Gaussian process regression: Titsias' collapsed bound, and its gradient.


def squared_exponential(x: Array, y: Array, lengthscale: Array) -> Array:
    return jnp.exp(-0.5 * jnp.maximum(squared_distances(x, y), 0.0) / lengthscale**2)


def sgpr_bound(x: Array, y: Array, z: Array, lengthscale: Array, noise: Array) -> Array:
    """(n, d), (n,), (m, d) -> (): several (m, n) arrays for a result of one number."""
    n, m = x.shape[0], z.shape[0]
    # The jitter is as large as float32 needs for a Cholesky of 128 close inducing points.
    chol = jnp.linalg.cholesky(squared_exponential(z, z, lengthscale) + 1e-2 * jnp.eye(m))
    a = solve_triangular(chol, squared_exponential(z, x, lengthscale), lower=True) / noise
    chol_b = jnp.linalg.cholesky(jnp.eye(m) + a @ a.T)
    c = solve_triangular(chol_b, a @ y, lower=True) / noise
    log_det = jnp.sum(jnp.log(jnp.diagonal(chol_b))) + n * jnp.log(noise)
    fit = 0.5 * (jnp.sum(y * y) / noise**2 - c @ c)
    trace = 0.5 * (n / noise**2 - jnp.sum(a * a))
    return -(log_det + fit + trace) / n


def sgpr_gradient(x: Array, y: Array, z: Array, lengthscale: Array, noise: Array) -> Any:
    """In inducing points and hyperparameters: the backward pass keeps what the forward one could drop."""
    return jax.value_and_grad(sgpr_bound, argnums=(2, 3, 4))(x, y, z, lengthscale, noise)


def sgpr_args(scale: float) -> Args:
    n, m = size(400_000, scale), 128  # 0.2 GB for each array of m x n
    k = random.split(random.key(3), 3)
    x = random.uniform(k[0], (n, 8))
    y = jnp.sin(3.0 * x[:, 0]) + 0.1 * random.normal(k[1], (n,))
    return x, y, random.uniform(k[2], (m, 8)), jnp.float32(0.7), jnp.float32(0.3)


# Attention: softmax over all pairs of positions, and its gradient.


def attention(q: Array, k: Array, v: Array) -> Array:
    """(heads, n, d) each -> (heads, n, d)."""
    scores = jnp.einsum("hid,hjd->hij", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    return jnp.einsum("hij,hjd->hid", jax.nn.softmax(scores, axis=-1), v)


def attention_gradient(q: Array, k: Array, v: Array) -> Any:
    return jax.grad(lambda *args: jnp.sum(attention(*args) ** 2), argnums=(0, 1, 2))(q, k, v)


def attention_args(scale: float) -> Args:
    n = size(4_000, scale)  # 0.26 GB for each array of 4 x n x n
    return tuple(random.normal(key, (4, n, 64)) for key in random.split(random.key(4), 3))


PAPER = (
    Workload("kernel product", kernel_product, kernel_product_args),
    Workload("knn L2 direct", knn_l2_direct, knn_direct_args),
    Workload("knn L2 expanded", knn_l2_expanded, knn_matmul_args),
    Workload("knn L1", knn_l1, knn_direct_args),
    Workload("knn cosine", knn_cosine, knn_matmul_args),
    Workload("sgpr bound", sgpr_bound, sgpr_args),
    Workload("sgpr gradient", sgpr_gradient, sgpr_args),
    Workload("attention", attention, attention_args),
    Workload("attention gradient", attention_gradient, attention_args),
)


def load_case(text: str) -> Workload:
    """A case by path or by number, or one of `PAPER` by name, with its scale after a colon: "023:0.5".

    Raises:
      FileNotFoundError: there is no such case.
    """
    where, _, scale = text.partition(":")
    for workload in PAPER:
        if workload.name == where:
            return dataclasses.replace(workload, scale=float(scale or 1))
    path = Path(where) if where.endswith(".py") else next(CASES.glob(f"case_{where}*.py"), CASES / f"case_{where}.py")
    if not path.exists():
        raise FileNotFoundError(f"no case {where!r}: give a path, or a number of one in {CASES}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Workload(path.stem.removeprefix("case_"), module.fn, module.make_args, float(scale or 1))
