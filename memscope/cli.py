"""The `memscope` command."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pathlib
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__
from .errors import ExportError, LimitError, TargetError
from .options import UsageError, add_options, add_rewrite_options, add_target, read_options, writable_path

if TYPE_CHECKING:
    from .call import Call
    from .check import Check
    from .plan import Plan

FITS, FAILED, BAD_USAGE, TOO_BIG = 0, 1, 2, 3
INTERRUPTED, PIPE_CLOSED = 130, 141  # as a shell counts SIGINT and SIGPIPE

_DESCRIPTION = """\
See where a JAX function's memory goes before it runs, and rewrite it to fit a limit.
"""

_EPILOG = """\
examples:
  memscope demo
      the main job on real data, in a minute
  memscope profile knn.py:nearest --shapes "f32[2000,64] f32[20000,64]"
      every buffer, its size, its line, and which of them are alive at the peak
  memscope plan knn.py:nearest --args knn.py:make_args --limit 100MiB --export knn_small.py
      the same function in 100 MiB, as source that needs nothing but jax
  memscope compare knn.py:nearest --args knn.py:make_args --targets t4,a100-40gb
      does it fit on these GPUs, and what would it take; they need not be here
  memscope schedule train.py:step --args train.py:make_args
      the same instructions in the order that needs the least memory

exit codes:
  0  it fits        2  bad usage: a sentence on stderr says what to change
  1  an error       3  it does not fit, or a profile can't be sure that it does: stderr says by how much and why
"""

_SHAPES_HELP = (
    'one shape for each argument, as in "f32[2000,64] i32[2000] f32[]": f16 bf16 f32 f64, s8 to s64, u8 to u64, '
    "c64 c128, bool; 64 bits turn x64 on"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; `argv` is `sys.argv[1:]` where it is not given."""
    parser = _parser()
    try:
        parsed = parser.parse_args(argv)
        code: int = parsed.command(parsed)
        sys.stdout.flush()
        return code
    except (UsageError, TargetError, ExportError) as error:
        _say(str(error))
        return BAD_USAGE
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has what it wanted; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        from .call import user_traceback

        traceback.print_exception(error.with_traceback(user_traceback(error)))
        return FAILED


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence; the whole usage is a `--help` away."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(BAD_USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="memscope", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"memscope {__version__}")
    commands = parser.add_subparsers(required=True, metavar="{profile,plan,schedule,compare,demo}", title="commands")
    _add_profile(commands)
    _add_plan(commands)
    _add_schedule(commands)
    _add_compare(commands)
    demo = commands.add_parser("demo", help="nearest neighbours of real digits in a tenth of the memory")
    demo.set_defaults(command=_demo)
    return parser


def _add_profile(commands: Any) -> None:
    parser = commands.add_parser(
        "profile",
        help="where the memory goes",
        description="Compiles the function, without running it, and shows every buffer XLA gives it.",
    )
    _add_call(parser)
    add_options(parser)
    _add_output(parser)
    parser.set_defaults(command=_profile)


def _add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="a version that fits a limit",
        description="Rewrites the function so that XLA's own account of it stays under the limit.",
    )
    _add_call(parser)
    add_options(parser)
    add_rewrite_options(parser)
    _add_output(parser)
    parser.set_defaults(command=_plan)


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="several targets side by side",
        description="Compiles the function for each target: does it fit there, and what version of it would?",
    )
    _add_call(parser)
    parser.add_argument(
        "--targets",
        metavar="NAMES",
        required=True,
        help="where it may run, as in t4,a100-40gb (see memscope.targets())",
    )
    _add_output(parser)
    parser.set_defaults(command=_compare)


def _add_schedule(commands: Any) -> None:
    parser = commands.add_parser(
        "schedule",
        help="the order of instructions that needs the least memory",
        description="Looks for the order of XLA's instructions with the lowest peak, and has XLA confirm it.",
    )
    _add_call(parser)
    add_target(parser)
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=_seconds,
        default=10.0,
        help="to search; on top comes compiling, but for a GPU (default: %(default)g)",
    )
    _add_output(parser)
    parser.set_defaults(command=_schedule)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return seconds


_seconds.__name__ = "number of seconds"  # what argparse calls it where it refuses one


