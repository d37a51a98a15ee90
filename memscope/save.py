"""Taking the rewritten function away: Python source, or an artifact of `jax.export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.export

from .errors import ExportError
from .evaluate import precision_of
from .measure import obstacle
from .options import OWN_MARK
from .planned import dynamic_only
from .sizes import format_bytes
from .source import python_source

if TYPE_CHECKING:
    from .plan import Plan


def source_of(plan: Plan) -> str:
    """Standalone source of the rewritten function."""
    scheduled, plan = plan.scheduled_by is not None, plan.portable
    program = plan.program
    return python_source(
        plan.rewritten,
        name=program.name,
        in_tree=program.in_tree,
        out_tree=program.out_tree,
        argument_names=program.argument_names,
        header=_header(plan, scheduled),
        compiler_options=plan.build.options,
        x64=program.x64,
        donated=program.donated,
        platform=plan.target.platform,
    )


def save_plan(plan: Plan, path: Path) -> Path:
    """Writes `plan` in the format that the path's ending names.

    Raises:
      ExportError: that format can't hold the function.
      ValueError: there is no such format.
    """
    if path.suffix == ".py":
        path.write_text(_source_text(plan))
    elif path.suffix == ".jaxexport":
        path.write_bytes(_artifact(plan))
    else:
        raise ValueError(f"can't tell the format of {path.name!r}: end the name in .py or .jaxexport.")
    return path


def _source_text(plan: Plan) -> str:
    try:
        return source_of(plan)
    except (NotImplementedError, ValueError) as error:
        raise ExportError(str(error)) from error


def _artifact(plan: Plan) -> bytes:
    try:
        return bytes(export(plan).serialize())
    except Exception as error:
        keeps = ", whose source keeps debug.print" if "callback" in str(error) else ""
        why = obstacle(error).rstrip(".")
        raise ExportError(
            f"{plan.program.name} can't be written as .jaxexport: {why}. Export it as .py{keeps}."
        ) from error


def export(plan: Plan) -> jax.export.Exported:
    """The rewritten function, exported for the plan's platform with the arguments' pytrees."""
    plan = plan.portable
    program = plan.program
    args, kwargs = jax.tree.unflatten(program.in_tree, program.argument_shapes)
    call = dynamic_only(plan.fn, plan.request.signature.static)
    with precision_of(program):
        return jax.export.export(jax.jit(call), platforms=[plan.target.platform])(*args, **kwargs)


def _header(plan: Plan, scheduled: bool) -> str:
    how = f"instead of {format_bytes(plan.original_peak_bytes)}" if plan.changed else "as it was written"
    where = "" if plan.target.platform == "cpu" else f" on {plan.target.name}"
    lines = [f"{plan.program.name}, {OWN_MARK} to peak at {format_bytes(plan.peak_bytes)}{where} {how}."]
    if scheduled:
        lines += [
            "",
            "The plan itself runs in an order of instructions, which source can't hold: this peak is its own.",
        ]
    if plan.build.options:
        lines += [
            "",
            "The peak holds under the compiler options below, which apply to a call that no other jit surrounds.",
        ]
    if not plan.target.is_here:
        lines += ["", "The peak is that of XLA's compiler for this GPU. On another device it is another one."]
    return "\n".join(lines)
