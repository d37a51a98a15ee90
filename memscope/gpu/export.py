"""A program on its way to another process: lowered here for CUDA, compiled there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.export

from ..errors import TargetError
from ..evaluate import precision_of
from ..program import Program

if TYPE_CHECKING:
    from ..target import Target

# Custom calls need no promise of stability: the same version of XLA compiles them at once.
_CHECKS = (jax.export.DisabledSafetyCheck.custom_call("ALL"),)


def export_for_gpu(run: Callable[..., Any], program: Program, target: Target) -> bytes:
    """`run`, a function of `program`'s flat arguments, lowered for CUDA and serialized.

    Raises:
      TargetError: it calls back into Python, spans several devices, or has an operation that can't be lowered here.
    """
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


def _why(error: Exception) -> str:
    text = str(error).strip()
    if "callback" in text:
        return "it calls back into Python, as debug.print and pure_callback do. Take the callback out for the preview."
    first = text.splitlines()[0] if text else "no message"
    return f"{type(error).__name__}: {first.rstrip('.')}."
