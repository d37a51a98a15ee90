"""A program with donated arguments as two: all that comes before the donated arguments are written over, and that.

XLA takes an order for a module without donations only. What writes over donated arguments is mostly the update of some
state, element by element, with little to order: in an executable of its own it keeps the donations, and the first one,
which has none, takes any order. Both take all of the program's arguments, and the second one all that the first one
made, so that the larger of their peaks is that of the whole call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from ..compile import Compiled
from ..cost import CHEAP, EXPENSIVE
from ..hlo.arithmetic import arithmetic
from ..hlo.dataflow import Dataflow
from ..hlo.module import Instruction, Module
from ..inline import live_eqns
from ..program import Atom, Program, is_var, nbytes
from .flow import SINK, SOURCE, UNCUT, Network
from .steps import left_by

Var = jex_core.Var

SMALL = 1024
"""Bytes up to which a value is rather computed again in the second half, from what is handed over anyway."""

_PRODUCTS = frozenset({"integer_pow", "mul", "neg", "square"})
_FUSED = CHEAP | EXPENSIVE
_CALLS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"})


@dataclasses.dataclass(frozen=True, eq=False)
class Halves:
    """Two programs that together compute what one did.

    Attributes:
      first: of the same arguments, none of them donated; its results are handed to the second.
      second: of the arguments and what it is handed; it keeps the donations.
      results: for each result of the whole, whether the second makes it, and its number among the results there.
    """

    first: Program
    second: Program
    results: tuple[tuple[bool, int], ...]

    @property
    def handed_bytes(self) -> int:
        """Bytes in memory between the two, beside the arguments."""
        return sum(nbytes(v) for v in dict.fromkeys(self.first.jaxpr.outvars))

    def joined(self, first: Compiled, second: Compiled, whole: Compiled) -> Compiled | None:
        """Both as one executable, or None where it would not do the same.

        Args:
          whole: the program compiled as one, in any order: whose results it must have, to the last bit, and whose
            donations.
        """
        if second.alias_bytes < whole.alias_bytes or not self._do_the_same(first, second, whole):
            return None

        def call(*leaves: Any) -> list[Any]:
            made = first.call(*leaves)
            outs = (made, second.call(*leaves, *made))
            return [outs[later][number] for later, number in self.results]

        larger = max(first, second, key=lambda half: half.peak_bytes)
        return dataclasses.replace(
            whole,
            call=call,
            temp_bytes=whole.temp_bytes + larger.peak_bytes - whole.peak_bytes,
            hidden_bytes=max(first.hidden_bytes, second.hidden_bytes),
            module=larger.module,
            assignment=larger.assignment,
        )

    def _do_the_same(self, first: Compiled, second: Compiled, whole: Compiled) -> bool:
        """Whether both together compute what the whole does, and round alike."""
        before = arithmetic(first.module)
        after = arithmetic(second.module, before.results)
        results = tuple((after if later else before).results[number] for later, number in self.results)
        wanted = arithmetic(whole.module)
        return results == wanted.results and before.fused | after.fused == wanted.fused


def halves(program: Program, module: Module) -> list[Halves]:
    """A program in two, in the ways that are worth a try, the one that hands over the least first.

    There are none where most of what it makes depends on what is written over.

    Args:
      module: the program compiled, eqns tagged; its instructions' results are what may be handed over, so that XLA
        fuses the same in two programs as in one.
    """
    entry = [i for i in module.entry.instructions if i.opcode not in ("parameter", "tuple")]
    after = _from_the_first_write_on(module, entry)
    updated = sum(i.shape.bytes for i in entry if i.id in after)
    if not after or 2 * updated > sum(i.shape.bytes for i in entry) or any(eqn.effects for eqn in program.eqns):
        return []
    written = {eqn for i in entry if i.id in after for eqn in left_by(module, i)} | _makers_of_donated(program, module)
    made_before = {eqn for i in entry if i.id not in after for eqn in left_by(module, i)} - written
    depends = _what_depends(program, written)
    update = _what_is_fused(program, written, made_before, depends)
    least = update - _summed_up(program, update, update - written - depends)
    ways = dict.fromkeys(frozenset(_with_small(program, way)) for way in (least, update))
    return [found for way in ways if (found := _cut(program, sorted(way))) is not None]


def _from_the_first_write_on(module: Module, entry: Sequence[Instruction]) -> set[int]:
    """What writes over a donated argument, and what reads that."""
    flow, root = Dataflow(module), module.entry.root
    writers = {flow.value((root, index))[0] for index, *_ in module.donations}
    after: set[int] = set()
    for i in entry:
        if i.id in writers or not after.isdisjoint(i.operands):
            after.add(i.id)
    return after


def _makers_of_donated(program: Program, module: Module) -> set[int]:
    """The eqns that make the results to which arguments are donated."""
    outvars = program.jaxpr.outvars
    numbers = (index[0] if index else 0 for index, *_ in module.donations)
    found = (outvars[number] for number in numbers if number < len(outvars))
    return {program.producer[a] for a in found if is_var(a) and a in program.producer}


def _what_depends(program: Program, eqns: Collection[int]) -> set[int]:
    """Some eqns, and those that depend on them."""
    depends: set[int] = set()
    for index in range(len(program.eqns)):
        if index in eqns or not depends.isdisjoint(_makers(program, index)):
            depends.add(index)
    return depends


def _what_is_fused(program: Program, written: set[int], made_before: set[int], depends: set[int]) -> set[int]:
    """What the update computes where XLA fuses in it what it fuses in the whole: all that is not in memory before."""
    stays = {i for i in made_before if i not in depends or program.eqns[i].primitive.name not in _FUSED}
    stays |= {i for i, eqn in enumerate(program.eqns) if i not in depends and eqn.primitive.name not in _FUSED | _CALLS}
    return _with_makers(program, written, stays)


def _summed_up(program: Program, update: set[int], movable: set[int]) -> set[int]:
    """The eqns of an update that had better run before it, for less to be handed over: by a minimum cut.

    A sum of gradients, say, in place of each of them. A product stays beside the sum that it is a term of.
    """
    index = {eqn: n for n, eqn in enumerate(sorted(movable), 2)}
    network = Network(len(index) + 2)
    for eqn in movable:
        for maker in index.keys() & set(_makers(program, eqn)):
            network.add_edge(index[eqn], index[maker], UNCUT)
    readers: dict[Var, list[int]] = {}
    for eqn in update:
        for var in {a for a in program.eqns[eqn].invars if is_var(a) and a in program.producer}:
            readers.setdefault(var, []).append(eqn)
    for var, eqns in readers.items():
        maker = program.producer[var]
        if maker in index or maker not in update:
            joint = network.add_node()
            is_product = maker in index and program.eqns[maker].primitive.name in _PRODUCTS
            network.add_edge(index.get(maker, SOURCE), joint, UNCUT if is_product else nbytes(var))
            for eqn in eqns:
                network.add_edge(joint, index.get(eqn, SINK), UNCUT)
    network.maximise()
    before = network.source_side()
    return {eqn for eqn, n in index.items() if n in before}


def _with_small(program: Program, update: Collection[int]) -> set[int]:
    """An update, and what is small and can be computed again in it from what is handed over anyway."""
    update = set(update)
    read = {maker for eqn in update for maker in _makers(program, eqn)} - update
    small = {eqn for eqn in read if _is_small(program, eqn)}
    for eqn in sorted(small):
        again = _with_makers(program, {eqn}, (read - small) | update)
        if all(_is_cheap(program.eqns[i]) for i in again):
            update |= again
    return update


def _with_makers(program: Program, eqns: Collection[int], stays: Collection[int]) -> set[int]:
    """Some eqns, and what must run before them but for what stays where it is."""
    found = set(eqns)
    pending = list(eqns)
    while pending:
        new = {maker for maker in _makers(program, pending.pop()) if maker not in stays} - found
        found |= new
        pending += new
    return found


def _is_small(program: Program, eqn: int) -> bool:
    """Whether an eqn makes next to nothing, as a norm: XLA simplifies that with what is made of it."""
    return sum(map(nbytes, program.eqns[eqn].outvars)) <= SMALL


def _is_cheap(eqn: jex_core.JaxprEqn) -> bool:
    """Whether an eqn can as well be computed twice: sums, and what is computed element by element."""
    name = eqn.primitive.name
    inner = (e for jaxpr in jex_core.jaxprs_in_params(eqn.params) for e in jaxpr.eqns)
    return name in _FUSED or name.startswith("reduce_") or (name in _CALLS and all(map(_is_cheap, inner)))


def _makers(program: Program, eqn: int) -> list[int]:
    producer = program.producer
    return [producer[a] for a in program.eqns[eqn].invars if is_var(a) and a in producer]


def _cut(program: Program, update: Sequence[int]) -> Halves | None:
    """The program up to the update, and the update."""
    outvars, eqns = program.jaxpr.outvars, [program.eqns[i] for i in update]
    made = {v for eqn in eqns for v in eqn.outvars}
    before = program.producer.keys() - made
    read = (a for eqn in eqns for a in eqn.invars if is_var(a) and a in before)
    handed = list(dict.fromkeys([*read, *(a for a in outvars if is_var(a) and a in before)]))
    if not handed or any(not isinstance(v.aval, jax.core.ShapedArray) for v in handed):
        return None
    late = [a for a in outvars if not is_var(a) or a not in before]
    numbers = iter(range(len(late)))
    results = tuple((False, handed.index(a)) if is_var(a) and a in before else (True, next(numbers)) for a in outvars)
    first, second = _part(program, (), handed, program.eqns), _part(program, handed, late, eqns)
    return Halves(dataclasses.replace(first, donated=(False,) * len(program.donated)), second, results)


def _part(
    program: Program, handed: Sequence[Var], outvars: Sequence[Atom], eqns: Sequence[jex_core.JaxprEqn]
) -> Program:
    """What some of a program's eqns make, of its arguments and what is handed on."""
    live = live_eqns(list(eqns), list(outvars))
    used = {a for eqn in live for a in eqn.invars if is_var(a)}.union(a for a in outvars if is_var(a))
    consts = [(v, c) for v, c in zip(program.jaxpr.constvars, program.closed.consts, strict=True) if v in used]
    jaxpr = program.jaxpr.replace(
        constvars=[v for v, _ in consts], invars=[*program.jaxpr.invars, *handed], outvars=list(outvars), eqns=live
    )
    return dataclasses.replace(
        program.rewritten(jex_core.ClosedJaxpr(jaxpr, [c for _, c in consts])),
        donated=(*program.donated, *(False for _ in handed)),
        argument_names=(*program.argument_names, *(f"handed[{n}]" for n in range(len(handed)))),
        traced=None,
    )
