"""Arrays made again for each instruction that reads them, where next to nothing has to be kept for that.

Zeros, masks and slices or transposes of arguments take no more than moving some elements, but XLA makes each of them
once, and keeps it from its first reader to its last: often for all of a forward and a backward pass. Made again they
are the same bits, and no order has to keep them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..hlo import hlo_pb2
from ..hlo.module import Instruction, Module
from ..hlo.traffic import moved_bytes

SHARE = 0.001
"""Arrays of a smaller share of the temporaries are left alone."""

TRAFFIC = 0.05
"""By what share more bytes than before the instructions may read and write, at the most."""

_CHEAP = frozenset(
    {
        "add", "and", "bitcast", "broadcast", "compare", "constant", "convert", "copy", "iota", "maximum", "minimum",
        "multiply", "negate", "not", "or", "parameter", "reshape", "reverse", "select", "slice", "subtract",
        "transpose",
    }
)  # fmt: skip
"""What an array may be made by."""

_NAMES = frozenset({"bitcast", "get-tuple-element", "tuple"})
_LOCAL = 32
"""The bits of an instruction's id below those of its computation's."""


def worth_remaking(module: Module, temp_bytes: int) -> frozenset[str]:
    """The instructions of the entry computation that had better run once for each reader, by name.

    Args:
      temp_bytes: of the module.
    """
    readers: dict[int, set[int]] = {}
    for instruction in module.entry.instructions:
        if instruction.opcode not in _NAMES:
            for operand in instruction.operands:
                readers.setdefault(_maker(module, operand).id, set()).add(instruction.id)
    large = [i for i in module.entry.instructions if i.shape.bytes > SHARE * temp_bytes and _is_free(module, i)]
    again = {i: len(readers.get(i.id, ())) - 1 for i in large}
    left = TRAFFIC * moved_bytes(module)
    chosen: set[str] = set()
    for made in sorted(large, key=lambda i: (again[i], -i.shape.bytes, i.name)):
        left -= 2 * again[made] * made.shape.bytes  # written, and read
        if again[made] > 0 and left >= 0:
            chosen.add(made.name)
    return frozenset(chosen)


def _is_free(module: Module, instruction: Instruction) -> bool:
    """Whether it is made of arguments and constants that stay where they are, by moving elements."""
    inner = [i for c in instruction.called for i in module.by_id[c].instructions]
    made = inner if instruction.opcode == "fusion" else [instruction]
    if instruction.opcode in _NAMES or instruction.opcode in ("parameter", "constant") or instruction.shape.is_tuple:
        return False
    donated = {number for _, number, _ in module.donations}
    sources = [_maker(module, operand) for operand in instruction.operands]
    kept = all(
        s.opcode == "constant" or (s.opcode == "parameter" and s.parameter_number not in donated) for s in sources
    )
    return kept and not instruction.in_place and all(i.opcode in _CHEAP and not i.called for i in made)


def _maker(module: Module, operand: int) -> Instruction:
    found = module.instructions[operand]
    while found.opcode == "bitcast":
        found = module.instructions[found.operands[0]]
    return found


def remade(serialized: bytes, names: Collection[str]) -> bytes:
    """A serialized module in which instructions of the entry computation run once for each reader, right before it.

    Args:
      names: of the instructions; those that are not there are left out.
    """
    if not names:
        return serialized
    module = hlo_pb2.Module.FromString(serialized)
    _Remaking(module).run(names)
    return module.SerializeToString()


class _Remaking:
    def __init__(self, module: hlo_pb2.Module) -> None:
        self._module = module
        self._entry = next(c for c in module.computations if c.id == module.entry_computation_id)
        self._computations = {c.id: c for c in module.computations}
        self._local = max(i.id & ((1 << _LOCAL) - 1) for i in self._entry.instructions)
        self._before: dict[int, list[hlo_pb2.Instruction]] = {}  # what is to run right before an instruction

    def run(self, names: Collection[str]) -> None:
        for instruction in list(self._entry.instructions):
            if instruction.name in names:
                self._make_again(instruction)
        self._write()

    def _make_again(self, made: hlo_pb2.Instruction) -> None:
        """Gives each reader but one an instruction of its own; whatever only names the array keeps the one there is."""
        paths: dict[str, list[Sequence[hlo_pb2.Instruction]]] = {}
        for path in self._paths(made):
            paths.setdefault(path[-1].name, []).append(path)
        named = {name for name, (path, *_) in paths.items() if path[-1].opcode in _NAMES}
        reading = sorted(paths.keys() - named, key=lambda name: (paths[name][0][-1].opcode == "copy", name))
        for name in reading[0 if named else 1 :]:
            self._make_for(made, paths[name])

    def _make_for(self, made: hlo_pb2.Instruction, paths: Sequence[Sequence[hlo_pb2.Instruction]]) -> None:
        """Gives one reader an instruction of its own, read on the same paths."""
        reader = paths[0][-1]
        if reader.opcode == "copy" and len(paths[0]) == 2 and reader.shape == made.shape:
            self._become(reader, made)
            return
        own = self._copy_of(made, reader)
        for _, *links, _ in paths:
            source, read = own, made
            for link in links:
                source, read = self._copy_of(link, reader, source.id), link
            reader.operand_ids[:] = [source.id if o == read.id else o for o in reader.operand_ids]

    def _paths(self, made: hlo_pb2.Instruction) -> Iterator[Sequence[hlo_pb2.Instruction]]:
        """For each reader the instruction, the bitcasts between it and the reader, and that."""
        pending: list[list[hlo_pb2.Instruction]] = [[made]]
        while pending:
            path = pending.pop()
            for user in self._entry.instructions:
                if path[-1].id in user.operand_ids:
                    found = [*path, user]
                    if user.opcode == "bitcast":
                        pending.append(found)
                    else:
                        yield found

    def _copy_of(
        self, made: hlo_pb2.Instruction, reader: hlo_pb2.Instruction, operand: int | None = None
    ) -> hlo_pb2.Instruction:
        """The same instruction, to run right before a reader."""
        copy = hlo_pb2.Instruction()
        self._local += 1
        copy.id, copy.name = (self._entry.id << _LOCAL) + self._local, f"{made.name}.for.{reader.name}"
        self._become(copy, made)
        if operand is not None:
            copy.operand_ids[:] = [operand]
        self._before.setdefault(reader.id, []).append(copy)
        return copy

    def _become(self, instruction: hlo_pb2.Instruction, made: hlo_pb2.Instruction) -> None:
        """Lets an instruction do what another one does, under its own name."""
        name, number, controls = instruction.name, instruction.id, list(instruction.control_predecessor_ids)
        instruction.CopyFrom(made)
        instruction.name, instruction.id = name, number
        instruction.control_predecessor_ids[:] = dict.fromkeys([*controls, *made.control_predecessor_ids])
        instruction.called_computation_ids[:] = [
            self._fused(self._computations[c], name) for c in made.called_computation_ids
        ]

    def _fused(self, computation: hlo_pb2.Computation, name: str) -> int:
        """A copy of a fusion's computation: XLA wants one for each fusion."""
        copy = hlo_pb2.Computation()
        copy.CopyFrom(computation)
        copy.id, copy.name = max(self._computations) + 1, f"{computation.name}.for.{name}"
        moved = (copy.id - computation.id) << _LOCAL
        copy.root_id += moved
        for instruction in copy.instructions:
            instruction.id += moved
            instruction.name = f"{instruction.name}.for.{name}"
            instruction.operand_ids[:] = [o + moved for o in instruction.operand_ids]
        self._computations[copy.id] = copy
        return copy.id

    def _write(self) -> None:
        """Puts the new instructions into the text and the schedule, and the new computations before the entry."""
        entry = self._entry
        instructions = _in_text_order([each for i in entry.instructions for each in (*self._before.get(i.id, ()), i)])
        sequence = self._module.schedule.sequences[entry.id].instruction_ids
        order = [each for i in sequence for each in (*(b.id for b in self._before.get(i, ())), i)]
        sequence[:] = order
        kept = hlo_pb2.Computation()
        kept.CopyFrom(entry)
        del kept.instructions[:]
        kept.instructions.extend(instructions)
        computations = [c for c in self._computations.values() if c.id != entry.id]
        held = hlo_pb2.Module()
        held.computations.extend([*computations, kept])
        del self._module.computations[:]
        self._module.computations.extend(held.computations)


def _in_text_order(instructions: Sequence[hlo_pb2.Instruction]) -> list[hlo_pb2.Instruction]:
    """A computation's instructions as XLA writes them: each after what it waits for, in the order of its operands."""
    by_id = {i.id: i for i in instructions}
    read = {o for i in instructions for o in (*i.operand_ids, *i.control_predecessor_ids)}
    written: dict[int, hlo_pb2.Instruction] = {}
    for last in (i for i in instructions if i.id not in read):
        pending = [last]
        while pending:
            current = pending[-1]
            first = (*current.control_predecessor_ids[::-1], *current.operand_ids)
            missing = next((by_id[b] for b in first if b not in written), None)
            if missing is not None:
                pending.append(missing)
            else:
                written[pending.pop().id] = current
    return list(written.values())


def readers_of(module: Module, names: Collection[str]) -> dict[str, list[str]]:
    """The instructions of the entry computation that read what each of these makes, by name."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for instruction in module.entry.instructions:
        if instruction.opcode not in _NAMES:
            for maker in dict.fromkeys(_maker(module, operand).name for operand in instruction.operands):
                if maker in found:
                    found[maker].append(instruction.name)
    return found
