"""A jaxpr as the body of a Python function."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax.extend import core as jex_core

from .._jax_private import scan_operands, user_line
from ..inline import inline
from ..program import is_var
from .constants import Constants
from .expr import Expr, call, packed, tuple_text, wrap
from .names import Names
from .site import Site
from .templates import TEMPLATES
from .values import InexpressibleError, default_dtype, is_key, kind_of, number, param_text, primitive_text, typed_number

Var = jex_core.Var
Eqn = jex_core.JaxprEqn
Env = dict[Var, Expr]

# Cheap enough to stand inside the expression that uses them. All are elementwise or only move axes.
FOLDABLE = frozenset(
    """
    add add_any sub mul div neg exp log log1p expm1 tanh sqrt rsqrt sin cos abs max min square integer_pow
    eq ne lt le gt ge and or xor not transpose convert_element_type broadcast_in_dim logistic squeeze
    reduce_sum reduce_max reduce_min reduce_or reduce_and dot_general
""".split()
)
FOLDED_WIDTH = 36  # longer expressions get a name of their own


class Block:
    """The lines of one function, and where in the user's code the last of them came from."""

    def __init__(self, indent: int) -> None:
        self.indent = indent
        self.lines: list[str] = []
        self._source: str | None = None

    def add(self, line: str) -> None:
        self.lines += wrap(line, self.indent)

    def at(self, source: str | None) -> None:
        """Says which of the user's lines the next statements compute."""
        if source is not None and source != self._source:
            self.lines.append(f"{' ' * self.indent}# {source}")
            self._source = source

    def gap(self) -> None:
        if self.lines and self.lines[-1]:
            self.lines.append("")

    def nested(self) -> Block:
        inner = Block(self.indent + 4)
        inner._source = self._source
        return inner


@dataclasses.dataclass(frozen=True)
class Body:
    """A jaxpr being written: who reads each var, and what stands for it."""

    closed: jex_core.ClosedJaxpr
    env: Env
    block: Block
    readers: dict[Var, list[Eqn]]
    returned: Counter[Var]
    producer: dict[Var, Eqn]

    def used(self, var: Var) -> bool:
        return bool(self.readers.get(var)) or var in self.returned


Control = Callable[["Printer", Body, Eqn], None]  # writes an eqn that holds jaxprs


@contextlib.contextmanager
def naming(eqn: Eqn) -> Iterator[None]:
    """Says which eqn it was that could not be written."""
    try:
        yield
    except InexpressibleError as error:
        line = user_line(eqn.source_info)
        raise NotImplementedError(
            f"{eqn.primitive.name}{f' ({line})' if line else ''} can't be written as Python source: {error}. "
            "Save the plan as .jaxexport instead."
        ) from error


