"""Primitives that hold jaxprs: loops, branches, and reductions by a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core as jex_core

from .._jax_private import scan_operands, user_line
from ..program import is_var
from .expr import Expr, call, packed, tuple_text
from .printer import Block, Body, Control, Eqn, Printer, returns
from .values import InexpressibleError, kind_of, mesh_text, param_text, spec_text

Closed = jex_core.ClosedJaxpr


def _carry_bases(closed: Closed, outvars: Sequence[Any]) -> list[str]:
    """What a loop's state is to be called, by what each trip makes of it."""
    produced = {v: eqn.primitive.name for eqn in closed.jaxpr.eqns for v in eqn.outvars}
    roles = {
        "dynamic_update_slice": "out",
        "add": "total",
        "add_any": "total",
        "max": "best",
        "min": "least",
        "scatter-add": "total",
        "mul": "prod",
    }
    return [roles.get(produced.get(v, ""), "state") if is_var(v) else "state" for v in outvars]


def _parameter(block: Block, printer: Printer, items: Sequence[Expr], base: str) -> str:
    """The parameter that stands for `items`, unpacked on a line of its own where they are several."""
    texts = [item.text for item in items]
    if len(texts) == 1:
        return texts[0]
    if set(texts) <= {"_"}:
        return "_"
    name = printer.names.numbered(base)
    block.add(f"{', '.join(texts) if len(', '.join(texts)) < 60 else tuple_text(texts)} = {name}")
    return name


def _signature(names: Sequence[str]) -> str:
    """Parameters joined; Python allows `_` once only."""
    return ", ".join("_" * (names[: i + 1].count("_")) if n == "_" else n for i, n in enumerate(names))


def _define(printer: Printer, outer: Block, name: str, parameters: Sequence[str], inner: Block) -> None:
    outer.add(f"def {name}({_signature(list(parameters))}):")
    outer.lines += inner.lines
    outer.gap()


def _closed_over(printer: Printer, body: Body, atoms: Sequence[Any]) -> list[Expr]:
    """What a nested function reads from around it."""
    return [printer.value(body, atom) for atom in atoms]


def _scan(printer: Printer, body: Body, eqn: Eqn) -> None:
    p = eqn.params
    consts, carry = scan_operands(p)
    closed = printer.flat(p["jaxpr"])
    if len(eqn.invars) == consts + carry == consts + len(eqn.outvars) and carry:
        increment = _counter(printer, body, eqn, closed)
        if increment is not None:
            _fori(printer, body, eqn, closed, increment)
            return
    atoms = [printer.atom(body, a) for a in eqn.invars]
    bases = _carry_bases(closed, closed.jaxpr.outvars[:carry])
    xs = len(eqn.invars) - consts - carry
    own = printer.parameters(closed, closed.jaxpr.invars[consts:], [*bases, *["x"] * xs])
    inner = body.block.nested()
    parameters = [_parameter(inner, printer, own[:carry], "carry") if carry else "_"]
    parameters.append(_parameter(inner, printer, own[carry:], "xs") if xs else "_")
    written = printer.body(closed, [*_closed_over(printer, body, eqn.invars[:consts]), *own], inner)
    results = printer.results(written)
    inner.add(f"return {packed(results[:carry], 'None')}, {packed(results[carry:], 'None')}")
    name = printer.names.numbered("step")
    _at(body, eqn)
    _define(printer, body.block, name, parameters, inner)
    texts = [a.text for a in atoms[consts:]]
    expr = call(
        "lax.scan",
        name,
        packed(texts[:carry], "None"),
        packed(texts[carry:], "None"),
        length=None if xs else param_text(p["length"]),
        reverse="True" if p["reverse"] else None,
        unroll=None if p["unroll"] == 1 else param_text(p["unroll"]),
        _split_transpose="True" if p.get("_split_transpose") else None,
    )
    ys = ["stacked"] * (len(eqn.outvars) - carry)
    targets = printer.bind_outputs(body, eqn.outvars, [*bases, *ys])
    left = f"{packed(targets[:carry], '_')}, {packed(targets[carry:], '_')}"
    body.block.add(f"{left if len(left) < 60 else f'({left})'} = {expr.text}")


def _counter(printer: Printer, body: Body, eqn: Eqn, closed: Closed) -> Eqn | None:
    """The eqn that counts trips, where this scan is a `fori_loop` with static bounds."""
    consts, _ = scan_operands(eqn.params)
    start: Any = eqn.invars[consts]
    counter, stepped = closed.jaxpr.invars[consts], closed.jaxpr.outvars[0]
    if is_var(start) or not is_var(stepped) or kind_of(start.aval.dtype) != "i" or start.aval.shape:
        return None
    if body.used(eqn.outvars[0]) or start.aval.dtype != ("int64" if printer.x64 else "int32"):
        return None
    for step in closed.jaxpr.eqns:
        if stepped in step.outvars:
            one = step.primitive.name == "add" and not is_var(step.invars[1]) and int(step.invars[1].val) == 1
            return step if one and step.invars[0] is counter else None
    return None


