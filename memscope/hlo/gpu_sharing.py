"""What XLA's GPU compiler writes over what: its rule for a result that takes the place of an operand."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .assignment import Position
from .dataflow import Dataflow
from .module import MOVES_ELEMENTS, Computation, Instruction, Shape
from .place import may_take_over

_MOVES = MOVES_ELEMENTS - {"bitcast"}


def may_take_over_on_gpu(flow: Dataflow, instruction: Instruction) -> Iterator[tuple[Position, Position]]:
    """(operand, result) of each result that could be written over an operand, were that read for the last time.

    A fusion may do so where both have as many elements of the same size, read in the places where they are written.
    Only what computes a value directly before lends: XLA does not look through bitcasts and tuples here.
    """
    if instruction.opcode != "fusion":
        yield from (pair for pair in may_take_over(flow, instruction) if pair[0][0] in instruction.operands)
        return
    if instruction.fusion_kind not in ("kLoop", "kInput"):
        return
    inner = flow.module.by_id[instruction.called[0]]
    root = flow.module.instructions[inner.root]
    reached = [_reached(inner, number) for number in range(len(instruction.operands))]
    for index, shape in instruction.shape.leaves():
        output = root.operands[index[0]] if index else root.id
        for operand, computed in zip(instruction.operands, reached, strict=True):
            value = flow.value((operand, ()))
            if value[0] == operand and output in computed and _alike(flow.module.instructions[operand].shape, shape):
                yield value, (instruction.id, index)


def _alike(operand: Shape, result: Shape) -> bool:
    return operand.bytes == result.bytes and math.prod(operand.dimensions) == math.prod(result.dimensions)


def _reached(fusion: Computation, operand: int) -> frozenset[int]:
    """What is computed from an operand; nothing where some of it has its elements in other places."""
    reached = {fusion.parameters[operand].id}
    for i in fusion.instructions:  # operands first
        if any(o in reached for o in i.operands):
            if i.opcode in _MOVES:
                return frozenset()
            reached.add(i.id)
    return frozenset(reached)
