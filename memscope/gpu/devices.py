"""Facts about GPUs, from which XLA compiles for them and a plan's time is estimated.

Sizes are in bytes, rates in bytes or operations a second. Sources: [D] the vendor's data sheet or architecture
white paper of that GPU; [G] "Compute Capabilities" in the CUDA C++ Programming Guide; [X] what the driver reports
of such a GPU, as in the target configurations that XLA's own tests compile for (openxla/xla,
xla/backends/gpu/target_config/specs); [R] what the driver reports of it in public logs of frameworks.
"""

from __future__ import annotations

import dataclasses

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclasses.dataclass(frozen=True)
class Limits:
    """What every GPU of one compute capability shares, a core being a streaming multiprocessor.

    Attributes:
      threads: resident threads of a core.
      shared_bytes: shared memory of a core.
      block_shared_bytes: of which one block may ask for.
      lanes: float32 units of a core.
    """

    threads: int
    shared_bytes: int
    block_shared_bytes: int
    lanes: int


# [G], and [D] for the lanes. The limits that all of these have in common stand in `target_config`.
LIMITS: dict[tuple[int, int], Limits] = {
    (7, 5): Limits(1024, 64 * KIB, 64 * KIB, 64),
    (8, 0): Limits(2048, 164 * KIB, 163 * KIB, 64),
    (8, 6): Limits(1536, 100 * KIB, 99 * KIB, 128),
    (8, 9): Limits(1536, 100 * KIB, 99 * KIB, 128),
    (9, 0): Limits(2048, 228 * KIB, 227 * KIB, 128),
    (10, 0): Limits(2048, 228 * KIB, 227 * KIB, 128),
}


@dataclasses.dataclass(frozen=True)
class Device:
    """One model of GPU.

    Attributes:
      model: as the driver names it.
      memory_bytes: what the driver leaves of its memory.
      bandwidth: of its memory, in bytes a second.
      cores: streaming multiprocessors.
      clock_ghz: highest clock.
      l2_bytes: of its L2 cache.
      capability: compute capability, major and minor.
      matmul_flops: float32 matrix products by default precision, operations a second: TF32 where it has that.
    """

    model: str
    memory_bytes: int
    bandwidth: float
    cores: int
    clock_ghz: float
    l2_bytes: int
    capability: tuple[int, int]
    matmul_flops: float

    @property
    def limits(self) -> Limits:
        return LIMITS[self.capability]

    @property
    def flops(self) -> float:
        """Float32 operations a second outside matrix products: a fused multiply-add on each lane counts as two."""
        return 2e9 * self.clock_ghz * self.cores * self.limits.lanes

    @property
    def threads(self) -> int:
        """Threads that are resident at once."""
        return self.cores * self.limits.threads


DEVICES: dict[str, Device] = {
    # [X]; matmul [D] "NVIDIA A100 Tensor Core GPU": 156 TFLOPS TF32 without sparsity.
    "a100-40gb": Device("NVIDIA A100-SXM4-40GB", 42_331_013_120, 1.5552e12, 108, 1.41, 40 * MIB, (8, 0), 156e12),
    "a100-80gb": Device("NVIDIA A100-SXM4-80GB", 85_100_068_864, 2.03904e12, 108, 1.41, 40 * MIB, (8, 0), 156e12),
    # [X]; matmul [D] "NVIDIA RTX A6000": 154.8 TFLOPS TF32 with sparsity, half of it without.
    "a6000": Device("NVIDIA RTX A6000", 51_041_271_808, 7.68096e11, 84, 1.80, 6 * MIB, (8, 6), 77.4e12),
    # [D] "NVIDIA L4 Tensor Core GPU" (300 GB/s, 120 TFLOPS TF32 with sparsity) and "NVIDIA Ada GPU Architecture"
    # (AD104: 58 cores, 48 MB of L2); memory [R].
    "l4": Device("NVIDIA L4", int(22.17 * GIB), 3.0e11, 58, 2.04, 48 * MIB, (8, 9), 60e12),
    # [D] "NVIDIA T4 Tensor Core GPU" (320 GB/s, 8.1 TFLOPS float32, no TF32) and "NVIDIA Turing GPU Architecture"
    # (TU104: 40 cores, 4 MB of L2); memory [R].
    "t4": Device("Tesla T4", int(14.75 * GIB), 3.2e11, 40, 1.59, 4 * MIB, (7, 5), 8.1e12),
    # [D] "NVIDIA Ada GPU Architecture", GeForce RTX 4090 (1008 GB/s, 128 cores, 72 MB of L2, 82.6 TFLOPS); memory [R].
    "rtx4090": Device("NVIDIA GeForce RTX 4090", int(23.64 * GIB), 1.008e12, 128, 2.52, 72 * MIB, (8, 9), 82.6e12),
    # [X]; matmul [D] "NVIDIA H100 Tensor Core GPU", SXM: 989 TFLOPS TF32 with sparsity, half of it without.
    "h100": Device("NVIDIA H100 80GB HBM3", 84_942_979_072, 3.35232e12, 132, 1.98, 50 * MIB, (9, 0), 494e12),
    # [X]; matmul [D] "NVIDIA H200 Tensor Core GPU": that of an H100.
    "h200": Device("NVIDIA H200", 151_397_597_184, 4.8e12, 132, 1.98, 50 * MIB, (9, 0), 494e12),
    # [X]; matmul [D] "NVIDIA DGX B200": 2.2 PFLOPS TF32 with sparsity for each GPU, half of it without.
    "b200": Device("NVIDIA B200", 191_514_411_008, 7.67232e12, 148, 1.965, 132_644_864, (10, 0), 1.1e15),
}


def target_config(device: Device) -> str:
    """The GpuTargetConfigProto, as text, that XLA compiles for this GPU from."""
    major, minor = device.capability
    limits = device.limits
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {48 * KIB}
  shared_memory_per_core: {limits.shared_bytes}
  threads_per_core_limit: {limits.threads}
  core_count: {device.cores}
  fpus_per_core: {limits.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(device.bandwidth)}
  l2_cache_size: {device.l2_bytes}
  clock_rate_ghz: {device.clock_ghz}
  device_memory_size: {device.memory_bytes}
  shared_memory_per_block_optin: {limits.block_shared_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability {major}.{minor}"
  device_address_bits: 64
  name: "{device.model}"
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{device.model}"
"""