class Printer:
    """Writes jaxprs; shares one set of names and constants across nested functions."""

    def __init__(
        self, names: Names, constants: Constants, control: Mapping[str, Control], *, x64: bool, platform: str
    ) -> None:
        self.names = names
        self.constants = constants
        self.control = control
        self.x64 = x64
        self.platform = platform

    # Functions

    def flat(self, jaxpr: Any) -> jex_core.ClosedJaxpr:
        closed = jaxpr if isinstance(jaxpr, jex_core.ClosedJaxpr) else jex_core.ClosedJaxpr(jaxpr, [])
        return inline(closed, self.platform)

    def body(self, closed: jex_core.ClosedJaxpr, inputs: Sequence[Expr], block: Block) -> Body:
        """Writes `closed`'s eqns into `block`; the caller writes the return. `closed` is flat."""
        eqns = closed.jaxpr.eqns
        readers: dict[Var, list[Eqn]] = {}
        for eqn in eqns:
            for var in (a for a in eqn.invars if is_var(a)):
                readers.setdefault(var, []).append(eqn)
        env: Env = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            env[var] = self.constants.reference(const)
        producer = {v: eqn for eqn in eqns for v in eqn.outvars}
        returned = Counter(a for a in closed.jaxpr.outvars if is_var(a))
        body = Body(closed, env, block, readers, returned, producer)
        for eqn in eqns:
            self._eqn(body, eqn)
        return body

    def results(self, body: Body) -> list[str]:
        """What the function returns, in order; a single result may be a whole expression."""
        last = body.closed.jaxpr.outvars[0] if len(body.closed.jaxpr.outvars) == 1 else None
        if last in body.producer and not body.env[last].is_name:
            body.block.at(user_line(body.producer[last].source_info))
        return [self.atom(body, a).text for a in body.closed.jaxpr.outvars]

    def parameters(self, closed: jex_core.ClosedJaxpr, variables: Sequence[Var], bases: Sequence[str]) -> list[Expr]:
        """A name for each of a nested function's own inputs; `_` for those that nothing reads."""
        read = {a for eqn in closed.jaxpr.eqns for a in eqn.invars if is_var(a)}
        read |= {a for a in closed.jaxpr.outvars if is_var(a)}
        return [
            Expr(self.names.of_primitive(base) if var in read else "_")
            for var, base in zip(variables, bases, strict=True)
        ]

    # Eqns

    def _eqn(self, body: Body, eqn: Eqn) -> None:
        if eqn.primitive.name in self.control:
            with naming(eqn):
                self.control[eqn.primitive.name](self, body, eqn)
            return
        self.plain(body, eqn)

    def plain(self, body: Body, eqn: Eqn) -> None:
        """Writes an eqn by its template: as a statement, or into the expression that reads it."""
        if eqn.primitive.name in ("name", "device_put"):
            with naming(eqn):
                self._alias(body, eqn)
            return
        expr = self._expression(body, eqn)
        if self._folds(body, eqn, expr):
            body.env[eqn.outvars[0]] = expr
            return
        self.assign(body, eqn, expr)

    def _alias(self, body: Body, eqn: Eqn) -> None:
        """Results that are the operands themselves."""
        placed = [d for d in eqn.params.get("devices", ()) if d is not None]
        if placed:
            raise InexpressibleError(f"it names a device ({placed[0]})")
        for var, atom in zip(eqn.outvars, eqn.invars, strict=True):
            expr = self.value(body, atom)
            if expr.is_name:
                body.env[var] = expr
            else:
                (target,) = self.bind_outputs(body, [var], [eqn.primitive.name])
                body.block.add(f"{target} = {expr.text}")

    def _expression(self, body: Body, eqn: Eqn) -> Expr:
        name = eqn.primitive.name
        site = Site(
            eqn,
            tuple(self._argument(body, eqn, a) for a in eqn.invars),
            tuple(self._operand(body, eqn, a) for a in eqn.invars),
            self.x64,
            any(v in body.returned for v in eqn.outvars),
        )
        with naming(eqn):
            expr = TEMPLATES[name](site) if name in TEMPLATES else None
            return self._bound(site) if expr is None else expr

    def _bound(self, site: Site) -> Expr:
        """The primitive itself, with all its parameters."""
        function = primitive_text(site.eqn.primitive)
        if function is None:
            raise InexpressibleError(f"primitive {site.eqn.primitive.name} has no public name")
        return call(f"{function}.bind", *site.args, **{k: param_text(v) for k, v in sorted(site.params.items())})

    def assign(self, body: Body, eqn: Eqn, expr: Expr, bases: Sequence[str] | None = None) -> None:
        """`a, b = expr`, under a comment that names the user's line."""
        body.block.at(user_line(eqn.source_info))
        targets = self.bind_outputs(body, eqn.outvars, bases or [eqn.primitive.name] * len(eqn.outvars))
        if not targets or (eqn.effects and set(targets) == {"_"}):
            body.block.add(expr.text)
            return
        self.unpack(body.block, targets, expr.text, listed=eqn.primitive.multiple_results)

    def unpack(self, block: Block, targets: Sequence[str], text: str, *, listed: bool) -> None:
        if listed and len(targets) == 1 and (".bind(" in text or text.startswith("lax.split(")):
            block.add(f"[{targets[0]}] = {text}")
            return
        left = ", ".join(targets)
        block.add(f"{left if len(left) < 60 else tuple_text(targets)} = {text}")

    def bind_outputs(self, body: Body, outvars: Sequence[Var], bases: Sequence[str]) -> list[str]:
        targets = []
        for var, base in zip(outvars, bases, strict=True):
            target = self.names.of_primitive(_role(body, var) or base) if body.used(var) else "_"
            body.env[var] = Expr(target)
            targets.append(target)
        return targets

    def _folds(self, body: Body, eqn: Eqn, expr: Expr) -> bool:
        if expr.is_name and len(eqn.outvars) == 1:
            return True  # an identity: the same value under the same name
        if self.is_index(body, eqn):
            return True
        var = eqn.outvars[0] if len(eqn.outvars) == 1 else None
        readers = [] if var is None else body.readers.get(var, [])
        if eqn.effects or eqn.primitive.multiple_results:
            return False
        if not readers and [var] == body.closed.jaxpr.outvars:
            return True
        if var is not None and _is_initial(body, eqn, var):
            return len(expr.text) <= FOLDED_WIDTH
        if eqn.primitive.name not in FOLDABLE or len(readers) != 1 or var in body.returned:
            return False
        here, there = user_line(eqn.source_info), user_line(readers[0].source_info)
        return self._takes_expressions(readers[0]) and here == there and len(expr.text) <= FOLDED_WIDTH

    def _takes_expressions(self, eqn: Eqn) -> bool:
        """False where an operand may be read inside a nested function, which would compute it again."""
        return eqn.primitive.name not in self.control or eqn.params.get("update_jaxpr", eqn) is None

    def is_index(self, body: Body, eqn: Eqn) -> bool:
        """True for what `lax.cond` makes of a boolean, or `lax.switch` of an index: written again, they do it again."""
        operand = {"convert_element_type": 0, "clamp": 1}.get(eqn.primitive.name)
        if operand is None or not is_var(eqn.invars[operand]) or eqn.outvars[0] in body.returned:
            return False
        source: Any = eqn.invars[operand].aval
        readers = body.readers.get(eqn.outvars[0], [])
        for reader in readers:
            if reader.primitive.name != "cond" or eqn.outvars[0] in reader.invars[1:]:
                return False
            count = len(reader.params["branches"])
            if eqn.primitive.name == "convert_element_type" and (source.dtype != bool or count != 2):
                return False
            if eqn.primitive.name == "clamp" and (
                source.dtype != "int32" or count < 3 or _bounds(eqn) != (0, count - 1)
            ):
                return False
        return bool(readers)

    # Operands

    def atom(self, body: Body, atom: Any) -> Expr:
        """`atom` with exactly its dtype and weak type, wherever it stands."""
        if is_var(atom):
            return body.env[atom]
        return self._literal(atom, plain=atom.aval.weak_type and self._is_default(atom))

    def value(self, body: Body, atom: Any) -> Expr:
        """As `atom`, but an array always: operators on two plain numbers would be Python's arithmetic."""
        if is_var(atom):
            return body.env[atom]
        plain = self.atom(body, atom)
        weak = atom.aval.weak_type and self._is_default(atom) and not plain.is_name
        return call("jnp.asarray", plain) if weak else plain

    def _argument(self, body: Body, eqn: Eqn, atom: Any) -> Expr:
        if is_var(atom):
            return body.env[atom]
        return self._literal(atom, plain=self._is_default(atom) and self._harmless(eqn, atom))

    def _operand(self, body: Body, eqn: Eqn, atom: Any) -> Expr:
        if is_var(atom):
            return body.env[atom]
        avals: list[Any] = [a.aval for a in eqn.invars if is_var(a)]
        same = any(aval.dtype == atom.aval.dtype for aval in avals)
        return self._literal(atom, plain=True) if same and self._harmless(eqn, atom) else self.value(body, atom)

    def _harmless(self, eqn: Eqn, atom: Any) -> bool:
        """True where a weakly typed number in place of `atom` leaves the result's type as it was."""
        return atom.aval.weak_type or any(is_var(a) and not getattr(a.aval, "weak_type", False) for a in eqn.invars)

    def _is_default(self, atom: Any) -> bool:
        return atom.aval.dtype == default_dtype(kind_of(atom.aval.dtype), self.x64)

    def _literal(self, atom: Any, *, plain: bool) -> Expr:
        dtype = atom.aval.dtype
        if is_key(dtype) or atom.aval.shape:
            return self.constants.reference(atom.val)
        large = kind_of(dtype) in "iu" and not -(2**31) <= int(atom.val) < 2**31
        expr = number(atom.val, dtype) if plain and not large else typed_number(atom.val, dtype)
        return self.constants.reference(atom.val) if expr is None else expr


