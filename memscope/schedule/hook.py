"""A pass inside XLA that puts a computation's instructions into a given order.

XLA calls a registered pass for every module that the process compiles, on whichever thread compiles it. So the
order travels by name: the module to be ordered bears a token in its own name, and the pass leaves all others alone.
The token is new for each compile, so that no executable of a persistent compilation cache has it either.

The pass must never raise (the compile would fail), return anything but bytes or None (the process would end), or
compile (it would wait for itself). Whatever goes wrong, XLA keeps its own order, and the request tells.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jax.extend.xla import PipelineStage, register_hlo_module_transformation

from .._jax_private import without_cache_writes
from ..hlo import hlo_pb2
from .remade import remade

_MARK = "_memscope_order_"
_TOKEN = re.compile(_MARK.encode() + rb"[0-9a-f]{32}")
_NAME_BYTES = 4096
"""How much of a serialized module is searched for a token: its name comes first."""


@dataclasses.dataclass(eq=False)
class Request:
    """An order that XLA is to be given, and what became of it.

    Attributes:
      token: to be part of the name of the function that is compiled.
      rank: where each instruction is to run among those of its computation, by name.
      chained: each is to wait for the one before it as well, so that XLA writes its module in that order.
      remade: the instructions to run once for each reader, by name.
      applied: the pass has put it in place.
    """

    token: str
    rank: Mapping[str, int]
    chained: bool = False
    remade: frozenset[str] = frozenset()
    applied: bool = False
    error: BaseException | None = None


class OrderError(ValueError):
    """The module to be ordered is not the one that the order was made for."""


_requests: dict[str, Request] = {}
_registering = threading.Lock()


@contextlib.contextmanager
def ordering(order: Iterable[str], chained: bool = False, remade: frozenset[str] = frozenset()) -> Iterator[Request]:
    """While it is open, this thread can compile a module in an order of its own: one named after the request's token.

    Whether that was done, the request says afterwards.

    Args:
      order: names of the instructions of every computation to be ordered, each computation's in its order.
      chained: whether XLA is to write the module in that order, too.
      remade: instructions that are to run once for each reader: the order is one of the module after that.
    """
    rank = {instruction: i for i, instruction in enumerate(order)}
    request = Request(_MARK + uuid.uuid4().hex, rank, chained, remade)
    _requests[request.token] = request
    try:
        _register()
        with without_cache_writes():
            yield request
    finally:
        del _requests[request.token]
    if isinstance(request.error, KeyboardInterrupt):
        raise request.error


@functools.cache
def _register_once() -> None:
    register_hlo_module_transformation(
        _pass, name="memscope_order", stage=PipelineStage.POST_SCHEDULER, platforms="cpu"
    )


def _register() -> None:
    with _registering:  # registered twice, the pass would run twice
        _register_once()


def _pass(serialized: bytes) -> bytes | None:
    found = _TOKEN.search(serialized, 0, _NAME_BYTES)
    request = _requests.get(found.group().decode()) if found else None
    if request is None:
        return None
    try:
        ordered = reordered(remade(serialized, request.remade), request.rank, request.chained)
        request.applied = True
        return ordered
    except BaseException as error:
        request.error = error
        return None


def reordered(serialized: bytes, rank: Mapping[str, int], chained: bool = False) -> bytes:
    """The module with the sequences of its schedule sorted by rank; a computation without ranks keeps its own.

    Unless it is chained nothing of the module is written anew: a schedule that is read after another one replaces its
    sequences.

    Raises:
      OrderError: a computation has ranks for some of its instructions only, or they contradict its data flow.
    """
    module = hlo_pb2.Module.FromString(serialized)
    change = hlo_pb2.Module()
    for computation in module.computations:
        if computation.id not in module.schedule.sequences:
            continue
        names = {i.id: i.name for i in computation.instructions}
        ranked = [name in rank for name in names.values()]
        if not any(ranked):
            continue
        if not all(ranked):
            raise OrderError(f"{computation.name} has instructions that it did not have before")
        sequence = sorted(module.schedule.sequences[computation.id].instruction_ids, key=lambda i: rank[names[i]])
        _check(computation, sequence)
        change.schedule.sequences[computation.id].instruction_ids.extend(sequence)
        if chained:
            _chain(computation, sequence)
    return (module.SerializeToString() if chained else serialized) + change.SerializeToString()


def _chain(computation: hlo_pb2.Computation, sequence: Sequence[int]) -> None:
    """Makes each instruction wait for the one before it, and stand after it, as XLA reads predecessors first."""
    by_id = {i.id: i for i in computation.instructions}
    for before, after in itertools.pairwise(sequence):
        if before not in (*by_id[after].operand_ids, *by_id[after].control_predecessor_ids):
            by_id[after].control_predecessor_ids.append(before)
    time = {instruction: t for t, instruction in enumerate(sequence)}
    computation.instructions.sort(key=lambda i: time[i.id])


def _check(computation: hlo_pb2.Computation, sequence: Sequence[int]) -> None:
    time = {instruction: t for t, instruction in enumerate(sequence)}
    for instruction in computation.instructions:
        before = (*instruction.operand_ids, *instruction.control_predecessor_ids)
        if any(time[b] >= time[instruction.id] for b in before):
            raise OrderError(f"{instruction.name} of {computation.name} would run before what it needs")
