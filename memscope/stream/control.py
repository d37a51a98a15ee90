"""Axes through the bodies of `scan`, `while` and `cond`.

A loop over time whose state has a batch axis can be run one part of the batch at a time: the axis goes through
the body and comes back as the same axis of the state. What the loop sums over the batch on its way, as the
gradient of a recurrent net does with its weights, is accumulated as a share (`Share`) of the sum.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core

from .._jax_private import scan_operands
from ..axes import At, Extent, Factor, Share, Window
from ..axes.factor import shape_of
from ..program import Program, is_var, source_lines
from .needs import Needs
from .reach import axis_map, special
from .structure import Obstacle
from .tasks import Task

if TYPE_CHECKING:
    from .chunk import Chunk

Var = jex_core.Var
Eqn = jex_core.JaxprEqn
Places = dict[int, set[int]]
"""Axes by position among a body's operands or results."""


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """How the operands of a control flow eqn enter its bodies, and how the results leave them.

    Attributes:
      bodies: one for a loop, one a branch for `cond`; all take the same operands.
      operands: for each operand of the bodies, its position among the eqn's.
      stacked_ins, stacked_outs: positions that a scan slices and stacks along a leading axis.
      ties: for a carry, the position of its value after a step, by the one before.
      fixed: operands that decide how often a loop runs, and so are needed whole.
      condition: of a `while`; where its result has axes (`lanes` of them, in front, as in every part of the state),
        each row stops by itself, as under `vmap`.
    """

    bodies: tuple[Program, ...]
    operands: tuple[int, ...]
    stacked_ins: frozenset[int] = frozenset()
    stacked_outs: frozenset[int] = frozenset()
    ties: Mapping[int, int] = dataclasses.field(default_factory=dict)
    fixed: frozenset[int] = frozenset()
    condition: Program | None = None

    @property
    def lanes(self) -> int:
        return 0 if self.condition is None else len(shape_of(self.condition.jaxpr.outvars[0]))


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """One factor through the bodies.

    Attributes:
      ins, outs: how much of each operand and result of a body one chunk has.
      tasks: for each body, what it computes of it.
      test: what a condition with lanes computes, `given` so much of its operands.
    """

    frame: Frame
    factor: Factor
    ins: tuple[Extent, ...]
    outs: tuple[Extent, ...]
    tasks: tuple[tuple[Task, ...], ...]
    test: tuple[Task, ...] = ()
    given: tuple[Extent, ...] = ()


@functools.lru_cache(maxsize=512)
def body_program(closed: jex_core.ClosedJaxpr) -> Program:
    """The body of a loop or branch as a program of its own."""
    tree = jax.tree.structure(tuple(closed.jaxpr.invars))
    return Program(
        name="body",
        closed=closed,
        in_tree=tree,
        out_tree=tree,
        sources=source_lines(closed),
        argument_names=("",) * len(closed.jaxpr.invars),
        donated=(False,) * len(closed.jaxpr.invars),
        x64=False,
    )


def frame_of(eqn: Eqn) -> Frame:
    """How an eqn of `FRAMES` calls its bodies."""
    return FRAMES[eqn.primitive.name](eqn)


def _scan_frame(eqn: Eqn) -> Frame:
    body = body_program(eqn.params["jaxpr"])
    consts, carries = scan_operands(eqn.params)
    return Frame(
        bodies=(body,),
        operands=tuple(range(len(eqn.invars))),
        stacked_ins=frozenset(range(consts + carries, len(eqn.invars))),
        stacked_outs=frozenset(range(carries, len(eqn.outvars))),
        ties={consts + i: i for i in range(carries)},
    )


