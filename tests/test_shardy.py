"""The rules against Shardy, XLA's partitioner, which knows along which axes each operation may be cut.

Each eqn of the cases in `test_axes.py` is lowered by itself, and `sdy-populate-op-sharding-rules` writes the factors
of every operation that it becomes: `([i, k], [k, j])->([i, j]) {i=3, j=5, k=4} reduction={k}`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend import core as jex_core
from jaxlib.mlir import passmanager

from memscope.axes import At, factors
from memscope.axes.elementwise import elementwise
from memscope.axes.factor import shape_of
from memscope.axes.table import FACTORS
from memscope.evaluate import bind
from memscope.program import is_var
from tests.test_axes import CASES, prepared

Eqn = jex_core.JaxprEqn
Place = tuple[str, int, int]
"""An axis of an eqn: "in" or "out", which operand or result, which axis."""
Cut = tuple[str, frozenset[Place]]
"""Axes that are cut together, "mapped" or "summed"."""
Node = tuple[int, int]
"""An axis of a value in the lowered module."""

RULE = re.compile(r"op_sharding_rule<\((.*?)\)->\((.*?)\)(.*)>$")


class NoRule(Exception):
    """Shardy says nothing about an operation."""


class Oracle:
    """The axes of a lowered eqn, joined where an operation's factor joins them."""

    def __init__(self, eqn: Eqn) -> None:
        self.parent: dict[Node, Node] = {}
        self.summed: set[Node] = set()
        self.whole: set[Node] = set()
        self.values = 0
        module = lowered(eqn)
        self.functions = {f.name.value: f for f in module.body.operations if f.operation.name == "func.func"}
        main = self.functions["main"]
        ins = [self.new() for _ in main.arguments]
        operands = [(i, a) for i, a in enumerate(eqn.invars) if is_var(a)]
        ends = [
            *(("in", i, atom, value) for (i, atom), value in zip(operands, ins, strict=True)),
            *(("out", i, *pair) for i, pair in enumerate(zip(eqn.outvars, self.run(main, ins), strict=True))),
        ]
        self.places: dict[Node, list[Place]] = {}
        for side, number, atom, value in ends:
            self.whole.add((value, len(shape_of(atom))))  # the words of a key, an axis of the lowered array only
            for axis, size in enumerate(shape_of(atom)):
                if size > 1:
                    self.places.setdefault(self.root((value, axis)), []).append((side, number, axis))

    def new(self) -> int:
        self.values += 1
        return self.values

    def root(self, node: Node) -> Node:
        while node in self.parent:
            node = self.parent[node]
        return node

    def join(self, nodes: list[Node]) -> None:
        first, *rest = {self.root(n) for n in nodes}
        self.parent.update(dict.fromkeys(rest, first))

    def run(self, function: Any, args: list[int]) -> list[int]:
        """The values that a function returns, from those of its arguments."""
        (block,) = function.body.blocks
        known = dict(zip(block.arguments, args, strict=True))
        for op in block.operations:
            name, operands = op.operation.name, [known[v] for v in op.operands]
            if name == "func.return":
                return operands
            if name == "func.call":
                results = self.run(self.functions[op.callee.value], operands)
            else:
                results = [self.new() for _ in op.results]
                if operands:
                    self.operation(op.operation, operands, results)
            known.update(zip(op.results, results, strict=True))
        raise AssertionError

    def operation(self, op: Any, operands: list[int], results: list[int]) -> None:
        if "sdy.sharding_rule" not in op.attributes:
            raise NoRule(op.name)
        match = RULE.search(str(op.attributes["sdy.sharding_rule"]))
        assert match is not None
        ins, outs, rest = match.groups()
        kinds = {kind: set(names.split(", ")) for kind, names in re.findall(r"(\w+)=\{(.*?)\}", rest)}
        coupled = kinds.get("need_replication", set()) | kinds.get("permutation", set())
        leads: dict[str, list[Node]] = {}
        inner: dict[str, list[Node]] = {}
        for values, text in ((operands, ins), (results, outs)):
            for value, axes in zip(values, re.findall(r"\[(.*?)\]", text), strict=True):
                for axis, names in enumerate(axes.split(", ") if axes else []):
                    first, *others = re.findall(r"[a-z](?:_\d+)?", names)
                    leads.setdefault(first, []).append((value, axis))
                    for other in others:
                        inner.setdefault(other, []).append((value, axis))
        for name, nodes in leads.items():
            self.join(nodes)
            made = not any(value in operands for value, _ in nodes)
            if name in coupled or name in inner or (made and op.name != "stablehlo.broadcast_in_dim"):
                self.whole.add(nodes[0])
            if name in kinds.get("reduction", set()):
                self.summed.add(nodes[0])

    def cuts(self) -> Iterator[Cut]:
        whole, summed = ({self.root(n) for n in nodes} for nodes in (self.whole, self.summed))
        for root, places in self.places.items():
            if root in whole or len({(side, number) for side, number, _ in places}) < len(places):
                continue
            stays = any(side == "out" for side, _, _ in places)
            if stays != (root in summed):
                yield ("mapped" if stays else "summed"), frozenset(places)


