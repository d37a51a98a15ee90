"""Estimates for the search: the temporaries and the time of a jaxpr, without compiling it.

Never shown as a fact: XLA confirms what the search picks. The temporaries are a liveness count that knows
which values XLA fuses away; the time is a roofline with the rates of a `Machine`, which depend on how large an
array is, as that decides which cache it lives in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from jax.extend import core as jex_core

from ._jax_private import scan_operands
from .axes.elementwise import ELEMENTWISE
from .axes.factor import shape_of
from .axes.reduction import COMBINERS
from .machine import CPU, HASH_OPERATIONS, Machine
from .program import Atom, is_var, nbytes

Var = jex_core.Var
Eqn = jex_core.JaxprEqn
Jaxpr = jex_core.Jaxpr

VIEWS = frozenset("reshape squeeze expand_dims stop_gradient copy".split())
"""No bytes of their own where the operand has some."""

MOVES = frozenset("broadcast_in_dim iota transpose slice pad rev convert_element_type concatenate".split())
CHEAP = frozenset(ELEMENTWISE) | VIEWS | MOVES
EXPENSIVE = frozenset(
    "acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma erf erf_inv erfc exp exp2 "
    "expm1 igamma igammac lgamma log log1p log2 logistic polygamma pow rsqrt sin sinh sqrt tan tanh zeta div "
    "rem".split()
)
FUSIBLE = CHEAP | {"dynamic_slice", "gather"}
ABSORBING = FUSIBLE | frozenset(COMBINERS) | {"dynamic_update_slice"}

WHILE_TRIPS = 10.0
"""A guess: how often a `while` loop runs is known when it has run."""

PACKED_DEPTH, PACKED_FROM = 640, 96
"""How deep the panels that a dot copies its operands into are at most, and from how many rows it makes any."""

NARROW_ROWS, NARROW_DEPTH = range(2, 8), 96
"""A deep dot of so few rows packs its other operand whole and took five to fourteen times as long a row."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a jaxpr would take.

    Attributes:
      temp_bytes: peak of the temporaries, arguments and results left out.
      seconds: predicted time.
      work: arithmetic operations, each loop's body times its trips.
      packing_bytes: what the largest dot rearranges of its operands, which XLA CPU does not account for.
      live: the vars alive at the peak with their bytes, largest first (of the outermost jaxpr).
    """

    temp_bytes: int
    seconds: float
    work: float
    packing_bytes: int = 0
    live: tuple[tuple[Var, int], ...] = ()


def estimate(closed: jex_core.ClosedJaxpr, machine: Machine = CPU) -> Estimate:
    """The estimate of a whole program on a machine."""
    return _Walk(closed.jaxpr, machine, outermost=True).estimate()


def _estimate_body(jaxpr: Jaxpr | jex_core.ClosedJaxpr, machine: Machine) -> Estimate:
    inner = jaxpr.jaxpr if isinstance(jaxpr, jex_core.ClosedJaxpr) else jaxpr
    return _Walk(inner, machine, outermost=False).estimate()


class _Walk:
    """One jaxpr, walked once."""

    def __init__(self, jaxpr: Jaxpr, machine: Machine, outermost: bool) -> None:
        self.jaxpr = jaxpr
        self.machine = machine
        self.fresh = machine.fresh_byte if outermost else 0.0
        self.eqns = jaxpr.eqns
        self.outside = {v for v in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars) if is_var(v)}
        self.readers: dict[Var, list[int]] = {}
        for i, eqn in enumerate(self.eqns):
            for v in dict.fromkeys(a for a in eqn.invars if is_var(a)):
                self.readers.setdefault(v, []).append(i)
        self.fused = self._fused_away()

    def estimate(self) -> Estimate:
        peak, live_at_peak = self._liveness()
        inner = [_inner(eqn, self.machine) for eqn in self.eqns]
        seconds = sum(self._seconds(eqn, body) for eqn, body in zip(self.eqns, inner, strict=True))
        work = sum(_work(eqn, body) for eqn, body in zip(self.eqns, inner, strict=True))
        live = tuple(sorted(live_at_peak.items(), key=lambda item: -item[1]))
        packing = 0
        if self.machine.packs:
            packing = max((_packing(eqn, body) for eqn, body in zip(self.eqns, inner, strict=True)), default=0)
        return Estimate(peak, seconds, work, packing, live)

    # Which values XLA never writes down.

    def _fused_away(self) -> frozenset[Var]:
        """Values computed inside the fusion of whoever reads them.

        A cheap value is computed again by each reader; an expensive one vanishes only into a single fusion.
        """
        fused: set[Var] = set()
        root: dict[Var, Var | None] = {}
        for eqn in reversed(self.eqns):
            for var in eqn.outvars:
                homes = {root.get(v, v) for i in self.readers.get(var, ()) for v in self.eqns[i].outvars[:1]}
                if self._may_vanish(eqn, var) and (len(homes) <= 1 or eqn.primitive.name not in EXPENSIVE):
                    fused.add(var)
                    root[var] = next(iter(homes)) if len(homes) == 1 else None
        return frozenset(fused)

    def _may_vanish(self, eqn: Eqn, var: Var) -> bool:
        if _is_view(eqn):
            return var not in self.outside
        if var in self.outside or eqn.primitive.name not in FUSIBLE or eqn.effects:
            return False
        return all(self._absorbs(self.eqns[i], eqn) for i in self.readers.get(var, ()))

    def _absorbs(self, reader: Eqn, eqn: Eqn) -> bool:
        name = reader.primitive.name
        if name == "dot_general":  # takes its operands in any layout, so a transpose costs nothing
            return eqn.primitive.name in VIEWS or eqn.primitive.name == "transpose"
        if name in COMBINERS:
            shape = shape_of(reader.invars[0])
            return (
                math.prod(shape[int(a)] for a in reader.params["axes"]) <= self.machine.reduce_window or len(shape) <= 2
            )
        return name in ABSORBING

    def _bytes(self, var: Var) -> int:
        return 0 if var in self.fused or var in self.outside else nbytes(var)

    # Liveness in the jaxpr's own order.

    def _liveness(self) -> tuple[int, dict[Var, int]]:
        last = self._last_reads()
        live: dict[Var, int] = {}
        total = peak = 0
        at_peak: dict[Var, int] = {}
        for i, eqn in enumerate(self.eqns):
            born = {v: self._bytes(v) for v in eqn.outvars}
            dying = [v for v in live if last.get(v, -1) == i] if i in self._ends(last) else []
            reused = self._in_place(eqn, born, dying, live)
            now = total + sum(born.values()) - reused + _scratch(eqn, self.machine)
            if now > peak:
                peak, at_peak = now, {**live, **born}
            live.update({v: b for v, b in born.items() if b})
            total += sum(born.values())
            for v in dying:
                total -= live.pop(v)
        return peak, at_peak

    def _last_reads(self) -> dict[Var, int]:
        """Where each buffer is read for the last time, through whatever was fused into the reader."""
        last: dict[Var, int] = {}
        for i in reversed(range(len(self.eqns))):
            eqn = self.eqns[i]
            until = max((last.get(v, i) for v in eqn.outvars if v in self.fused), default=i)
            for atom in eqn.invars:
                if is_var(atom):
                    last[atom] = max(last.get(atom, 0), until)
        return last

    def _ends(self, last: Mapping[Var, int]) -> frozenset[int]:
        if not hasattr(self, "_end_set"):
            self._end_set = frozenset(last.values())
        return self._end_set

    def _in_place(self, eqn: Eqn, born: Mapping[Var, int], dying: Iterable[Var], live: Mapping[Var, int]) -> int:
        """Bytes of results written over an operand that dies here."""
        if eqn.primitive.name not in CHEAP and eqn.primitive.name not in (
            "scan",
            "while",
            "dynamic_update_slice",
            "scatter-add",
        ):
            return 0
        room = sorted((live[v] for v in dying if v in live), reverse=True)
        reused = 0
        for size in sorted(born.values(), reverse=True):
            if room and size and room[0] >= size:
                reused += size
                room.pop(0)
        return reused

    # Time.

    def _seconds(self, eqn: Eqn, body: tuple[Estimate, float] | None) -> float:
        if body is not None:
            return body[0].seconds * body[1]
        machine = self.machine
        traffic = sum(
            machine.transfer(_written_bytes(eqn, v)) + self.fresh * self._bytes(v)
            for v in eqn.outvars
            if v not in self.fused
        )
        if not all(v in self.fused for v in eqn.outvars):
            traffic += sum(
                machine.transfer(_read_bytes(eqn, a)) for a in eqn.invars if is_var(a) and a not in self.fused
            )
        if eqn.primitive.name == "dot_general":
            traffic += self._compute(eqn) + machine.packing_byte * sum(nbytes(a) for a in eqn.invars)
        return max(self._compute(eqn), traffic) + (0.0 if all(v in self.fused for v in eqn.outvars) else machine.eqn)

    def _compute(self, eqn: Eqn) -> float:
        seconds = _compute(eqn, self.machine)
        if eqn.primitive.name in COMBINERS and eqn.invars[0] in self.fused:
            shape = shape_of(eqn.invars[0])
            if len(shape) - 1 in [int(a) for a in eqn.params["axes"]]:
                factors = self.machine.last_axis_factors
                return seconds * next(factor for length, factor in factors if shape[-1] <= length)
        return seconds


UPDATES = {
    "dynamic_update_slice": 1,
    **{f"scatter{dash}{op}": 2 for dash in "-_" for op in ("add", "mul", "min", "max")},
}
"""Primitives that write into their first operand: which operand holds what is written."""


def _written_bytes(eqn: Eqn, var: Var) -> int:
    """Bytes written of a result: an update in place touches no more than the update."""
    update = UPDATES.get(eqn.primitive.name)
    return nbytes(var) if update is None else min(nbytes(var), nbytes(eqn.invars[update]))


def _is_view(eqn: Eqn) -> bool:
    """True where the result is the operand under another shape."""
    if eqn.primitive.name == "broadcast_in_dim":
        return is_var(eqn.invars[0]) and nbytes(eqn.invars[0]) == nbytes(eqn.outvars[0])
    return eqn.primitive.name in VIEWS and is_var(eqn.invars[0])


def _read_bytes(eqn: Eqn, atom: Atom) -> int:
    """Bytes read of an operand: a slice or a gather touches no more than it returns."""
    if eqn.primitive.name in ("dynamic_slice", "slice", "gather") and atom is eqn.invars[0]:
        return min(nbytes(atom), nbytes(eqn.outvars[0]))
    if eqn.primitive.name in UPDATES and atom is eqn.invars[0]:
        return 0
    return nbytes(atom)


def _compute(eqn: Eqn, machine: Machine) -> float:
    name = eqn.primitive.name
    if name == "dot_general":
        return _dot_flops(eqn) * machine.flop * (machine.narrow_factor if _is_narrow(eqn) else 1.0)
    if name in ("triangular_solve", "cholesky", "lu", "qr", "eigh", "svd"):
        return _solve_flops(eqn) * machine.solve_flop
    if name == "conv_general_dilated":
        return _convolution_flops(eqn) * machine.flop
    if name == "fft":
        return _fft_steps(eqn) * machine.fft
    if name.startswith("reduce_window"):
        return _pooled(eqn) * machine.pool
    if name in VIEWS or name in ("dynamic_slice", "dynamic_update_slice"):
        return 0.0
    if name in UPDATES:
        return _size(eqn.invars[2]) * machine.elements["scatter"]
    size = max((_size(a) for a in (*eqn.invars, *eqn.outvars)), default=0)
    if name == "gather":
        single = eqn.params["slice_sizes"][-1] == 1
        return _size(eqn.outvars[0]) * (machine.elements["gather"] if single else machine.elements["cheap"] * 4)
    rows = _size(eqn.outvars[0]) / max(1, shape_of(eqn.outvars[0])[-1]) if name == "top_k" else 0
    return size * machine.elements[_kind(name)] + rows * machine.top_k_row


def _kind(name: str) -> str:
    if name in EXPENSIVE:
        return "expensive"
    for kind in ("sort", "top_k", "scatter", "random", "threefry", "cum"):
        if name.startswith(kind):
            return kind
    return "cheap"


def eqn_work(eqn: Eqn, machine: Machine = CPU) -> float:
    """Arithmetic operations of an eqn, those of its body included."""
    return _work(eqn, _inner(eqn, machine))


def _work(eqn: Eqn, body: tuple[Estimate, float] | None) -> float:
    if body is not None:
        return body[0].work * body[1]
    name = eqn.primitive.name
    if name == "dot_general":
        return _dot_flops(eqn)
    if name in ("triangular_solve", "cholesky", "lu", "qr", "eigh", "svd"):
        return _solve_flops(eqn)
    if name == "conv_general_dilated":
        return _convolution_flops(eqn)
    if name == "fft":
        return _fft_steps(eqn)
    if name.startswith("reduce_window"):
        return _pooled(eqn)
    if name.startswith(("random_bits", "threefry")):
        return float(HASH_OPERATIONS * _size(eqn.outvars[0]))
    if name in VIEWS or name in MOVES or name in ("dynamic_slice", "dynamic_update_slice"):
        return 0.0
    size = max((_size(a) for a in (*eqn.invars, *eqn.outvars)), default=0)
    if name in UPDATES:
        size = _size(eqn.invars[UPDATES[name]])
    if name == "gather":
        size = _size(eqn.outvars[0])
    return float(size * (8 if name in EXPENSIVE else math.log2(max(2, size)) if name == "sort" else 1))


def _dot_flops(eqn: Eqn) -> float:
    (contract, _), _ = eqn.params["dimension_numbers"]
    lhs = shape_of(eqn.invars[0])
    return 2.0 * _size(eqn.outvars[0]) * math.prod(lhs[a] for a in contract)


def _convolution_flops(eqn: Eqn) -> float:
    kernel, dims = shape_of(eqn.invars[1]), eqn.params["dimension_numbers"]
    taps = math.prod(kernel) // max(1, kernel[dims.rhs_spec[0]])
    return 2.0 * _size(eqn.outvars[0]) * taps


def _fft_steps(eqn: Eqn) -> float:
    size = max(_size(eqn.invars[0]), _size(eqn.outvars[0]))
    return size * math.log2(max(2, math.prod(eqn.params["fft_lengths"])))


def _pooled(eqn: Eqn) -> float:
    return float(_size(eqn.outvars[0]) * math.prod(eqn.params["window_dimensions"]))


def _packing(eqn: Eqn, body: tuple[Estimate, float] | None) -> int:
    """Bytes of the panels that a dot copies its operands into."""
    if body is not None:
        return body[0].packing_bytes
    if eqn.primitive.name != "dot_general":
        return 0
    rows, columns, depth = matrix(eqn)
    if min(rows, columns) < PACKED_FROM and not _is_narrow(eqn):
        return 0
    itemsize = nbytes(eqn.invars[0]) // max(1, _size(eqn.invars[0]))
    return itemsize * (rows + columns) * min(depth, PACKED_DEPTH)


def matrix(eqn: Eqn) -> tuple[int, int, int]:
    """Rows, columns and depth of each matrix product in a dot."""
    (contract, _), (batch, _) = eqn.params["dimension_numbers"]
    lhs, rhs = shape_of(eqn.invars[0]), shape_of(eqn.invars[1])
    depth = max(1, math.prod(lhs[a] for a in contract))
    batches = max(1, math.prod(lhs[a] for a in batch))
    return math.prod(lhs) // (depth * batches), math.prod(rhs) // (depth * batches), depth


def _is_narrow(eqn: Eqn) -> bool:
    rows, columns, depth = matrix(eqn)
    return min(rows, columns) in NARROW_ROWS and depth >= NARROW_DEPTH


def _solve_flops(eqn: Eqn) -> float:
    n = shape_of(eqn.invars[0])[-1]
    return float(_size(eqn.outvars[0]) * n)


def _size(atom: Atom) -> int:
    return math.prod(shape_of(atom))


def trips(eqn: Eqn) -> float:
    """How often an eqn's body runs, as far as that is known."""
    return {"scan": float(eqn.params.get("length", 1)), "while": WHILE_TRIPS}.get(eqn.primitive.name, 1.0)


