"""A program on its way to another process: lowered here for CUDA, compiled there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.export
from jax.extend import core as jex_core

from ..errors import TargetError
from ..evaluate import precision_of
from ..program import Program

if TYPE_CHECKING:
    from ..target import Target

CALLBACKS = frozenset({"debug_callback", "debug_print", "pure_callback", "io_callback"})

# Custom calls need no promise of stability: the same version of XLA compiles them at once.
_CHECKS = (jax.export.DisabledSafetyCheck.custom_call("ALL"),)


def export_for_gpu(run: Callable[..., Any], program: Program, target: Target) -> bytes:
    """`run`, a function of `program`'s flat arguments, lowered for CUDA and serialized.

    Raises:
      TargetError: it calls back into Python, spans several devices, or has an operation that can't be lowered here.
    """
    if _calls_back(program.jaxpr):
        raise TargetError(
            f"{program.name} can't be compiled for {target.name} from here: it calls back into Python, as debug.print "
            "and pure_callback do. Take the callback out for the preview."
        )
    with precision_of(program):
        jitted = jax.jit(run, keep_unused=True)
        traced = program.argument_shapes
        try:
            exported = jax.export.export(jitted, platforms=["cuda"], disabled_checks=_CHECKS)(*traced)
            packed = bytes(exported.serialize())
        except Exception as error:
            raise TargetError(f"{program.name} can't be compiled for {target.name} from here: {_why(error)}") from error
    if exported.nr_devices != 1:
        raise TargetError(
            f"{program.name} spans {exported.nr_devices} devices: a preview for {target.name} is of one GPU."
        )
    return packed


def _calls_back(jaxpr: jex_core.Jaxpr) -> bool:
    return any(
        eqn.primitive.name in CALLBACKS or any(map(_calls_back, jex_core.jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _why(error: Exception) -> str:
    text = str(error).strip()
    if "pallas" in text.lower():
        return "it calls a Pallas kernel that JAX lowers only where the GPU is. Preview what surrounds it."
    first = text.splitlines()[0] if text else "no message"
    return f"{type(error).__name__}: {first.rstrip('.')}."