def lowered(eqn: Eqn) -> Any:
    """The StableHLO module of one eqn, with Shardy's rules in it."""

    def run(*values: Any) -> Any:
        left = iter(values)
        return bind(eqn, [next(left) if is_var(a) else a.val for a in eqn.invars])

    args = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in eqn.invars if is_var(a)]
    module = jax.jit(run, keep_unused=True).lower(*args).compiler_ir("stablehlo")
    with module.context:
        passes = passmanager.PassManager.parse("builtin.module(func.func(sdy-populate-op-sharding-rules))")
        passes.run(module.operation)
    return module


def our_cuts(eqn: Eqn) -> Iterator[Cut]:
    """What the table says. Where the order of the steps matters (`carried`), Shardy has nothing like it."""
    for factor in factors(eqn):
        if factor.size > 1 and getattr(factor, "carried", None) is None:
            ends = (("in", eqn.invars, factor.ins), ("out", eqn.outvars, factor.outs))
            places = [
                (side, number, at.axis)
                for side, atoms, ats in ends
                for number, (atom, at) in enumerate(zip(atoms, ats, strict=True))
                if isinstance(at, At) and is_var(atom)
            ]
            yield ("mapped" if factor.fold is None else "summed"), frozenset(places)


def matrices(*shape: int) -> jax.Array:
    return jnp.ones((*shape, 4, 4)) + 3 * jnp.eye(4)


MORE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cholesky_update": (lax.linalg.cholesky_update, (matrices(), jnp.ones(4))),
    "eig": (lambda x: lax.linalg.eig(x), (matrices(5),)),
    "empty": (lambda x: x + lax.empty((5, 4), x.dtype), (jnp.ones((5, 4)),)),
    "geqrf": (lambda x: jnp.linalg.qr(x, mode="raw"), (matrices(5),)),
    "hessenberg": (lax.linalg.hessenberg, (matrices(5),)),
    "householder_product": (lax.linalg.householder_product, (matrices(5), jnp.ones((5, 4)))),
    "lu_pivots": (lambda x: lax.linalg.lu_pivots_to_permutation(x, 6), (jnp.ones((5, 4), jnp.int32),)),
    "pooling_min": (
        lambda x: lax.reduce_window(x, jnp.inf, lax.min, (1, 3), (1, 2), "VALID"),
        (jnp.ones((5, 9)),),
    ),
    "scatter_min": (lambda t, i, u: t.at[i].min(u), (jnp.ones((9, 4)), jnp.arange(5), jnp.ones((5, 4)))),
    "scatter_mul": (lambda t, i, u: t.at[i].multiply(u), (jnp.ones((9, 4)), jnp.arange(5), jnp.ones((5, 4)))),
    "tridiagonal": (lambda x: lax.linalg.tridiagonal(x), (matrices(5),)),
    "unstack": (lambda x: jnp.unstack(x, axis=1), (jnp.ones((5, 3, 4)),)),
    "wrap_key_data": (jax.random.wrap_key_data, (jnp.ones((5, 2), jnp.uint32),)),
    **{
        name: (getattr(lax, name), (jnp.full((5, 3), 0.5),))
        for name in "acos asin atan acosh asinh atanh cbrt ceil cos cosh expm1 floor log log1p logistic neg round "
        "rsqrt sign sinh sqrt square".split()
    },
    **{name: (getattr(lax, name), (jnp.ones((5, 3)), jnp.ones((5, 3)))) for name in "atan2 complex le min pow".split()},
}
"""Primitives without a case of their own: one function of its arguments each."""

OVERLAP = "Shardy never tells windows that lie side by side from those that overlap"
COLUMNS = "each right-hand side is solved for by itself; of a custom call Shardy only knows the batches"
MASKS = "each shard would drop what lies outside its rows, with a mask that no factor has a place for"
GROUPS = "which group a row is in depends on its number"