def _inner(eqn: Eqn, machine: Machine) -> tuple[Estimate, float] | None:
    """The estimate of an eqn's body and how often it runs."""
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        return _estimate_body(params["jaxpr"], machine), trips(eqn)
    if name == "while":
        return _estimate_body(params["body_jaxpr"], machine), trips(eqn)
    if name == "cond":
        return max((_estimate_body(b, machine) for b in params["branches"]), key=lambda e: e.temp_bytes), 1.0
    called = params.get("jaxpr") or params.get("call_jaxpr")
    return None if called is None else (_estimate_body(called, machine), 1.0)


def _scratch(eqn: Eqn, machine: Machine) -> int:
    """Bytes that exist only while this eqn runs."""
    body = _inner(eqn, machine)
    if body is not None:
        return body[0].temp_bytes + (_carry_copies(eqn) if eqn.primitive.name == "scan" else 0)
    name = eqn.primitive.name
    if name in COMBINERS and len(shape_of(eqn.invars[0])) > 2:
        return 0
    if name == "sort":
        return sum(nbytes(a) for a in eqn.invars)
    if name == "top_k" and eqn.params["k"] > machine.sorts_top_k_from:
        return nbytes(eqn.invars[0]) + 4 * _size(eqn.invars[0])
    if name == "triangular_solve":
        return nbytes(eqn.outvars[0])
    return 0


def _carry_copies(eqn: Eqn) -> int:
    """New carries that aren't written in place: they exist beside the old ones for a moment."""
    body = eqn.params["jaxpr"].jaxpr
    made_by = {v: e.primitive.name for e in body.eqns for v in e.outvars}
    _, count = scan_operands(eqn.params)
    carries = body.outvars[:count]
    in_place = CHEAP | {"dynamic_update_slice", "scatter-add"}
    return sum(nbytes(v) for v in carries if is_var(v) and made_by.get(v, "add") not in in_place)
