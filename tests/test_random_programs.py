"""Random programs, streamed at random: nothing changes.

The suite draws the same 200 programs each time, as long as the sources are the same (Hypothesis tries numbers that it
finds in them). More, and others, as a nightly run would:

    MEMSCOPE_PROGRAMS=2000 .venv/bin/python -m pytest tests/test_random_programs.py
    MEMSCOPE_PROGRAMS=2000 MEMSCOPE_SEED=7 .venv/bin/python -m pytest tests/test_random_programs.py

A failure prints the smallest program found that fails, as steps and as a jaxpr, and its loops.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, seed, settings

import memscope
from memscope.axes.factor import shape_of
from memscope.program import Program
from memscope.stream import Closure, LoopPlan, Resident, Streaming, rewrite
from memscope.stream.reductions import Form
from memscope.stream.resident import readers_of, slices_of
from memscope.trace import trace

from .random_programs import OPS, RandomProgram, kind_of, programs

PROGRAMS = int(os.environ.get("MEMSCOPE_PROGRAMS", "200"))
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiling is what takes the time; XLA's own passes run all the same."""


def drawn(share: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Settings for a share of the programs."""

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        chosen = os.environ.get("MEMSCOPE_SEED")
        fixed = settings(
            max_examples=max(1, int(PROGRAMS * share)),
            derandomize=chosen is None,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        )
        return fixed(check if chosen is None else seed(int(chosen))(check))

    return decorate


# Streaming at random.


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A streaming with a chunk for each of its loops, and rows that one keeps for others where that can be."""

    streaming: Streaming
    chunks: Mapping[LoopPlan, int]
    form: Form
    resident: Resident | None

    @property
    def loops(self) -> bool:
        """True where some loop takes more than one trip."""
        return any(chunk < loop.steps for loop, chunk in self.chunks.items())

    def __repr__(self) -> str:
        program = self.streaming.program
        lines = [f"{self.form}, streamed: {sorted(map(_name(program), self.streaming.streamed))}"]
        for loop in self.streaming.loops:
            sinks = [type(sink).__name__ + " of eqn " + str(sink.task.eqn) for sink in loop.sinks]
            lines.append(f"  loop of {loop.steps} steps in chunks of {self.chunks[loop]}, leaves {sinks}")
            lines += [
                f"    eqn {t.eqn} {program.eqns[t.eqn].primitive.name}: {t.factor} x{t.scale} +{t.shift} {t.placed}"
                for t in loop.body
            ]
        if self.resident is not None:
            values = [f"{_name(program)(var)} {window}" for var, window in self.resident.values]
            lines.append(f"  the last {self.resident.steps} steps kept of {values}")
        return "\n".join(lines)


def _name(program: Program) -> Callable[[Any], str]:
    return lambda var: f"eqn {program.producer[var]} result {var}"


def draw_streaming(program: Program, rng: random.Random) -> Drawn:
    """What to stream, along which axes and in what chunks; a few tries to find something that can be."""
    closure = Closure(program)
    places = [(v, a) for eqn in program.eqns for v in eqn.outvars for a, s in enumerate(shape_of(v)) if s > 1]
    streaming = closure.build((), {})
    rng.shuffle(places)
    for start in range(0, min(len(places), 16), 2):
        hints: dict[Any, set[int]] = {}
        for place in places[start : start + rng.choice([1, 1, 2, 4])]:
            for var, axes in closure.axes.reach(place).items():
                hints.setdefault(var, set()).update(axes)
        # Sorted by eqn, as a set of vars has no order of its own that a seed could fix.
        reached = sorted(hints, key=lambda v: (program.producer.get(v, -1), str(v.aval)))
        how = rng.choice(["all", "all", "some", "without hints", "everything"])
        keep = rng.choice([0.5, 0.8])
        wanted = [v for v in reached if rng.random() < keep] if how == "some" else reached
        if how == "everything":
            wanted = list(program.producer)
        streaming = closure.build(wanted, {} if how == "without hints" else hints)
        if streaming.loops:
            break
    chunks = {loop: _chunk(loop, rng) for loop in streaming.loops}
    for tie in streaming.tied:
        chunks.update(dict.fromkeys(tie, chunks[tie[0]]))
    return Drawn(streaming, chunks, rng.choice(list(Form)), draw_resident(streaming, rng))


def draw_resident(streaming: Streaming, rng: random.Random) -> Resident | None:
    """Some of what two loops both compute, for some of their rows."""
    shared = []
    for maker, readers in readers_of(streaming):
        slices = slices_of(streaming.program, maker)
        again = [v for v, task in slices.items() if any(task in reader.body for reader in readers)]
        shared += [(maker, readers, again)] if again else []
    if not shared:
        return None
    maker, readers, again = rng.choice(shared)
    steps = rng.choice([1, maker.steps, rng.randint(1, maker.steps)])
    return Resident(maker, readers, tuple(rng.sample(again, min(len(again), rng.choice([1, 1, 2, 3])))), steps)


def _chunk(loop: LoopPlan, rng: random.Random) -> int:
    return rng.choice([1, 1, rng.randint(1, loop.steps), rng.randint(1, max(1, loop.steps // 2))])


def run(fn: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    return jax.tree.leaves(jax.jit(fn).lower(*args).compile(QUICK)(*args))


def agree(got: Any, want: Any, within: float) -> None:
    """Equal dtypes, shapes, NaN and infinities; floats within an absolute error, all else exactly."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if kind_of(want.dtype) not in "fc":
        np.testing.assert_array_equal(got, want)
        return
    wide = np.complex128 if kind_of(want.dtype) == "c" else np.float64
    g, w = np.asarray(got).astype(wide), np.asarray(want).astype(wide)
    np.testing.assert_allclose(g, w, rtol=0, atol=within)


def agree_with(fn: RandomProgram, got: Sequence[Any]) -> None:
    """As the function itself, jitted; where NaN is about, each element as that or as it is op by op.

    XLA drops the NaN of an infinity that a mask multiplies in some places and keeps it in others.
    """
    jitted = run(fn, fn.args)
    try:
        for g, w, out in zip(got, jitted, fn.outputs, strict=True):
            agree(g, w, 4 * out.noise)
    except AssertionError:
        if not any(out.special for out in fn.outputs):
            raise
        for g, w, by_itself, out in zip(got, jitted, fn(*fn.args), fn.outputs, strict=True):
            agree(g, _as_likely(g, w, by_itself), 4 * out.noise)


def _as_likely(got: Any, jitted: Any, by_itself: Any) -> Any:
    """Of each element the one that is NaN where the one got is, or is not where that is not."""
    if kind_of(jitted.dtype) not in "fc":
        return by_itself if not np.array_equal(got, jitted) else jitted
    return jnp.where(jnp.isnan(got) == jnp.isnan(jitted), jitted, by_itself)


def test_streaming_changes_nothing() -> None:
    seen: collections.Counter[str] = collections.Counter()

    @drawn(0.8)
    @given(programs())
    def check(fn: RandomProgram) -> None:
        with jax.enable_x64(fn.x64):
            program = trace(fn, fn.args)
            drawing = draw_streaming(program, random.Random(fn.seed))
            explain(fn, program, drawing)
            seen["programs"] += 1
            seen["streamed"] += drawing.loops
            seen["resident"] += drawing.resident is not None
            seen.update(f"op {name}" for name in fn.ops if drawing.loops)
            rewritten = rewrite(drawing.streaming, drawing.chunks, drawing.form, drawing.resident)
            agree_with(fn, run(rewritten, fn.args))
        if seen["programs"] % 50 == 0:
            jax.clear_caches()

    check()
    assert seen["streamed"] >= 0.5 * seen["programs"], "too few programs had a loop"
    assert seen["resident"] or PROGRAMS < 200, "no loop kept rows"
    if PROGRAMS >= 200:
        assert {name for name in OPS if not seen[f"op {name}"]} == set(), "ops that no program with a loop had"


def explain(fn: RandomProgram, program: Program, streamed: object) -> None:
    """What a failure prints."""
    note(f"{fn}\n{program.jaxpr}\n{streamed}")


# Gradients.


def loss_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A weighted sum of the real results."""

    def loss(*args: Any) -> Any:
        total = jnp.float32(0)
        for out in fn(*args):
            if kind_of(out.dtype) == "f":
                weights = (jnp.arange(out.size) % 5 - 2).astype(out.dtype).reshape(out.shape)
                total = total + jnp.sum(out * weights).astype(jnp.float32)
        return total

    return loss


@pytest.mark.parametrize("first", ["differentiated", "rewritten"])
def test_gradients_stay(first: str) -> None:
    """Of the rewritten function, and rewritten themselves.

    A maximum shares its gradient among equals, and one taken in chunks shares it chunk by chunk: what is rewritten
    first has none.
    """
    seen: collections.Counter[str] = collections.Counter()

    @drawn(0.1)
    @given(programs(floats_only=True, without=("reduce_max", "cumulative") if first == "rewritten" else ()))
    def check(fn: RandomProgram) -> None:
        argnums = [i for i, a in enumerate(fn.args) if kind_of(a.dtype) == "f"]
        gradient = jax.grad(loss_of(fn), argnums)
        program = trace(gradient if first == "differentiated" else fn, fn.args)
        drawing = draw_streaming(program, random.Random(fn.seed))
        explain(fn, program, drawing)
        seen["programs"] += 1
        seen["streamed"] += drawing.loops
        rewritten = rewrite(drawing.streaming, drawing.chunks, drawing.form, drawing.resident)
        want = run(gradient, fn.args)
        got = run(rewritten if first == "differentiated" else jax.grad(loss_of(rewritten), argnums), fn.args)
        largest = max(float(jnp.max(jnp.abs(w), initial=0)) for w in want)
        for g, w in zip(got, want, strict=True):
            agree(g, w, 1e-3 * largest + 1e-5)

    check()
    assert seen["streamed"] >= 0.5 * seen["programs"], "too few programs had a loop"


# Plans.


def test_plans_keep_values_and_never_raise_the_peak() -> None:
    seen: collections.Counter[str] = collections.Counter()

    @drawn(0.05)
    @given(programs(scale=24))
    def check(fn: RandomProgram) -> None:
        with jax.enable_x64(fn.x64):
            assume(fn.ops)
            plan = memscope.plan(fn, *fn.args, limit="30%", best_effort=True)
            explain(fn, plan.program, plan.explain())
            seen["programs"] += 1
            seen["streamed"] += bool(plan.loops)
            assert plan.peak_bytes <= plan.original_peak_bytes
            agree_with(fn, plan.fn(*fn.args))

    check()
    assert seen["streamed"] >= 0.2 * seen["programs"], "too few plans had a loop"