DIFFERENCES = [
    ("conv_general_dilated", "ours", "mapped in0.2 out0.2", OVERLAP),
    ("conv_general_dilated", "ours", "mapped in0.3 out0.3", OVERLAP),
    (
        "conv_general_dilated",
        "Shardy's",
        "summed in0.2 in1.2",
        "the summed windows overlap: they need rows of the next",
    ),
    ("dynamic_update_slice", "Shardy's", "mapped in0.1 out0.1", MASKS),
    ("ormqr", "ours", "mapped in2.2 out0.2", COLUMNS),
    ("ragged_dot_general", "Shardy's", "mapped in0.0 out0.0", GROUPS),
    ("ragged_dot_general", "Shardy's", "summed in0.0 in1.0", GROUPS),
    ("reduce", "Shardy's", "summed in0.1 in1.1", "partial results could only be joined by the user's own function"),
    ("reduce_max", "Shardy's", "summed in0.0", "of floats without infinities: there is none to start from"),
    ("reduce_window", "ours", "mapped in0.1 in1.1 out0.1 out1.1", OVERLAP),
    ("reduce_window_max", "ours", "mapped in0.1 out0.1", OVERLAP),
    ("reduce_window_sum", "ours", "mapped in0.1 out0.1", OVERLAP),
    (
        "scatter-sub",
        "ours",
        "summed in1.0 in2.0",
        "the table is what is left to subtract from; Shardy sees no sum in it",
    ),
    ("select_and_gather_add", "ours", "mapped in0.1 in1.1 out0.1", OVERLAP),
    ("select_and_scatter_add", "ours", "mapped in0.1 in1.1 out0.1", OVERLAP),
    ("symmetric_product", "Shardy's", "summed in0.2", "each partial sum would add the second operand again"),
    *(("triangular_solve", "ours", f"mapped in1.{axis} out0.{axis}", COLUMNS) for axis in range(3)),
    ("tridiagonal_solve", "ours", "mapped in3.2 out0.2", COLUMNS),
]
"""The primitive, who has the factor, its places (operand or result, axis), and why ours is right all the same."""

KNOWN = {difference[:3] for difference in DIFFERENCES}

UNSAID = {
    "chlo": "top_k",
    "a loop": "cholesky_update lu lu_pivots_to_permutation random_bits random_fold_in random_gamma random_split "
    "threefry2x32",
    "a barrier or composite": "optimization_barrier scaled_dot",
    "made by no public function": "geqp3 to_edtype from_edtype",
}
"""Primitives of which Shardy says nothing, by what they are lowered to; besides elementwise ones."""


@functools.cache
def eqns_of(name: str) -> tuple[Eqn, ...]:
    fn, args = (MORE[name] if name in MORE else CASES[name])[:2]
    unique = {(e.primitive, str(e.params), *(str(a.aval) for a in e.invars)): e for e in prepared(fn, args)[0].eqns}
    return tuple(eqn for eqn in unique.values() if eqn.outvars and not eqn.effects)


@functools.cache
def their_cuts(eqn: Eqn) -> frozenset[Cut] | None:
    try:
        return frozenset(Oracle(eqn).cuts())
    except NoRule:
        return None


def differences(eqn: Eqn) -> Iterator[tuple[str, str, str]]:
    """The cuts that only the table or only Shardy has: (primitive, whose, the cut in words)."""
    ours, theirs = set(our_cuts(eqn)), their_cuts(eqn)
    if theirs is not None:
        for whose, cuts in (("ours", ours - theirs), ("Shardy's", theirs - ours)):
            for kind, places in cuts:
                ends = (f"{side}{number}.{axis}" for side, number, axis in sorted(places))
                yield eqn.primitive.name, whose, " ".join([kind, *ends])


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_factors_are_shardys(name: str) -> None:
    for eqn in eqns_of(name):
        unknown = set(differences(eqn)) - KNOWN
        assert not unknown, f"{unknown} of {eqn}"


def test_no_difference_is_out_of_date() -> None:
    found = {known_as for name in (*CASES, *MORE) for eqn in eqns_of(name) for known_as in differences(eqn)}
    assert found == KNOWN


def test_every_rule_is_compared() -> None:
    eqns = [eqn for name in (*CASES, *MORE) for eqn in eqns_of(name)]
    compared = {eqn.primitive.name for eqn in eqns if their_cuts(eqn) is not None and any(our_cuts(eqn))}
    alike = {name for name, rule in FACTORS.items() if rule is elementwise}
    assert alike & compared
    assert FACTORS.keys() - alike - compared == set(" ".join(UNSAID.values()).split()) - alike