def _while_frame(eqn: Eqn) -> Frame:
    body = body_program(eqn.params["body_jaxpr"])
    condition = body_program(eqn.params["cond_jaxpr"])
    before, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    read = {
        consts + i
        for i, v in enumerate(condition.jaxpr.invars[before:])
        if v in condition.consumers or v in condition.outputs
    }
    return Frame(
        bodies=(body,),
        operands=tuple(range(before, len(eqn.invars))),
        ties={consts + i: i for i in range(len(eqn.outvars))},
        fixed=frozenset(read),
        condition=condition,
    )


def _cond_frame(eqn: Eqn) -> Frame:
    return Frame(
        bodies=tuple(body_program(b) for b in eqn.params["branches"]), operands=tuple(range(1, len(eqn.invars)))
    )


FRAMES: dict[str, Callable[[Eqn], Frame]] = {"scan": _scan_frame, "while": _while_frame, "cond": _cond_frame}


@special("scan", "while", "cond")
def control_factors(program: Program, index: int) -> tuple[Factor, ...]:
    """The factors of a control flow eqn: the axes that go through its bodies, and the steps of a scan."""
    eqn = program.eqns[index]
    if eqn.effects:
        return ()
    return (*_time_factors(eqn), *(flow.factor for flow in flows(program, index)))


def _time_factors(eqn: Eqn) -> list[Factor]:
    """`t -> t`: the steps of a scan, in their order where it carries something from one to the next."""
    if eqn.primitive.name != "scan" or not eqn.params["length"]:
        return []
    frame = frame_of(eqn)
    ins = tuple(At(0) if i in frame.stacked_ins else None for i in range(len(eqn.invars)))
    outs = tuple(At(0) if i in frame.stacked_outs else None for i in range(len(eqn.outvars)))
    order = "reverse" if eqn.params["reverse"] else "forward"
    return [Factor(eqn.params["length"], ins, outs, carried=order if frame.ties else None)]


def is_over_time(eqn: Eqn, factor: Factor) -> bool:
    """True for the factor that is the steps of a scan."""
    return eqn.primitive.name == "scan" and factor in _time_factors(eqn)


@functools.lru_cache(maxsize=512)
def flows(program: Program, index: int) -> tuple[Flow, ...]:
    """Every axis that goes through the bodies of an eqn."""
    eqn = program.eqns[index]
    frame = frame_of(eqn)
    found: dict[Factor, Flow] = {}
    for ins, outs in _classes(frame):
        flow = _flow(eqn, frame, ins, outs)
        if flow is not None:
            found.setdefault(flow.factor, flow)
    return tuple(found.values())


def flow_of(program: Program, task: Task) -> Flow:
    """The flow behind a task of a control flow eqn."""
    return next(flow for flow in flows(program, task.eqn) if flow.factor == task.factor)


# Which axes of the operands and results belong together.


def _classes(frame: Frame) -> list[tuple[Places, Places]]:
    first = frame.bodies[0].jaxpr
    seen: set[tuple[bool, int, int]] = set()
    classes = []
    for is_in, atoms in ((False, first.outvars), (True, first.invars)):
        for position, atom in enumerate(atoms):
            for axis, size in enumerate(shape_of(atom)):
                if size > 1 and (is_in, position, axis) not in seen:
                    joined = _joined(frame, (is_in, position, axis))
                    seen |= joined
                    classes.append((_places(joined, True), _places(joined, False)))
    return classes


def _places(joined: set[tuple[bool, int, int]], ins: bool) -> Places:
    places: Places = {}
    for is_in, position, axis in joined:
        if is_in is ins:
            places.setdefault(position, set()).add(axis)
    return places


def _joined(frame: Frame, seed: tuple[bool, int, int]) -> set[tuple[bool, int, int]]:
    """The operands' and results' axes that one factor after another connects to the seed, carries included."""
    back = {out: i for i, out in frame.ties.items()}
    joined = {seed}
    pending = [seed]
    while pending:
        is_in, position, axis = pending.pop()
        partner = frame.ties.get(position) if is_in else back.get(position)
        near = set() if partner is None else {(not is_in, partner, axis)}
        if axis < frame.lanes and (is_in is False or position in frame.ties):
            near |= {(True, carry, axis) for carry in frame.ties}
        for body in frame.bodies:
            near |= _reached(body, is_in, position, axis)
        for place in near - joined:
            joined.add(place)
            # An operand that is no carry is not passed: two values that only share it need not go together.
            if not place[0] or place[1] in frame.ties:
                pending.append(place)
    return joined