def _fori(printer: Printer, body: Body, eqn: Eqn, closed: Closed, increment: Eqn) -> None:
    consts, _ = scan_operands(eqn.params)
    stepped, *outvars = closed.jaxpr.outvars
    jaxpr = closed.jaxpr.replace(outvars=outvars, eqns=[e for e in closed.jaxpr.eqns if e is not increment])
    if any(stepped in e.invars for e in jaxpr.eqns) or stepped in outvars:
        jaxpr = closed.jaxpr.replace(outvars=outvars)  # the body reads the next trip's number as well
    trimmed = Closed(jaxpr, closed.consts)
    atoms = [printer.atom(body, a) for a in eqn.invars]
    bases = _carry_bases(trimmed, outvars)
    own = printer.parameters(trimmed, jaxpr.invars[consts:], ["i", *bases])
    inner = body.block.nested()
    carry = _parameter(inner, printer, own[1:], "carry") if outvars else "_"
    written = printer.body(trimmed, [*_closed_over(printer, body, eqn.invars[:consts]), *own], inner)
    inner.add(returns(printer.results(written)))
    name = printer.names.numbered("body")
    _at(body, eqn)
    _define(printer, body.block, name, [own[0].text, carry], inner)
    first: Any = eqn.invars[consts]  # a literal: `_counter` has looked
    lower = int(first.val)
    expr = call(
        "lax.fori_loop",
        str(lower),
        str(lower + int(eqn.params["length"])),
        name,
        packed([a.text for a in atoms[consts + 1 :]]),
        unroll=None if eqn.params["unroll"] == 1 else param_text(eqn.params["unroll"]),
    )
    targets = printer.bind_outputs(body, eqn.outvars[1:], bases)
    if targets:
        printer.unpack(body.block, targets, expr.text, listed=False)
    else:
        body.block.add(expr.text)


def _while(printer: Printer, body: Body, eqn: Eqn) -> None:
    p = eqn.params
    atoms = [printer.atom(body, a) for a in eqn.invars]
    n_cond, n_body = p["cond_nconsts"], p["body_nconsts"]
    state = atoms[n_cond + n_body :]
    test, step = printer.flat(p["cond_jaxpr"]), printer.flat(p["body_jaxpr"])
    bases = _carry_bases(step, step.jaxpr.outvars)
    _at(body, eqn)
    names = []
    free = _closed_over(printer, body, eqn.invars[: n_cond + n_body])
    for closed, consts, base in ((test, free[:n_cond], "keep_going"), (step, free[n_cond:], "body")):
        own = printer.parameters(closed, closed.jaxpr.invars[len(consts) :], bases)
        inner = body.block.nested()
        carry = _parameter(inner, printer, own, "carry") if own else "_"
        written = printer.body(closed, [*consts, *own], inner)
        inner.add(returns(printer.results(written)))
        names.append(printer.names.numbered(base))
        _define(printer, body.block, names[-1], [carry], inner)
    expr = call("lax.while_loop", *names, packed([a.text for a in state]))
    targets = printer.bind_outputs(body, eqn.outvars, bases)
    printer.unpack(body.block, targets or ["_"], expr.text, listed=False)


def _cond(printer: Printer, body: Body, eqn: Eqn) -> None:
    index: Any = eqn.invars[0]
    atoms = _closed_over(printer, body, eqn.invars[1:])
    names = []
    _at(body, eqn)
    for branch in eqn.params["branches"]:
        closed = printer.flat(branch)
        inner = body.block.nested()
        written = printer.body(closed, atoms, inner)
        inner.add(returns(printer.results(written)))
        names.append(printer.names.numbered("branch"))
        _define(printer, body.block, names[-1], [], inner)
    targets = printer.bind_outputs(body, eqn.outvars, ["cond"] * len(eqn.outvars))
    if len(names) == 2:
        expr = call("lax.cond", _predicate(printer, body, index), names[1], names[0])
    else:
        clamp = body.producer.get(index) if is_var(index) else None
        plain = clamp.invars[1] if clamp is not None and printer.is_index(body, clamp) else index
        expr = call("lax.switch", printer.atom(body, plain), tuple_text(names))
    if targets:
        printer.unpack(body.block, targets, expr.text, listed=False)
    else:
        body.block.add(expr.text)


def _predicate(printer: Printer, body: Body, index: Any) -> str:
    """What `index` was converted from, where that is a boolean: `lax.cond` converts it again."""
    producer = body.producer.get(index) if is_var(index) else None
    if producer is not None and printer.is_index(body, producer):
        return printer.atom(body, producer.invars[0]).text
    return printer.atom(body, index).at(1) + " != 0" if is_var(index) else f"{bool(index.val)}"


