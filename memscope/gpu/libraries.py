"""NVIDIA's libraries that a module calls: the workspace that they take is decided when they run."""

from __future__ import annotations

from collections.abc import Iterator

from ..hlo.module import Instruction, Module

# How the targets of XLA's custom calls begin, and whose they are.
CALLS = {
    "__cublas": "cuBLAS",
    "cublas": "cuBLAS",
    "__cudnn": "cuDNN",
    "cudnn": "cuDNN",
    "cusolver": "cuSOLVER",
    "__cusolver": "cuSOLVER",
    "cusparse": "cuSPARSE",
    "__cub": "CUB",
}
OPCODES = {"fft": "cuFFT", "sort": "CUB", "convolution": "cuDNN", "triangular-solve": "cuBLAS", "cholesky": "cuSOLVER"}


def libraries(module: Module) -> tuple[tuple[str, int], ...]:
    """Each library that the module calls, with the number of places that do; by name."""
    counts: dict[str, int] = {}
    for computation in module.computations:
        for name in filter(None, map(_library, computation.instructions)):
            counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(counts.items()))


def _library(instruction: Instruction) -> str | None:
    if instruction.opcode != "custom-call":
        return OPCODES.get(instruction.opcode)
    return next(_matching(instruction.custom_call_target), None)


def _matching(target: str) -> Iterator[str]:
    return (name for start, name in CALLS.items() if target.startswith(start))