def _reached(body: Program, is_in: bool, position: int, axis: int) -> set[tuple[bool, int, int]]:
    atom = (body.jaxpr.invars if is_in else body.jaxpr.outvars)[position]
    if not is_var(atom):
        return set()
    reached = axis_map(body).reach((atom, axis), through=atom)
    return {
        (side, i, a)
        for side, atoms in ((True, body.jaxpr.invars), (False, body.jaxpr.outvars))
        for i, v in enumerate(atoms)
        if is_var(v)
        for a in reached.get(v, ())
    }


# Whether, and how, a class can be computed part by part.


def _flow(eqn: Eqn, frame: Frame, ins: Places, outs: Places) -> Flow | None:
    jaxpr = frame.bodies[0].jaxpr
    sizes = [
        *(shape_of(jaxpr.outvars[p])[min(axes)] for p, axes in outs.items()),
        *(shape_of(jaxpr.invars[p])[min(axes)] for p, axes in ins.items()),
    ]
    size = min(sizes)
    extents: list[Extent] = [None] * len(jaxpr.outvars)
    for position, axes in outs.items():
        axis = min(axes)
        length = shape_of(jaxpr.outvars[position])[axis]
        if length % size:
            return None
        extents[position] = Window(axis, length // size)
    flow = _settled(eqn, frame, size, extents, Share(size))
    if flow is None and not outs:
        # Everything can be had whole, so that nothing would be cut: sum up whatever can be summed up.
        flow = _settled(eqn, frame, size, [Share(size)] * len(extents), None)
    return flow


def _settled(eqn: Eqn, frame: Frame, size: int, extents: list[Extent], instead: Share | None) -> Flow | None:
    needs = _settle(frame, extents, instead)
    return None if needs is None else _read_off(eqn, frame, size, extents, needs)


def _settle(frame: Frame, extents: list[Extent], instead: Share | None) -> list[Needs] | None:
    """Turns results that can't be had as they are (whole, or a share) into the other, until all can be had.

    None where some can't.
    """
    while True:
        if any(not _may_be(frame, extents[frame.ties[p]]) for p in frame.fixed):
            return None
        needs = [_body_needs(frame, body, extents) for body in frame.bodies]
        short = [p for p, extent in enumerate(extents) if not _available(frame, needs, p, extent)]
        if not short:
            return needs
        if any(isinstance(extents[p], Window) or extents[p] == instead for p in short):
            return None
        for p in short:
            extents[p] = instead


def _may_be(frame: Frame, extent: Extent) -> bool:
    """Whether what a condition reads may be had so."""
    return extent is None or (isinstance(extent, Window) and extent.axis < frame.lanes)


def _available(frame: Frame, needs: Sequence[Needs], position: int, extent: Extent) -> bool:
    for body, need in zip(frame.bodies, needs, strict=True):
        atom = body.jaxpr.outvars[position]
        if is_var(atom) and need.verdict((atom, extent)) is not None:
            return False
    return True


def _body_needs(frame: Frame, body: Program, extents: Sequence[Extent]) -> Needs:
    """The needs of a body, in which a carry can be had as its results of the step before are, and no other way."""
    given = {body.jaxpr.invars[i]: extents[out] for i, out in frame.ties.items()}

    def refusal(demand: tuple[Var, Extent]) -> Obstacle | None:
        var, extent = demand
        if given.get(var) is None or extent == given[var]:
            return None
        return Obstacle(var, 0, "a step needs the state of the step before in another way")

    return Needs(body, lambda v: v in body.producer, refusal)


def _read_off(eqn: Eqn, frame: Frame, size: int, extents: list[Extent], needs: Sequence[Needs]) -> Flow | None:
    tasks = []
    asked: dict[int, set[Extent]] = {}
    for body, need in zip(frame.bodies, needs, strict=True):
        demands = [(v, e) for v, e in zip(body.jaxpr.outvars, extents, strict=True) if is_var(v)]
        tasks.append(tuple(need.closure(demands)))
        for position, extent in _asked(body, tasks[-1], demands):
            asked.setdefault(position, set()).add(extent)
    ins: list[Extent] = []
    for position in range(len(frame.operands)):
        tie = frame.ties.get(position)
        ins.append(extents[tie] if tie is not None else _single(asked.get(position, set())))
    at_ins: list[At | Share | None] = [None] * len(eqn.invars)
    for position, extent in enumerate(ins):
        at_ins[frame.operands[position]] = _at(extent, position in frame.stacked_ins)
    flow = Flow(frame, Factor(size, (), ()), tuple(ins), tuple(extents), tuple(tasks))
    if frame.lanes:
        tested = _tested(flow)
        if tested is None:
            return None
        flow = tested
        at_ins[: len(flow.given) - len(extents)] = [_at(e, False) for e in flow.given[: len(flow.given) - len(extents)]]
    at_outs = tuple(_at(e, p in frame.stacked_outs) for p, e in enumerate(extents))
    if not any(isinstance(at, At) for at in (*at_ins, *at_outs)):
        return None
    return dataclasses.replace(flow, factor=Factor(size, tuple(at_ins), at_outs))


def _asked(body: Program, tasks: Sequence[Task], demands: Sequence[tuple[Var, Extent]]) -> list[tuple[int, Extent]]:
    """How much is read of each operand of a body."""
    reads = [(a, e) for task in tasks for a, e in task.reads(body)]
    return [(i, e) for i, var in enumerate(body.jaxpr.invars) for a, e in (*reads, *demands) if a is var]


def _tested(flow: Flow) -> Flow | None:
    """The flow with what its condition computes for the rows of a chunk; None where it can't."""
    frame, condition = flow.frame, flow.frame.condition
    axes = {e.axis for e in flow.outs if isinstance(e, Window) and e.axis < frame.lanes}
    if condition is None or not axes:
        return None if axes else flow
    states = dict(zip(condition.jaxpr.invars[-len(flow.outs) :], flow.outs, strict=True))

    def refusal(demand: tuple[Var, Extent]) -> Obstacle | None:
        var, extent = demand
        if states.get(var) is None or extent == states[var]:
            return None
        return Obstacle(var, 0, "the condition needs the state in another way")

    needs = Needs(condition, lambda v: v in condition.producer, refusal)
    result = condition.jaxpr.outvars[0]
    if len(axes) > 1 or not is_var(result):
        return None
    demand: tuple[Var, Extent] = (result, Window(axes.pop()))
    if needs.verdict(demand) is not None:
        return None
    test = tuple(needs.closure([demand]))
    asked: dict[int, set[Extent]] = {}
    for position, extent in _asked(condition, test, [demand]):
        asked.setdefault(position, set()).add(extent)
    consts = len(condition.jaxpr.invars) - len(flow.outs)
    given = (*(_single(asked.get(i, set())) for i in range(consts)), *flow.outs)
    return dataclasses.replace(flow, test=test, given=given)


def _single(extents: set[Extent]) -> Extent:
    """The one window that is asked for; None where it takes more than that."""
    (extent,) = extents if len(extents) == 1 else (None,)
    return extent if isinstance(extent, Window) and extent.shift == extent.extra == 0 else None


def _at(extent: Extent, stacked: bool) -> At | Share | None:
    return At(extent.axis + stacked, extent.scale) if isinstance(extent, Window) else extent


# Running a part of a control flow eqn.


def run_flow(chunk: Chunk, task: Task, values: Sequence[Any]) -> list[Any]:
    """The results of a control flow eqn for the steps of one chunk."""
    eqn = chunk.program.eqns[task.eqn]
    flow = flow_of(chunk.program, task)

    def inside(program: Program, given: Sequence[Extent], values: Sequence[Any], tasks: Sequence[Task]) -> Chunk:
        inner = chunk.inside(program, flow.factor.size, task)
        inner.take(zip(program.jaxpr.invars, given, values, strict=True))
        for each in tasks:
            inner.run(each)
        return inner

    def body(which: int, values: Sequence[Any]) -> list[Any]:
        program = flow.frame.bodies[which]
        inner = inside(program, flow.ins, values, flow.tasks[which])
        return [inner.read(atom, extent) for atom, extent in zip(program.jaxpr.outvars, flow.outs, strict=True)]

    def test(values: Sequence[Any]) -> Any:
        condition = flow.frame.condition
        assert condition is not None
        axis = next(e.axis for e in flow.outs if isinstance(e, Window))
        return inside(condition, flow.given, values, flow.test).read(condition.jaxpr.outvars[0], Window(axis))

    if flow.test:
        return _run_lanes(eqn, values, test, body)
    return RUNNERS[eqn.primitive.name](eqn, values, body)


def _run_lanes(
    eqn: Eqn, values: Sequence[Any], test: Callable[[Sequence[Any]], Any], body: Callable[..., list[Any]]
) -> list[Any]:
    """A `while` whose rows stop by themselves: it runs until all have, and rows that have stopped stay as they are."""
    before, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    tested, fixed, init = values[:before], values[before : before + consts], values[before + consts :]

    def step(state: Any) -> Any:
        goes_on = test([*tested, *state])
        return [_where(goes_on, new, old) for new, old in zip(body(0, [*fixed, *state]), state, strict=True)]

    return list(lax.while_loop(lambda state: jnp.any(test([*tested, *state])), step, list(init)))


def _where(rows: Any, new: Any, old: Any) -> Any:
    """`new` in the rows that are true, which lie along the leading axes."""
    return jnp.where(lax.broadcast_in_dim(rows, new.shape, range(rows.ndim)), new, old)


def _run_scan(eqn: Eqn, values: Sequence[Any], body: Callable[..., list[Any]]) -> list[Any]:
    consts, carries = scan_operands(eqn.params)
    fixed, init, xs = values[:consts], values[consts : consts + carries], values[consts + carries :]

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = body(0, [*fixed, *carry, *x])
        return outs[:carries], outs[carries:]

    params = eqn.params
    last, stacked = lax.scan(
        step, list(init), list(xs), length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*last, *stacked]


def _run_while(eqn: Eqn, values: Sequence[Any], body: Callable[..., list[Any]]) -> list[Any]:
    before, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    condition = jex_core.jaxpr_as_fun(eqn.params["cond_jaxpr"])
    if eqn.params["cond_jaxpr"].out_avals[0].shape:
        return _run_lanes(eqn, values, lambda given: condition(*given)[0], body)
    fixed, init = values[before : before + consts], values[before + consts :]
    return list(
        lax.while_loop(
            lambda carry: condition(*values[:before], *carry)[0], lambda carry: body(0, [*fixed, *carry]), list(init)
        )
    )


def _run_cond(eqn: Eqn, values: Sequence[Any], body: Callable[..., list[Any]]) -> list[Any]:
    index, *operands = values
    branches = [
        functools.partial(lambda which, *ops: body(which, ops), which) for which in range(len(eqn.params["branches"]))
    ]
    return list(lax.switch(index, branches, *operands))


RUNNERS: dict[str, Callable[[Eqn, Sequence[Any], Callable[..., list[Any]]], list[Any]]] = {
    "scan": _run_scan,
    "while": _run_while,
    "cond": _run_cond,
}
