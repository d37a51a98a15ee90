"""From an HLO instruction back to the eqn, the JAX primitive and the user's line it comes from."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import deque
from collections.abc import Iterator

from .module import Instruction, Module

_TAG = re.compile(r"(?:^|/)e(\d+)(?=/|$)")
_PRIMITIVE = re.compile(r"[a-z][a-z0-9_]*$")
# Name stack entries that only say where the instruction stands.
_PLACES = re.compile(r"while|body|cond|closed_call|checkpoint|rematted_computation|shard_map|branch_\d+_fun")
# How scan takes its inputs apart and stacks its outputs: no op that the user wrote.
_PLUMBING = frozenset({"jit(dynamic_index_in_dim)", "jit(dynamic_update_index_in_dim)"})
_REACH = 32  # instructions looked at around one that XLA made itself


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where an instruction comes from.

    Attributes:
      eqn: index of the program's eqn, or None.
      primitive: the JAX primitive inside that eqn's loop or branch, where it has one.
      line: name of the file, without its folder, and number of the line that XLA kept.
    """

    eqn: int | None
    primitive: str | None
    line: tuple[str, int] | None


def eqn_of(instruction: Instruction) -> int | None:
    """The eqn that an instruction's own metadata name; None where XLA made it itself."""
    match = _TAG.search(instruction.op_name)
    return int(match[1]) if match else None


class Origins:
    """The origins of a module's instructions; XLA's own (copies, split reductions) take a neighbour's."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._users: dict[int, list[Instruction]] = {}
        for instruction in module.instructions.values():
            for operand in instruction.operands:
                self._users.setdefault(operand, []).append(instruction)

    def of(self, instruction: Instruction) -> Origin:
        for candidate in self._candidates(instruction):
            match = _TAG.search(candidate.op_name)
            if match:
                primitive = _inner_primitive(candidate.op_name[match.end() :])
                line = candidate.line and (os.path.basename(candidate.line[0]), candidate.line[1])
                return Origin(int(match[1]), primitive, line)
        return Origin(None, None, None)

    def _candidates(self, instruction: Instruction) -> Iterator[Instruction]:
        yield from self._own(instruction)
        for around in (self._users_of, self._operands_of):
            seen, queue = {instruction.id}, deque(around(instruction))
            while queue and len(seen) < _REACH:
                near = queue.popleft()
                if near.id not in seen:
                    seen.add(near.id)
                    yield from self._own(near)
                    queue.extend(around(near))

    def _own(self, instruction: Instruction) -> Iterator[Instruction]:
        yield instruction
        if instruction.opcode == "fusion":  # from the root back: what was fused last names it best
            yield from reversed(self._module.by_id[instruction.called[0]].instructions)

    def _users_of(self, instruction: Instruction) -> list[Instruction]:
        return self._users.get(instruction.id, [])

    def _operands_of(self, instruction: Instruction) -> list[Instruction]:
        return [self._module.instructions[o] for o in instruction.operands]


def _inner_primitive(path: str) -> str | None:
    """What a name stack below an eqn's tag ends in, if that is a primitive."""
    parts = [p for p in path.split("/") if p]
    if not parts or _PLUMBING.intersection(parts) or _PLACES.fullmatch(parts[-1]):
        return None
    return parts[-1] if _PRIMITIVE.match(parts[-1]) else None
