"""Each rule against the primitive itself: streamed along every axis the rule frees, in odd chunks, nothing changes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex_core
from jax.extend.random import threefry2x32_p

from memscope.axes.factor import shape_of
from memscope.axes.table import FACTORS, WHY_BLOCKED
from memscope.program import Program
from memscope.stream import Closure, rewrite
from memscope.stream.reductions import Form
from memscope.trace import trace

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def ints(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, size=shape).astype(np.int32)


def spd(batch: int, n: int) -> np.ndarray:
    a = floats(batch, n, n)
    return a @ a.transpose(0, 2, 1) + n * np.eye(n, dtype=np.float32)


def gather_rows(table: Any, rows: Any) -> Any:
    return table[rows]


def scatter_rows(table: Any, rows: Any, updates: Any) -> Any:
    return table.at[rows].add(updates)


WHOLE = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])

# name: (function, arguments, {operand: axes that must be streamable})
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[int, set[int]]]] = {
    "elementwise": (lambda x, y: jnp.where(x > y, jnp.exp(x), y), (floats(7, 5), floats(7, 5)), {0: {0, 1}, 1: {0, 1}}),
    "elementwise_size_1": (lambda x, y: x * y, (floats(7, 5), floats(1, 5)), {0: {0, 1}, 1: {1}}),
    "clamp": (lambda x: lax.clamp(0.0, x, 1.0), (floats(6, 3),), {0: {0, 1}}),
    "broadcast": (lambda x: jnp.broadcast_to(x[:, None, :], (6, 4, 3)) * 2, (floats(6, 3),), {0: {0, 1}}),
    "stretch": (lambda x: jnp.broadcast_to(x, (5, 3)), (floats(1, 3),), {0: {1}}),
    "transpose": (lambda x: jnp.transpose(x, (2, 0, 1)), (floats(4, 5, 6),), {0: {0, 1, 2}}),
    "squeeze": (lambda x: lax.squeeze(x, (1,)), (floats(6, 1, 3),), {0: {0, 2}}),
    "expand": (lambda x: lax.expand_dims(x, (1,)), (floats(6, 3),), {0: {0, 1}}),
    "merge": (lambda x: x.reshape(20, 3), (floats(5, 4, 3),), {0: {0, 2}}),
    "split_axis": (lambda x: x.reshape(5, 4, 3), (floats(20, 3),), {0: {0, 1}}),
    "regroup": (lambda x: x.reshape(2, 12), (floats(4, 6),), {0: {0}}),
    "regroup_sixes": (lambda x: x.reshape(4, 9, 2) * 2, (floats(6, 3, 4),), {0: {0}}),
    "reduce_sum": (lambda x: jnp.sum(x, axis=(0, 2)), (floats(5, 4, 3),), {0: {0, 1, 2}}),
    "reduce_prod": (lambda x: jnp.prod(x, axis=1), (floats(5, 4),), {0: {0, 1}}),
    "reduce_max": (lambda x: jnp.max(x, axis=0), (floats(7, 4),), {0: {0, 1}}),
    "reduce_min_int": (lambda x: jnp.min(x, axis=0), (ints(50, 7, 4),), {0: {0, 1}}),
    "reduce_and": (lambda x: jnp.all(x > 0, axis=1), (floats(7, 4),), {0: {0, 1}}),
    "reduce_or": (lambda x: jnp.any(x > 2, axis=0), (floats(7, 4),), {0: {0, 1}}),
    "reduce_xor": (lambda x: lax.reduce_xor(x, (0,)), (ints(99, 7, 4),), {0: {0, 1}}),
    "argmax": (lambda x: jnp.argmax(x, axis=0), (ints(3, 9, 4),), {0: {0, 1}}),
    "argmin": (lambda x: jnp.argmin(x, axis=1), (ints(3, 5, 9),), {0: {0, 1}}),
    "dot": (lambda x, y: x @ y, (floats(7, 5), floats(5, 6)), {0: {0, 1}, 1: {0, 1}}),
    "dot_batched": (
        lambda x, y: jnp.einsum("bnk,bmk->bnm", x, y),
        (floats(3, 7, 5), floats(3, 4, 5)),
        {0: {0, 1, 2}, 1: {0, 1, 2}},
    ),
    "dot_int8": (
        lambda x, y: lax.dot(x.astype(jnp.int8), y.astype(jnp.int8), preferred_element_type=jnp.int32),
        (ints(9, 6, 7), ints(9, 7, 3)),
        {0: {0, 1}},
    ),
    "sort": (lambda x: jnp.sort(x, axis=1), (floats(6, 9),), {0: {0}}),
    "argsort": (lambda x: jnp.argsort(x, axis=0), (floats(9, 6),), {0: {1}}),
    "top_k": (lambda x: lax.top_k(x, 3), (floats(7, 9),), {0: {0, 1}}),
    "cummax_complex": (lambda x: lax.cummax(x + 1j, axis=0), (floats(7, 3),), {0: {1}}),
    "max_float8": (
        lambda x: jnp.max(x.astype(jnp.float8_e4m3fn), 0).astype(jnp.float32),
        (floats(9, 4),),
        {0: {1}},
    ),
    "argmax_unsigned": (lambda x: lax.argmax(-jnp.abs(x) - 1, 0, jnp.uint32), (floats(11, 3),), {0: {0, 1}}),
    "gather_narrow": (
        lambda t, i: lax.gather(t, i[:, None], lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 2), mode="clip"),
        (floats(300, 2), np.arange(0, 250, 7).astype(np.uint8)),
        {0: {0, 1}},
    ),
    "scatter_narrow": (
        lambda t, i, u: lax.scatter_add(t, i[:, None], u, lax.ScatterDimensionNumbers((1,), (0,), (0,)), mode="drop"),
        (floats(300, 2), np.arange(0, 120, 7).astype(np.int8), floats(18, 2)),
        {0: {0, 1}},
    ),
    "pooling_bools": (
        lambda x: lax.reduce_window(x > 0, False, lax.max, (3,), (1,), "SAME"),
        (floats(17),),
        {0: {0}},
    ),
    "top_k_ties": (lambda x: lax.top_k(x, 4), (ints(3, 5, 23),), {0: {0, 1}}),
    "top_k_of_nothing_finite": (
        lambda x: lax.top_k(jnp.where(x > 0, -jnp.inf, jnp.nan), 4),
        (floats(3, 17),),
        {0: {0, 1}},
    ),
    "cumsum": (lambda x: jnp.cumsum(x, axis=1), (floats(7, 9),), {0: {0}}),
    "cumprod_reverse": (lambda x: lax.cumprod(x, 0, reverse=True), (floats(5, 7),), {0: {1}}),
    "slice": (lambda x: x[:, 1:4], (floats(7, 6),), {0: {0, 1}}),
    "strided_slice": (lambda x: x[1::3] * 2, (floats(11, 6),), {0: {0, 1}}),
    "pad": (lambda x: jnp.pad(x, ((0, 0), (1, 2))), (floats(7, 4),), {0: {0, 1}}),
    "pad_with_value": (lambda x: lax.pad(x, jnp.float32(7), ((2, 3, 0), (0, 1, 2))), (floats(5, 4),), {0: {0}}),
    "pad_that_cuts": (lambda x: lax.pad(x, jnp.float32(0), ((-2, 3, 0), (0, -1, 0))), (floats(7, 4),), {0: {0, 1}}),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], 1), (floats(7, 4), floats(7, 2)), {0: {0, 1}, 1: {0, 1}}),
    "concatenate_three": (
        lambda x, y: jnp.cumsum(jnp.concatenate([x, y, 2 * x], 0), 1).sum(0),
        (floats(5, 3), floats(2, 3)),
        {0: {0}, 1: {0}},
    ),
    "roll": (lambda x: jnp.roll(x, 3, 0) * x, (floats(11, 4),), {0: {0, 1}}),
    "differences": (lambda x: (x[1:] - x[:-1]) ** 2, (floats(12, 3),), {0: {0, 1}}),
    "haloed_sum": (lambda x: jnp.sum(jnp.pad(x, ((1, 1), (0, 0)))[2:] * x), (floats(13, 3),), {0: {0, 1}}),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.int32), (floats(7, 5),), {0: {0, 1}}),
    "bitcast_narrow": (lambda x: lax.bitcast_convert_type(x, jnp.uint8), (floats(7, 5),), {0: {0, 1}}),
    "random_scaled": (lambda x: x * jax.random.normal(jax.random.key(3), (7, 5)), (floats(7, 5),), {0: {0, 1}}),
    "random_many_keys": (
        lambda x: x * jax.vmap(lambda k: jax.random.uniform(k, (5,)))(jax.random.split(jax.random.key(3), 7)),
        (floats(7, 5),),
        {0: {0, 1}},
    ),
    "random_bits_8": (
        lambda x: x + jax.random.bits(jax.random.key(3), (7, 5), "uint8"),
        (ints(9, 7, 5),),
        {0: {0, 1}},
    ),
    "stack": (lambda x, y: jnp.stack([x, y], 1), (floats(7, 4), floats(7, 4)), {0: {0, 1}}),
    "split": (lambda x: jnp.split(x, [2, 3], axis=1)[1:], (floats(7, 6),), {0: {0}}),
    "rev": (lambda x: jnp.flip(x, 0), (floats(7, 6),), {0: {1}}),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (0, i), (7, 3)), (floats(7, 6), np.int32(2)), {0: {0}}),
    "static_slice": (lambda x: lax.dynamic_slice_in_dim(x, 2, 3, axis=1), (floats(7, 6),), {0: {0, 1}}),
    "dynamic_update_slice": (
        lambda x, u: lax.dynamic_update_slice_in_dim(x, u, 1, axis=1),
        (floats(7, 6), floats(7, 2)),
        {0: {0}, 1: {0}},
    ),
    "gather_rows": (gather_rows, (floats(9, 4), ints(9, 13)), {0: {0, 1}, 1: {0}}),
    "gather_entries": (lambda t, i, j: t[i, j], (floats(9, 8), ints(9, 13), ints(8, 13)), {0: {0, 1}, 1: {0}}),
    "gather_outside": (
        lambda t, i: jnp.concatenate([t.at[i].get(mode=m, fill_value=7) for m in ("fill", "clip")]),
        (floats(9, 4), ints(13, 20)),
        {0: {0}},
    ),
    "gather_outside_nan": (lambda t, i: t.at[i].get(mode="fill"), (floats(9, 4), ints(13, 20)), {0: {0}}),
    "gather_slices": (
        lambda t, i: jax.vmap(lambda k: lax.dynamic_slice(t, (0, k), (9, 3)))(i),
        (floats(9, 8), ints(9, 13)),
        {0: {0}, 1: {0}},
    ),
    **{
        f"gather_whole_{mode}": (
            lambda t, i, mode=mode: lax.gather(
                t, i[:, None] - 1, lax.GatherDimensionNumbers((1, 2), (), (0,)), (9, 3), mode=mode
            ),
            (floats(9, 3), ints(3, 13)),
            {0: {0, 1}, 1: {0}},
        )
        for mode in ("clip", "fill")
    },
    **{
        f"scatter_whole_{mode}": (
            lambda t, i, u, mode=mode: lax.scatter_add(
                t, i[:, None] - 1, u, lax.ScatterDimensionNumbers((1, 2), (), (0,)), mode=mode
            ),
            (floats(9, 3), ints(3, 13), floats(13, 9, 3)),
            {0: {0, 1}, 1: {0}, 2: {0, 1, 2}},
        )
        for mode in ("clip", "drop")
    },
    "gather_batched": (
        lambda x, i: jnp.take_along_axis(x, i, axis=1),
        (floats(8, 6), ints(6, 8, 3)),
        {0: {0}, 1: {0, 1}},
    ),
    "diagonal": (jnp.diagonal, (floats(9, 9),), {0: {0}}),
    "trace": (lambda x: jnp.trace(x) * x[0], (floats(9, 9),), {0: {0}}),
    "own_entry": (lambda x: x[jnp.arange(9), 8 - jnp.arange(9)], (floats(9, 9),), {0: {0}}),
    "scatter_add": (scatter_rows, (floats(9, 4), ints(9, 13), floats(13, 4)), {1: {0}, 2: {0, 1}, 0: {0, 1}}),
    "scatter_outside": (scatter_rows, (floats(9, 4), ints(19, 13) - 5, floats(13, 4)), {0: {0, 1}}),
    "scatter_into_squares": (lambda t, i, u: t.at[i].add(u) ** 2, (floats(9, 4), ints(9, 13), floats(13, 4)), {0: {0}}),
    "scatter_window": (
        lambda t, i, u: jnp.roll(t.at[i].max(u), 2, 0)[1:6] * 2,
        (floats(9, 4), ints(9, 13), floats(13, 4)),
        {0: {0}},
    ),
    "scatter_max": (lambda t, i, u: t.at[i].max(u), (floats(9, 4), ints(9, 13), floats(13, 4)), {1: {0}, 2: {0, 1}}),
    "scatter_set": (
        lambda t, i, u: t.at[i].set(u),
        (floats(20, 4), np.arange(13)[::-1].copy(), floats(13, 4)),
        {2: {1}},
    ),
    "triangular_solve_left": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        (spd(1, 4)[0], floats(4, 7)),
        {1: {1}},
    ),
    "triangular_solve_right": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=False, lower=True),
        (spd(1, 4)[0], floats(7, 4)),
        {1: {0}},
    ),
    "cholesky": (jnp.linalg.cholesky, (spd(5, 3),), {0: {0}}),
    "eigvalsh": (jnp.linalg.eigvalsh, (spd(5, 3),), {0: {0}}),
    "inverse": (jnp.linalg.inv, (spd(5, 3),), {0: {0}}),
    "iota": (lambda x: x + lax.broadcasted_iota(jnp.float32, (7, 5), 0), (floats(7, 5),), {0: {0, 1}}),
    "eye": (lambda x: jnp.where(jnp.eye(7, dtype=bool), x, 0).sum(1), (floats(7, 7),), {0: {0, 1}}),
    "stop_gradient": (lambda x: lax.stop_gradient(x) + 1, (floats(7, 5),), {0: {0, 1}}),
    "barrier": (lambda x: lax.optimization_barrier(x) + 1, (floats(7, 5),), {0: {0, 1}}),
    "convolution": (
        lambda x, k: lax.conv_general_dilated(x, k, (2, 1), "SAME"),
        (floats(5, 3, 6, 5), floats(4, 3, 3, 2)),
        {0: {0, 1}, 1: {0, 1}},
    ),
    "convolution_halves": (
        lambda x, k: lax.conv_general_dilated(
            x.astype(jnp.bfloat16), k, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        ).astype(jnp.float32),
        (ints(4, 3, 6, 5), np.ones((2, 5, 3), jnp.bfloat16)),
        {0: {0, 2}, 1: {1, 2}},
    ),
    "convolution_by_feature": (
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", feature_group_count=3),
        (floats(2, 6, 5), floats(9, 2, 3)),
        {0: {0, 1}, 1: {0}},
    ),
    "convolution_by_batch": (
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", batch_group_count=3),
        (floats(6, 2, 5), floats(9, 2, 3)),
        {0: {0, 1}, 1: {0, 1}},
    ),
    "patches": (
        lambda x, k: lax.conv_general_dilated(x, k, (3, 2), "VALID"),
        (floats(2, 3, 10, 6), floats(4, 3, 3, 1)),
        {0: {0, 1, 2, 3}, 1: {0, 1}},
    ),
    "patches_gradient": (
        jax.grad(lambda x, k: jnp.sum(lax.conv_general_dilated(x, k, (3,), "VALID") ** 2), (0, 1)),
        (floats(2, 3, 15), floats(4, 3, 2)),
        {0: {0, 1, 2}, 1: {0, 1}},
    ),
    "convolution_gradient": (
        jax.grad(lambda x, k: jnp.sum(lax.conv_general_dilated(x, k, (2,), "SAME") ** 2), (0, 1)),
        (floats(3, 2, 9), floats(4, 2, 3)),
        {0: {0, 1}, 1: {0, 1}},
    ),
    "transposed_convolution": (
        lambda x, k: lax.conv_transpose(x, k, (3,), "VALID", dimension_numbers=("NCH", "OIH", "NCH")),
        (floats(2, 3, 5), floats(4, 3, 3)),
        {0: {0, 1, 2}, 1: {0, 1}},
    ),
    "fft": (lambda x: jnp.abs(jnp.fft.rfft2(x)), (floats(5, 3, 4, 6),), {0: {0, 1}}),
    "ifft": (lambda x: jnp.fft.ifft(x, axis=1), (floats(5, 4, 3) + 1j,), {0: {0, 2}}),
    "convolution_halo": (
        lambda x, k: lax.conv(jax.nn.relu(lax.conv(x, k, (1, 1), "SAME")), k, (1, 1), "VALID"),
        (floats(2, 2, 11, 7), floats(2, 2, 3, 3)),
        {0: {0, 2, 3}},
    ),
    "convolution_strided_halo": (
        lambda x, k: lax.conv_general_dilated(x, k, (2,), ((3, 1),), rhs_dilation=(2,)),
        (floats(2, 3, 21), floats(4, 3, 3)),
        {0: {0, 2}},
    ),
    "convolution_last_features": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (floats(2, 9, 6, 3), floats(3, 5, 3, 4)),
        {0: {0, 1, 2}},
    ),
    "pooling_halo": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3), (1, 2, 1), "SAME"),
        (floats(2, 11, 7),),
        {0: {0, 1, 2}},
    ),
    "pooling_means": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 5), (1, 1), ((0, 0), (2, 2))) * x,
        (floats(3, 19),),
        {0: {0, 1}},
    ),
    "pooling_ints": (
        lambda x: lax.reduce_window(x, np.int32(2**31 - 1), lax.min, (4,), (3,), ((1, 3),)),
        (ints(90, 29),),
        {0: {0}},
    ),
    "pooling": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 3), (1, 2, 2), ((0, 0), (0, 0), (1, 1))),
        (floats(5, 7, 6),),
        {0: {0, 1}},
    ),
    "pooling_sum": (
        lambda x: lax.reduce_window(x, 0, lax.add, (1, 2), (1, 3), "VALID"),
        (ints(9, 5, 11),),
        {0: {0, 1}},
    ),
    "pooling_variadic": (
        lambda x, y: lax.reduce_window(
            (x, y), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1, 2), (1, 2), "VALID"
        ),
        (floats(5, 6), floats(5, 6)),
        {0: {0, 1}, 1: {0, 1}},
    ),
    "pooling_gradient": (
        jax.grad(lambda x: jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID") ** 2)),
        (floats(5, 6),),
        {0: {0, 1}},
    ),
    "pooling_tangent": (
        lambda x, t: jax.jvp(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"), (x,), (t,))[1],
        (floats(5, 6), floats(5, 6)),
        {0: {0, 1}, 1: {0, 1}},
    ),
    "sort_pairs": (
        lambda x, y: lax.sort((x, y), dimension=1, num_keys=2),
        (ints(3, 5, 7), floats(5, 7)),
        {0: {0}, 1: {0}},
    ),
    "approx_top_k": (lambda x: lax.approx_max_k(x, 3, reduction_dimension=0), (floats(9, 5),), {0: {1}}),
    "cumulative": (
        lambda x: (lax.cummax(x, 1), lax.cummin(x, 1), lax.cumlogsumexp(x, 1)),
        (floats(5, 4),),
        {0: {0}},
    ),
    "tile": (lambda x: jnp.tile(x, (1, 3)) * 2, (floats(5, 4),), {0: {0}}),
    "tile_generated": (lambda x, y: lax.tile(x, (3, 1)) * y, (floats(2, 4), floats(6, 4)), {0: {1}, 1: {0, 1}}),
    "reduce_variadic": (
        lambda x, y: lax.reduce((x, y), (jnp.float32(0), jnp.int32(1)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)),
        (floats(5, 4), ints(3, 5, 4)),
        {0: {0}, 1: {0}},
    ),
    "scatter_sub": (
        lambda t, i, u: t.at[i].subtract(u),
        (floats(9, 4), ints(9, 13), floats(13, 4)),
        {1: {0}, 2: {0, 1}, 0: {1}},
    ),
    "complex": (lambda x: jnp.conj(x * x).imag + jnp.abs(x), (floats(5, 3) + 1j,), {0: {0, 1}}),
    "halves": (lambda x: jnp.exp2(x) + jnp.tan(x), (floats(5, 3).astype(jnp.bfloat16),), {0: {0, 1}}),
    "bits": (
        lambda x: lax.population_count(x) + lax.clz(x) ^ (x << 2) | (x >> 1) & ~x % 3,
        (ints(99, 7, 5),),
        {0: {0, 1}},
    ),
    "special": (
        lambda x, y: lax.nextafter(x, y) + lax.erf_inv(jnp.tanh(x)) + lax.bessel_i0e(y),
        (floats(5, 3), floats(5, 3)),
        {0: {0, 1}, 1: {0, 1}},
    ),
    "bool": (lambda x: ~(x > 0) ^ (x < 1) & jnp.isfinite(x), (floats(5, 3),), {0: {0, 1}}),
    "checkpoint_name": (lambda x: checkpoint_name(x, "x") + 1, (floats(5, 3),), {0: {0, 1}}),
    "unsharded": (lambda x: lax.with_sharding_constraint(x, WHOLE) + 1, (floats(5, 3),), {0: {0, 1}}),
    "device_put": (lambda x: jnp.sin(jax.device_put(x)) + 1, (floats(5, 3),), {0: {0, 1}}),
    "random_many_keys_of_another_generator": (
        lambda x: (
            x * jax.vmap(lambda k: jax.random.uniform(k, (5,)))(jax.random.split(jax.random.key(3, impl="rbg"), 7))
        ),
        (floats(7, 5),),
        {0: {1}},
    ),
    "keys_from_seeds": (
        lambda x: jax.random.key_data(jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), s))(x)),
        (ints(99, 7),),
        {0: {0}},
    ),
    "keys_split": (
        lambda x: (
            x * jax.vmap(jax.random.uniform)(jax.random.split(jax.random.split(jax.random.key(3))[1], (7, 5))[:, 0])
        ),
        (floats(7),),
        {0: {0}},
    ),
    "gamma": (
        lambda x: jax.vmap(lambda k, a: jax.random.gamma(k, a))(jax.random.split(jax.random.key(3), 5), 1 + x * x),
        (floats(5, 2),),
        {0: {0}},
    ),
    "threefry": (
        lambda x, y: threefry2x32_p.bind(
            x.astype(np.uint32), y.astype(np.uint32), y.astype(np.uint32), x.astype(np.uint32)
        ),
        (ints(9, 5, 3), ints(9, 5, 3)),
        {0: {0, 1}, 1: {0, 1}},
    ),
    "scaled_dot": (
        lambda x, y, s, t: lax.scaled_dot(
            *(v.astype(jnp.float8_e4m3fn) for v in (x, y)),
            lhs_scale=s.astype(jnp.float8_e8m0fnu),
            rhs_scale=t.astype(jnp.float8_e8m0fnu),
            dimension_numbers=(((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        ),
        (floats(5, 8), floats(6, 8), 1 + ints(3, 5, 4), 1 + ints(3, 6, 2)),
        {0: {0, 1}, 1: {0, 1}, 2: {0, 1}, 3: {0, 1}},
    ),
    "ragged_dot": (
        lambda x, y: lax.ragged_dot(x, y, jnp.array([2, 0, 4])),
        (floats(6, 5), floats(3, 5, 4)),
        {0: {1}, 1: {1, 2}},
    ),
    "ragged_dot_gradient": (
        jax.grad(lambda x, y: jnp.sum(lax.ragged_dot(x, y, jnp.array([2, 0, 4])) ** 2), (0, 1)),
        (floats(6, 5), floats(3, 5, 4)),
        {0: {1}, 1: {1, 2}},
    ),
    "factorisations": (
        lambda x: (jnp.linalg.qr(x)[1], lax.linalg.lu(x), jnp.linalg.svd(x)[1], lax.linalg.schur(x)[0]),
        (spd(5, 3),),
        {0: {0}},
    ),
    "tridiagonal_solve": (
        lambda d, b: lax.linalg.tridiagonal_solve(0.1 * d, 3 + d, 0.1 * d, b),
        (floats(5, 4), floats(5, 4, 3)),
        {0: {0}, 1: {0, 2}},
    ),
    "ormqr": (
        lambda a, c: lax.linalg.ormqr(a, 0.1 + a[..., 0], c),
        (floats(5, 3, 3), floats(5, 3, 4)),
        {0: {0}, 1: {0, 2}},
    ),
    "symmetric_product": (
        lambda a, c: lax.linalg.symmetric_product(a, c, beta=1.0),
        (floats(5, 3, 4), floats(5, 3, 3)),
        {0: {0}, 1: {0}},
    ),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 3), (floats(7, 5),), {0: {0, 1}}),
}


def prepared(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Program, list[Any]]:
    """The program of `fn` behind one op an operand, so that each operand is an intermediate to stream."""

    def run(*args: Any) -> Any:
        return fn(*(lax.mul(a, jnp.ones((), a.dtype)) for a in args))

    flat = [jnp.asarray(a) for a in args]
    return trace(run, flat), flat


def operand_vars(program: Program) -> list[Any]:
    return [program.eqns[program.consumers[v][0]].outvars[0] for v in program.jaxpr.invars]


SLOW = set(
    "convolution convolution_by_batch convolution_by_feature convolution_gradient convolution_halves factorisations "
    "gamma inverse keys_split ormqr patches patches_gradient pooling_gradient ragged_dot ragged_dot_gradient "
    "random_bits_8 random_many_keys random_many_keys_of_another_generator random_scaled scaled_dot symmetric_product "
    "threefry transposed_convolution tridiagonal_solve".split()
)
"""What takes long to compile runs in chunks of 2 only, which leave a rest of 1 in most cases."""


@pytest.mark.parametrize(
    ("name", "chunk"), [(name, chunk) for name in CASES for chunk in (1, 2, 3, 100) if chunk == 2 or name not in SLOW]
)
def test_streaming_an_operand_changes_nothing(name: str, chunk: int) -> None:
    fn, args, free = CASES[name]
    program, flat = prepared(fn, args)
    want = jax.tree.leaves(jax.jit(fn)(*flat))
    closure = Closure(program)
    for operand, var in enumerate(operand_vars(program)):
        for axis in range(len(shape_of(var))):
            reach = closure.axes.reach((var, axis))
            streaming = closure.build(reach, reach)
            streamed_so = var in streaming.streamed and any(
                window is not None and window.axis == axis
                for loop in streaming.loops
                for task in loop.body
                for v, window in task.results(program)
                if v is var
            )
            assert streamed_so or axis not in free.get(operand, ()), f"operand {operand}, axis {axis} was not streamed"
            got = jax.jit(rewrite(streaming, {loop: min(chunk, loop.steps) for loop in streaming.loops}))(*flat)
            for w, g in zip(want, got, strict=True):
                assert w.dtype == g.dtype
                np.testing.assert_allclose(w, g, rtol=2e-5, atol=2e-5)


NEITHER = (
    "jit call closed_call remat2 custom_jvp_call custom_vjp_call custom_lin custom_linear_solve "  # inlined
    "scan while cond "  # have bodies of their own
    "after_all create_token dce_sink stage empty2 select_and_scatter"  # hold no rows, or no public function makes them
).split()


def test_every_public_primitive_has_a_rule_or_a_reason() -> None:
    modules = (jex_core.primitives, lax, lax.linalg)
    public = {p.name for module in modules for p in vars(module).values() if isinstance(p, jex_core.Primitive)}
    assert len(public) > 150
    assert public - FACTORS.keys() - WHY_BLOCKED.keys() <= set(NEITHER)


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize("chunk", [1, 2, 4])
@pytest.mark.parametrize("fn", [jnp.argmax, jnp.argmin, jnp.max, jnp.min, jnp.sum], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "column",
    [
        [1.0, 3.0, 3.0, 0.0, 0.0, 3.0],
        [1.0, NAN, 3.0, NAN, 0.0, 3.0],
        [-INF, -INF, -INF, -INF, -INF, -INF],
        [INF, INF, INF, 1.0, INF, INF],
        [NAN, NAN, NAN, NAN, NAN, NAN],
    ],
)
def test_folds_resolve_ties_and_nan_as_xla_does(column: list[float], fn: Any, chunk: int) -> None:
    x = np.asarray(column, np.float32)[:, None] * np.ones((1, 3), np.float32)
    program, flat = prepared(functools.partial(fn, axis=0), (x,))
    closure = Closure(program)
    reach = closure.axes.reach((operand_vars(program)[0], 0))
    streaming = closure.build(reach, reach)
    got = rewrite(streaming, dict.fromkeys(streaming.loops, chunk))(*flat)
    np.testing.assert_array_equal(got[0], fn(flat[0], axis=0))
    assert streaming.loops


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sums_of_halves_are_carried_in_float32(dtype: Any) -> None:
    x = jnp.ones((4096, 2), dtype)
    program, flat = prepared(lambda x: jnp.ones((1, 4096), dtype) @ x, (x,))
    closure = Closure(program)
    reach = closure.axes.reach((operand_vars(program)[0], 0))
    streaming = closure.build(reach, reach)
    (got,) = rewrite(streaming, dict.fromkeys(streaming.loops, 1))(*flat)
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got, np.float32), 4096.0)


REDUCTIONS = {
    "sum of squares": lambda d: jnp.sum(d**2, -1),
    "largest": lambda d: jnp.max(jnp.abs(d), -1),
    "smallest of a shifted": lambda d: jnp.min(3.0 * d + 1.0, -1),
    "product": lambda d: jnp.prod(1.0 + 0.01 * d, -1),
    "all": lambda d: jnp.all(d > -3.0, -1),
    "across the other axis": lambda d: jnp.sum(jnp.exp(d), 1),
}


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("features", [1, 2, 8, 32, 33, 40, 101])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_are_the_same_in_every_form(name: str, features: int, form: Form) -> None:
    def fn(x: Any, y: Any) -> Any:
        return REDUCTIONS[name](x[:, None] - 2.0 * y[None])

    flat = [jnp.asarray(floats(11, features)), jnp.asarray(floats(13, features))]
    program = trace(fn, flat)
    closure = Closure(program)
    for axis in (0, 1, 2):
        seed = next(v for eqn in program.eqns for v in eqn.outvars if shape_of(v) == (11, 13, features))
        reach = closure.axes.reach((seed, axis))
        streaming = closure.build(reach, reach)
        (got,) = rewrite(streaming, {loop: min(4, loop.steps) for loop in streaming.loops}, form)(*flat)
        np.testing.assert_allclose(got, fn(*flat), rtol=2e-5, atol=2e-5)