def _bounds(clamp: Eqn) -> tuple[int, int] | None:
    operands: Any = clamp.invars
    lower, _, upper = operands
    return None if is_var(lower) or is_var(upper) else (int(lower.val), int(upper.val))


def _is_filled(eqn: Eqn) -> bool:
    """True for an array of one repeated number."""
    return eqn.primitive.name == "broadcast_in_dim" and not is_var(eqn.invars[0])


def _is_initial(body: Body, eqn: Eqn, var: Var) -> bool:
    """True where a filled array is where a loop starts from, and nothing else."""
    readers = body.readers.get(var, [])
    if not _is_filled(eqn) or len(readers) != 1 or var in body.returned:
        return False
    loop = readers[0]
    if loop.primitive.name == "scan":
        consts, _ = scan_operands(loop.params)
    elif loop.primitive.name == "while":
        consts = loop.params["cond_nconsts"] + loop.params["body_nconsts"]
    else:
        return False
    return var not in loop.invars[:consts]


def _role(body: Body, var: Var) -> str | None:
    """A better name than the primitive's, by what the value is for."""
    producer = body.producer.get(var)
    if producer is not None and _is_filled(producer):
        literal: Any = producer.invars[0]
        return None if is_key(literal.aval.dtype) else "zeros" if literal.val == 0 else "full"
    first = {"dynamic_slice": 1, "dynamic_update_slice": 2}
    readers = body.readers.get(var, [])
    if any(r.primitive.name in first and var in r.invars[first[r.primitive.name] :] for r in readers):
        return "start"
    return None


def returns(items: Sequence[str], empty: str = "()") -> str:
    text = f"return {', '.join(items) or empty}"
    return text if len(text) < 80 else f"return {packed(items)}"
