"""An upper bound on the scratch that XLA's CPU account leaves out.

XLA hands dots, reductions and the elementwise ops around them to a library (YNNPACK), as fusions whose
inner values it does not count. The library may hold any of these values whole. Measured, it holds a third
to two thirds of them at once, and a copy of a dot's right-hand side, packed for its kernels. What it frees
may stay with the process.
"""

from __future__ import annotations

import dataclasses
import math
import os

from .module import Computation, Instruction, Module

_FREE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})
# Ops that may want their operand laid out in memory; to all others a broadcast is only a stride of zero.
_READS_WHOLE = frozenset(
    {"dot", "reduce", "reduce-window", "convolution", "bitcast", "reshape", "transpose", "copy", "tuple"}
)


@dataclasses.dataclass(frozen=True)
class _Scratch:
    """Bytes that library fusions hold at one time, and bytes that they ask for over all their runs."""

    at_once: int
    in_all: float


_NONE = _Scratch(0, 0)


def hidden_scratch(module: Module) -> int:
    """Bytes that library fusions may add to the process on top of XLA's account."""
    bounds: dict[int, _Scratch] = {}
    for computation in module.computations:  # callees first
        bounds[computation.id] = _of_computation(computation, module, bounds)
    entry = bounds[module.entry_id]
    return int(min(entry.in_all, retained_copies() * entry.at_once))


def retained_copies() -> int:
    """How many times over the process may keep scratch that was in use once.

    The allocator keeps what a thread frees for that same thread, so a fusion that runs again on another thread
    takes fresh pages. Measured: 3.2 times with 2 threads, 6.1 with 8 and with 16.
    """
    return min(os.cpu_count() or 1, 8) + 2


def _of_computation(computation: Computation, module: Module, bounds: dict[int, _Scratch]) -> _Scratch:
    """The scratch of a computation's instructions together.

    Fusions that depend on each other run one after the other; independent ones may run at once, on other
    threads. The instructions are covered with chains of dependence, and each chain counts its largest: never
    less than the worst set of independent ones.
    """
    before: dict[int, int] = {}  # the heavy instructions each one depends on, as a bit set
    bit: dict[int, int] = {}
    chains: list[tuple[int, int]] = []  # (last instruction, largest bytes)
    in_all = 0.0
    for instruction in computation.instructions:
        mask = 0
        for operand in (*instruction.operands, *instruction.controls):
            mask |= before.get(operand, 0) | bit.get(operand, 0)
        before[instruction.id] = mask
        scratch = _of_instruction(instruction, module, bounds)
        if scratch.at_once == 0:
            continue
        in_all += scratch.in_all
        bit[instruction.id] = 1 << len(bit)
        earlier = [k for k, (last, _) in enumerate(chains) if bit[last] & mask]
        if earlier:
            best = max(earlier, key=lambda k: chains[k][1])
            chains[best] = instruction.id, max(scratch.at_once, chains[best][1])
        else:
            chains.append((instruction.id, scratch.at_once))
    return _Scratch(sum(largest for _, largest in chains), in_all)


def _of_instruction(instruction: Instruction, module: Module, bounds: dict[int, _Scratch]) -> _Scratch:
    if instruction.opcode == "fusion":
        if not instruction.is_library_fusion:
            return _NONE
        inner = _inner_values(module.by_id[instruction.called[0]])
        return _Scratch(inner, inner)
    called = [bounds[c] for c in instruction.called if c in bounds]
    if not called:
        return _NONE
    # A loop runs its condition and its body in turn, a conditional one branch.
    at_once = max(c.at_once for c in called)
    in_all = math.inf if instruction.opcode == "while" else max(c.in_all for c in called)
    return _Scratch(at_once, in_all if at_once else 0)


def _inner_values(fusion: Computation) -> int:
    by_id = {i.id: i for i in fusion.instructions}
    root = by_id[fusion.root]
    results = {root.id, *(root.operands if root.opcode == "tuple" else ())}
    laid_out = {o for i in fusion.instructions if i.opcode in _READS_WHOLE for o in i.operands}
    total = 0
    for i in fusion.instructions:
        if i.opcode == "dot":
            total += _packed(i, by_id[i.operands[1]])
        if i.id in results or i.opcode in _FREE or (i.opcode == "broadcast" and i.id not in laid_out):
            continue
        total += i.shape.bytes
    return total


def _packed(dot: Instruction, rhs: Instruction) -> int:
    """Bytes of the right-hand side, its columns padded to whole vectors."""
    columns = dot.shape.dimensions[-1] if dot.shape.dimensions else 1
    if columns == 0:
        return 0
    padded = 1 << (columns - 1).bit_length() if columns < 16 else 16 * math.ceil(columns / 16)
    return math.ceil(rhs.shape.bytes * padded / columns)
