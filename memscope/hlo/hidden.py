"""An upper bound on the scratch that XLA's CPU account leaves out.

XLA hands dots, reductions and the elementwise ops around them to a library (YNNPACK), as fusions whose
inner values it does not count. The library may hold any of these values whole. Measured, it holds a third
to two thirds of them at once, and a copy of a dot's right-hand side, packed for its kernels.
"""

from __future__ import annotations

import math

from .module import Computation, Instruction, Module

_FREE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})
# Ops that may want their operand laid out in memory; to all others a broadcast is only a stride of zero.
_READS_WHOLE = frozenset(
    {"dot", "reduce", "reduce-window", "convolution", "bitcast", "reshape", "transpose", "copy", "tuple"}
)


def hidden_scratch(module: Module) -> int:
    """Bytes that library fusions may hold at one time on top of XLA's account."""
    bounds: dict[int, int] = {}
    for computation in module.computations:  # callees first
        bounds[computation.id] = _at_one_time(computation, module, bounds)
    return bounds[module.entry_id]


def _at_one_time(computation: Computation, module: Module, bounds: dict[int, int]) -> int:
    """The most that instructions of `computation` can hold together.

    Fusions that depend on each other run one after the other; independent ones may run at once, on other
    threads. The instructions are covered with chains of dependence, and each chain counts its largest: never
    less than the worst set of independent ones.
    """
    before: dict[int, int] = {}  # the heavy instructions each one depends on, as a bit set
    bit: dict[int, int] = {}
    chains: list[tuple[int, int]] = []  # (last instruction, largest bytes)
    for instruction in computation.instructions:
        mask = 0
        for operand in (*instruction.operands, *instruction.controls):
            mask |= before.get(operand, 0) | bit.get(operand, 0)
        before[instruction.id] = mask
        scratch = _scratch(instruction, module, bounds)
        if scratch == 0:
            continue
        bit[instruction.id] = 1 << len(bit)
        earlier = [k for k, (last, _) in enumerate(chains) if bit[last] & mask]
        if earlier:
            best = max(earlier, key=lambda k: chains[k][1])
            chains[best] = instruction.id, max(scratch, chains[best][1])
        else:
            chains.append((instruction.id, scratch))
    return sum(largest for _, largest in chains)


def _scratch(instruction: Instruction, module: Module, bounds: dict[int, int]) -> int:
    if instruction.opcode == "fusion":
        return _inner_values(module.by_id[instruction.called[0]]) if instruction.is_library_fusion else 0
    # A loop runs its condition and its body in turn, a conditional one branch.
    return max((bounds.get(c, 0) for c in instruction.called), default=0)


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