def _function(printer: Printer, body: Body, jaxpr: Any, base: str) -> str:
    """A nested function of all of `jaxpr`'s inputs; its name."""
    closed = printer.flat(jaxpr)
    own = printer.parameters(closed, closed.jaxpr.invars, ["x"] * len(closed.jaxpr.invars))
    inner = body.block.nested()
    written = printer.body(closed, own, inner)
    inner.add(returns(printer.results(written)))
    name = printer.names.numbered(base)
    _define(printer, body.block, name, [o.text for o in own], inner)
    return name


def _halves(printer: Printer, body: Body, jaxpr: Any, operands: int, base: str) -> str:
    """A nested function of two groups of operands, as `lax.reduce` calls it; its name."""
    if operands == 1:
        return _function(printer, body, jaxpr, base)
    closed = printer.flat(jaxpr)
    own = printer.parameters(closed, closed.jaxpr.invars, ["x"] * len(closed.jaxpr.invars))
    inner = body.block.nested()
    parameters = [_parameter(inner, printer, half, "xs") for half in (own[:operands], own[operands:])]
    written = printer.body(closed, own, inner)
    inner.add(returns(printer.results(written)))
    name = printer.names.numbered(base)
    _define(printer, body.block, name, parameters, inner)
    return name


def _reduce(printer: Printer, body: Body, eqn: Eqn) -> None:
    n = len(eqn.invars) // 2
    _at(body, eqn)
    combine = _halves(printer, body, eqn.params["jaxpr"], n, "combine")
    texts = [printer.atom(body, a).text for a in eqn.invars]
    operands, inits = packed(texts[:n]), packed(texts[n:])
    expr = call("lax.reduce", operands, inits, combine, param_text(eqn.params["dimensions"]))
    printer.unpack(body.block, printer.bind_outputs(body, eqn.outvars, ["reduced"] * n), expr.text, listed=False)


def _reduce_window(printer: Printer, body: Body, eqn: Eqn) -> None:
    n, p = len(eqn.invars) // 2, eqn.params
    _at(body, eqn)
    combine = _halves(printer, body, Closed(p["jaxpr"], p["consts"]), n, "combine")
    texts = [printer.atom(body, a).text for a in eqn.invars]
    options = "window_dimensions window_strides padding base_dilation window_dilation".split()
    keywords = {name: param_text(p[name]) for name in options}
    expr = call("lax.reduce_window", packed(texts[:n]), packed(texts[n:]), combine, **keywords)
    printer.unpack(body.block, printer.bind_outputs(body, eqn.outvars, ["reduced"] * n), expr.text, listed=False)


def _scatter(printer: Printer, body: Body, eqn: Eqn) -> None:
    """A plain scatter, or `scatter_apply`: one whose update is a function of the old value."""
    p = eqn.params
    if p["update_jaxpr"] is None:
        printer.plain(body, eqn)
        return
    closed = printer.flat(Closed(p["update_jaxpr"], p["update_consts"]))
    old, new = closed.jaxpr.invars
    if any(new in e.invars for e in closed.jaxpr.eqns):
        raise InexpressibleError("an update of its own")
    _at(body, eqn)
    own = printer.parameters(closed, [old], ["x"])
    inner = body.block.nested()
    inner.add(returns(printer.results(printer.body(closed, [*own, Expr("_")], inner))))
    name = printer.names.numbered("update")
    _define(printer, body.block, name, [own[0].text], inner)
    operand, indices, updates = eqn.invars
    shape: Any = updates.aval
    expr = call(
        "lax.scatter_apply",
        printer.atom(body, operand),
        printer.atom(body, indices),
        name,
        param_text(p["dimension_numbers"]),
        update_shape=param_text(shape.shape),
        indices_are_sorted=param_text(p["indices_are_sorted"]),
        unique_indices=param_text(p["unique_indices"]),
        mode=param_text(p["mode"]),
    )
    printer.assign(body, eqn, expr)


def _shard_map(printer: Printer, body: Body, eqn: Eqn) -> None:
    p = eqn.params
    atoms = [printer.atom(body, a) for a in eqn.invars]
    _at(body, eqn)
    name = _function(printer, body, p["jaxpr"], "shard")
    if len(p["out_specs"]) == 1:
        outs = spec_text(p["out_specs"][0])
    else:
        outs = tuple_text([spec_text(s) for s in p["out_specs"]])
    function = call(
        "jax.shard_map",
        name,
        mesh=mesh_text(p["mesh"]),
        in_specs=tuple_text([spec_text(s) for s in p["in_specs"]]),
        out_specs=outs,
        axis_names="{" + ", ".join(param_text(a) for a in sorted(p["newly_manual_axes"])) + "}",
        check_vma=None if p["check_vma"] else "False",
    )
    mapped = printer.names.numbered("sharded")
    body.block.add(f"{mapped} = {function.text}")
    targets = printer.bind_outputs(body, eqn.outvars, ["part"] * len(eqn.outvars))
    printer.unpack(body.block, targets, call(mapped, *atoms).text, listed=False)


def _at(body: Body, eqn: Eqn) -> None:
    body.block.gap()
    body.block.at(user_line(eqn.source_info))


CONTROL: dict[str, Control] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "scatter": _scatter,
    "shard_map": _shard_map,
}
