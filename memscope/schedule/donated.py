"""An order for a program with donated arguments: a module that went through a pass has forgotten its donations.

So there are two ways, and the lower peak wins. XLA's memory-optimised scheduler walks back from the results, one after
the other: asked for them in the order in which they had best be made, it comes near that order, and each donated
argument keeps to its own result. Or the order is set, and results get memory of their own: where temporaries are most
of the peak that costs less than it saves, and the arguments' memory is given back after the call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

from ..compile import Build, Compiled, compile_program
from ..hlo.dataflow import Dataflow
from ..hlo.module import Module
from ..program import Program
from ..target import Target


def without_donations(module: Module) -> Module:
    """A module as a pass leaves it."""
    return dataclasses.replace(module, donations=())


def given_back(compiled: Compiled, donated: Sequence[bool]) -> Compiled:
    """The same, with the arrays deleted after the call that the caller has given away, as after a donation."""

    def call(*leaves: Any) -> Any:
        outs = compiled.call(*leaves)
        for leaf, given in zip(leaves, donated, strict=True):
            if given and isinstance(leaf, jax.Array) and not leaf.is_deleted():
                leaf.delete()
        return outs

    return dataclasses.replace(compiled, call=call)


def can_ask_otherwise(program: Program, module: Module) -> bool:
    """Whether a module's arguments and results are the program's own: ordered effects add tokens to both."""
    root = module.instructions[module.entry.root]
    same = len(module.entry.parameters) == len(program.donated)
    return same and root.shape.is_tuple and len(root.shape.elements) == len(program.jaxpr.outvars)


def results_as_made(module: Module, sequence: Sequence[str]) -> list[int]:
    """The numbers of a module's results, in the order in which a sequence of its entry's instructions makes them."""
    time = {name: t for t, name in enumerate(sequence)}
    flow, root = Dataflow(module), module.instructions[module.entry.root]
    makers = [module.instructions[flow.value((root.id, (k,)))[0]] for k in range(len(root.shape.elements))]
    return sorted(range(len(makers)), key=lambda k: time.get(makers[k].name, -1))


def compile_with_results(
    program: Program, results: Sequence[int], module: Module, build: Build, target: Target, options: Mapping[str, str]
) -> tuple[Program, Compiled]:
    """The program compiled with its results in another order, and what it was compiled as.

    The executable takes and returns what the program does.

    Args:
      module: the program compiled as it is: which argument is donated to which result.
    """
    donated_to = {result[0]: parameter for result, parameter, _ in module.donations if result}
    first = [donated_to[k] for k in results if k in donated_to]
    arguments = [*first, *(i for i in range(len(program.donated)) if i not in set(first))]
    permuted = _permuted(program, arguments, results)
    compiled = compile_program(permuted, build, target, options)
    return permuted, dataclasses.replace(compiled, call=_restored(compiled.call, arguments, results))


def _permuted(program: Program, arguments: Sequence[int], results: Sequence[int]) -> Program:
    jaxpr = program.jaxpr.replace(
        invars=[program.jaxpr.invars[i] for i in arguments], outvars=[program.jaxpr.outvars[k] for k in results]
    )
    return dataclasses.replace(
        program,
        closed=jex_core.ClosedJaxpr(jaxpr, program.closed.consts),
        donated=tuple(program.donated[i] for i in arguments),
        argument_names=tuple(program.argument_names[i] for i in arguments),
        traced=None,
    )


def _restored(call: Callable[..., Any], arguments: Sequence[int], results: Sequence[int]) -> Callable[..., Any]:
    place = {k: n for n, k in enumerate(results)}

    def restored(*leaves: Any) -> list[Any]:
        outs = call(*(leaves[i] for i in arguments))
        return [outs[place[k]] for k in range(len(outs))]

    return restored