def _add_call(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("function", metavar="FILE.py:FUNCTION", help="also package.module:function")
    arguments = parser.add_mutually_exclusive_group(required=True)
    arguments.add_argument("--shapes", metavar="SHAPES", help=_SHAPES_HELP)
    arguments.add_argument(
        "--args", metavar="FILE.py:FUNCTION", help="a function of no arguments that returns the tuple of arguments"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for a script in place of the report")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page as well")


def _profile(parsed: argparse.Namespace) -> int:
    from .lines import profile_line
    from .sizes import format_bytes, parse_limit
    from .target import resolve

    options, html = read_options(parsed), _html_path(parsed)
    call = _load_call(parsed)
    profile = call.profile(options)
    capacity = resolve(options.target).capacity_bytes
    limit = capacity if options.limit is None else parse_limit(options.limit, profile.peak_bytes)
    plain = profile.peak_bytes if profile.plain_bound_bytes is None else profile.plain_bound_bytes
    least = min(profile.peak_bytes, plain)
    fits = least <= limit
    if parsed.json:
        _print_json({**profile.to_dict(), "limit_bytes": limit, "fits": fits})
    else:
        print(profile_line(profile, call, options) if options.quiet else profile)
    if html is not None:
        _write(html, profile.to_html())
    if not fits:
        _say(
            f"{call.name} needs {format_bytes(least)}, over the limit of {format_bytes(limit)}: "
            "memscope plan looks for a version that fits."
        )
    elif plain > limit:
        _say(
            f"{call.name} fits in {format_bytes(limit)} as memscope plan compiles it. A plain jax.jit may take up to "
            f"{format_bytes(plain)}, with scratch that XLA does not report."
        )
    return FITS if fits else TOO_BIG


def _plan(parsed: argparse.Namespace) -> int:
    from .lines import check_line, plan_line

    options, html = read_options(parsed), _html_path(parsed)
    if options.run and parsed.args is None:
        raise UsageError("--run needs values, and shapes have none: give --args FILE.py:FUNCTION in place of --shapes.")
    call = _load_call(parsed)
    try:
        plan = call.plan(options, None if options.quiet else _say)
    except LimitError as error:
        if parsed.json:
            _print_json(_refusal(error))
        _say(str(error))
        return TOO_BIG
    check = plan.check(*_real_arguments(parsed)) if options.run else None
    if parsed.json:
        _print_json(_outcome(plan, call, check))
    else:
        print(plan_line(plan, call, options) if options.quiet else plan.explain())
        if check is not None and check.ok:
            print(check_line(check))
    if check is not None and not check.ok:
        _say(f"the rewritten {call.name} did not pass its check, so no file is written: {check.how}")
        return FAILED
    if options.export is not None:
        plan.save(options.export)
        _say(f"wrote {options.export}")
    if html is not None:
        _write(html, plan.to_html())
    return FITS


def _compare(parsed: argparse.Namespace) -> int:
    from .compare import compare
    from .target import resolve

    html = _html_path(parsed)
    targets = [resolve(name) for name in parsed.targets.split(",")]
    call = _load_call(parsed)
    options: dict[str, Any] = {"static_argnums": call.static_argnums, "static_argnames": call.static_argnames}
    made = compare(call.named, *call.args, targets=targets, progress=_say, **options, **call.kwargs)
    if parsed.json:
        _print_json({"function": made.name, "targets": [row.to_dict() for row in made]})
    else:
        print(made)
    if html is not None:
        _write(html, made.to_html())
    return FITS if all(row.fits_rewritten for row in made) else TOO_BIG


def _schedule(parsed: argparse.Namespace) -> int:
    from .lines import schedule_line

    options, html = read_options(parsed), _html_path(parsed)
    call = _load_call(parsed)
    schedule = call.schedule(options, parsed.seconds, None if options.quiet else _say)
    if parsed.json:
        _print_json(schedule.to_dict())
    else:
        print(schedule_line(schedule, call) if options.quiet else schedule)
    if html is not None:
        _write(html, schedule.to_html())
    return FITS


def _demo(parsed: argparse.Namespace) -> int:
    from .demo import run_demo

    return run_demo(pathlib.Path("memscope-demo"))


def _load_call(parsed: argparse.Namespace) -> Call:
    from .call import Call, abstract_arguments
    from .load import load_function

    args: Any
    if parsed.shapes is not None:
        args = _shapes(parsed.shapes)
        fn = load_function(parsed.function)
    else:
        fn = load_function(parsed.function)
        args = abstract_arguments(load_function(parsed.args))
    if not isinstance(args, tuple):
        raise UsageError(
            f"{parsed.args} returned a {type(args).__name__}: return the tuple of arguments, as in (q, x)."
        )
    label = parsed.function.rpartition(":")[2].rpartition(".")[2]
    call = Call(fn, args, label=label if label.isidentifier() else None)
    call.check()
    return call


def _shapes(text: str) -> Any:
    import jax

    from .shapes import needs_x64, parse_shapes

    structs = parse_shapes(text)
    if needs_x64(text):
        jax.config.update("jax_enable_x64", True)
    return structs


def _real_arguments(parsed: argparse.Namespace) -> tuple[Any, ...]:
    from .load import load_function

    return load_function(parsed.args)()


def _outcome(plan: Plan, call: Call, check: Check | None) -> dict[str, Any]:
    return {
        "function": call.name,
        "fits": plan.fits,
        "peak_bytes": plan.peak_bytes,
        "original_peak_bytes": plan.original_peak_bytes,
        "refused": plan.refused,
        "slowdown": plan.slowdown,
        "loops": [dataclasses.asdict(loop) for loop in plan.loops],
        "simplified": [dataclasses.asdict(gone) for gone in plan.simplified],
        "rearranged": [dataclasses.asdict(rearranged) for rearranged in plan.rearranged],
        "recomputed": [dataclasses.asdict(again) for again in plan.recomputed],
        "moved": [dataclasses.asdict(moved) for moved in plan.moved],
        "scheduled_by": plan.scheduled_by,
        "check": None if check is None else dataclasses.asdict(check),
    }


def _refusal(error: LimitError) -> dict[str, Any]:
    return {
        "fits": False,
        "floor_bytes": error.floor_bytes,
        "blockers": [{**dataclasses.asdict(buffer), "reason": reason} for buffer, reason in error.blockers],
    }


def _html_path(parsed: argparse.Namespace) -> pathlib.Path | None:
    return None if parsed.html is None else writable_path(parsed.html, "--html")


def _write(path: pathlib.Path, page: str) -> None:
    path.write_text(page, encoding="utf-8")
    _say(f"wrote {path}")


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, default=str))


def _say(line: str) -> None:
    print(f"memscope: {line}", file=sys.stderr, flush=True)
