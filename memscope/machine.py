"""What the search assumes of a machine: how long it takes for what, and in what chunks it works well.

These are estimates that rank candidates. Nothing of them is shown as a fact: XLA confirms the bytes, a check the time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from .gpu.devices import DEVICES, Device
from .target import Target


@dataclasses.dataclass(frozen=True)
class Machine:
    """Rates in seconds, sizes in bytes.

    Attributes:
      elements: seconds per element of the result (or of the operand, where that is larger), by kind of op.
      top_k_row: of a row that `top_k` looks through, however short it is: dear where a loop joins many short chunks.
      flop, solve_flop: of matrix products and convolutions; of factorisations and triangular solves.
      fft: per element and halving of its axes; pool: per element of the result and of its window.
      eqn: of an op that is not fused, however small it is.
      caches: (size, seconds per byte) of arrays up to that size, the smallest cache first; larger ones: memory_byte.
      fresh_byte: first touch of new pages; a loop's iterations reuse theirs.
      packs: a dot copies its operands into panels before it multiplies, each for `packing_byte`.
      narrow_factor: how much longer a deep dot of few rows takes.
      reduce_window: a reduction over more elements reads a materialised operand.
      last_axis_factors: (length, factor): how much longer a fused reduction takes along a last axis of up to so many.
      sorts_top_k_from: `top_k` of more than so many sorts the whole operand.
      chunk_sizes: bytes of the largest array of one iteration: what the search chooses among.
      ranking_chunks: of these, which structures are ranked by.
      usual_chunk: the size that runs fastest most often.
      cached: bytes of an array up to which it stays close from one op to the next; larger chunks are worth crossing.
    """

    elements: Mapping[str, float]
    top_k_row: float
    flop: float
    solve_flop: float
    fft: float
    pool: float
    eqn: float
    caches: tuple[tuple[int, float], ...]
    memory_byte: float
    fresh_byte: float
    packs: bool
    packing_byte: float
    narrow_factor: float
    reduce_window: float
    last_axis_factors: tuple[tuple[float, float], ...]
    sorts_top_k_from: float
    chunk_sizes: tuple[int, ...]
    ranking_chunks: tuple[int, ...]
    usual_chunk: int
    cached: float

    def transfer(self, count: int) -> float:
        """Seconds to read or write an array of so many bytes."""
        for size, seconds in self.caches:
            if count <= size:
                return count * seconds
        return count * self.memory_byte


# Measured on two cores.
CPU = Machine(
    elements={
        "cheap": 2.5e-11,
        "expensive": 3e-10,
        "sort": 4e-8,
        "top_k": 1.2e-9,
        "gather": 2e-9,
        "scatter": 5e-9,
        "random": 2.7e-9,
        "threefry": 2.7e-9,
        "cum": 3.5e-9,
    },
    top_k_row=1.5e-6,
    flop=1 / 1.0e11,
    solve_flop=1 / 1.0e10,
    fft=2e-10,
    pool=4.5e-10,
    eqn=2e-6,
    caches=((2 << 20, 1 / 60e9), (24 << 20, 1 / 25e9)),
    memory_byte=1 / 7e9,
    fresh_byte=1 / 5e9,
    packs=True,
    packing_byte=1 / 12e9,
    narrow_factor=8.0,
    reduce_window=32,  # beyond it, XLA CPU makes reduce-windows of a reduction
    last_axis_factors=((8, 1.5), (math.inf, 3.0)),  # where XLA CPU vectorises badly
    sorts_top_k_from=math.inf,
    chunk_sizes=tuple(1 << bits for bits in (12, 14, 16, 18, 20, 21, 22, 24, 26)),
    ranking_chunks=(2 << 20, 16 << 20),
    usual_chunk=1 << 20,
    cached=2 << 20,
)

LAUNCH_SECONDS = 4e-6
"""From one kernel's end to the next one's: what a loop of many short kernels costs on a GPU."""

EFFICIENCY, MATMUL_EFFICIENCY, SOLVE_EFFICIENCY = 0.8, 0.5, 0.02
"""Of the rates in a data sheet that programs reach: of the bandwidth, of matrix products, of factorisations."""

L2_SPEEDUP = 2.5
"""How much faster than its memory a GPU's L2 cache answers."""

HASH_OPERATIONS = 100
"""Of threefry, an element: twenty rounds of an addition, a rotation and an exclusive or."""

EXPENSIVE_OPERATIONS, SORT_PASSES, TOP_K_PASSES, SCATTER_BYTES = 16, 40, 4, 32
"""Of an element: of a function such as exp; times that a sort and a top-k read it; of an atomic update."""

WAVES = 16
"""How many times over a chunk should fill the GPU's threads, so that the last, partly filled time does not count."""


def gpu_machine(device: Device) -> Machine:
    """The machine that a GPU's data sheet describes.

    A kernel takes what its traffic or its arithmetic does, whichever is more, and a launch. Chunks fill all threads
    `WAVES` times over, or more: on a GPU small ones leave most of it idle.
    """
    byte = 1 / (EFFICIENCY * device.bandwidth)
    operation = 1 / (EFFICIENCY * device.flops)
    usual = 1 << round(math.log2(4 * WAVES * device.threads))
    return Machine(
        elements={
            "cheap": operation,
            "expensive": EXPENSIVE_OPERATIONS * operation,
            "sort": 8 * SORT_PASSES * byte,
            "top_k": 4 * TOP_K_PASSES * byte,
            "gather": 32 * byte,  # a sector of memory for each element
            "scatter": SCATTER_BYTES * byte,
            "random": HASH_OPERATIONS * operation,
            "threefry": HASH_OPERATIONS * operation,
            "cum": 4 * 4 * byte,
        },
        top_k_row=0.0,
        flop=1 / (MATMUL_EFFICIENCY * device.matmul_flops),
        solve_flop=1 / (SOLVE_EFFICIENCY * device.flops),
        fft=2 * operation,
        pool=operation,
        eqn=LAUNCH_SECONDS,
        caches=((device.l2_bytes // 2, byte / L2_SPEEDUP),),
        memory_byte=byte,
        fresh_byte=0.0,
        packs=False,
        packing_byte=0.0,
        narrow_factor=1.0,
        reduce_window=math.inf,
        last_axis_factors=((math.inf, 1.0),),
        sorts_top_k_from=16,
        chunk_sizes=tuple(1 << bits for bits in (12, 16, 18, 20, 22, 24, 25, 26, 28, 30, 32)),
        ranking_chunks=(usual, 4 * usual),
        usual_chunk=usual,
        cached=math.inf,
    )


def machine_of(target: Target) -> Machine:
    """What is assumed of a target. One that is attached and of no known model is taken for the first of the table."""
    if target.platform == "cpu":
        return CPU
    return gpu_machine(target.device or next(iter(DEVICES.values())))
