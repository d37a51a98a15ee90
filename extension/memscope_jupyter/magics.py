"""`%memsafe` and `%%memsafe`: a thin skin over memscope.profile and memscope.plan."""

from __future__ import annotations

import importlib.util
import io
import os
import shlex
import sys
import textwrap
from typing import Any

from IPython.core.error import UsageError as MagicUsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand, output_can_be_silenced
from IPython.core.magic_arguments import MagicArgumentParser

from memscope.call import Call, user_traceback
from memscope.errors import ExportError, LimitError, TargetError
from memscope.options import Options, UsageError, add_options, add_rewrite_options, read_options
from memscope.sizes import is_unit
from memscope.target import resolve

from .cell import read_cell, read_line, run_cell
from .display import Report

_HERE = os.path.dirname(__file__) + os.sep

_DESCRIPTION = """\
See where a call's memory goes, and bind a version of its function that fits.

    %memsafe [options] knn(q, x)

traces the call instead of running it: its function and arguments are evaluated, the call is not.

    %%memsafe --limit 512MiB
    q = load_queries()
    knn(q, x)

runs the statements of the cell and does the same for its last expression, a call.

In a notebook it opens a panel: where the memory goes, a slider for the limit, the version that fits, a
check of it, and a file of it to take away. Elsewhere it prints a report.

Without --limit nothing is bound until you press Apply; where the function takes more than the target
holds, or with --limit, it looks for a version that fits and binds it to <function>_safe at once.
"""


def _parser() -> MagicArgumentParser:
    parser = MagicArgumentParser(prog="memsafe", description=_DESCRIPTION)
    add_options(parser)
    add_rewrite_options(parser)
    parser.add_argument("--name", metavar="NAME", help="what the rewritten function is bound to")
    parser.add_argument("-h", "--help", action="store_true", help="show this text")
    return parser


PARSER = _parser()
LIMIT = ("-l", "--limit")
WITH_VALUE = (*LIMIT, "-t", "--target", "--export", "--name")


@magics_class
class MemscopeMagics(Magics):
    """The magics of `%load_ext memscope`."""

    shell: InteractiveShell  # there is one wherever a magic runs

    @no_var_expand
    @output_can_be_silenced
    @line_cell_magic
    def memsafe(self, line: str, cell: str | None = None) -> Any:  # its help text is the parser's, set below
        __tracebackhide__ = True
        try:
            return self._memsafe(line, cell)
        except (UsageError, TargetError, ExportError) as error:
            raise MagicUsageError(str(error)) from None
        except LimitError as error:
            if not hasattr(error, "_render_traceback_"):
                _show_as(error, [str(error)])
            raise
        except SyntaxError:
            raise
        except Exception as error:
            self._show_users_own(error)
            raise

    def _memsafe(self, line: str, cell: str | None) -> Any:
        tokens, rest = split_options(line)
        parsed = PARSER.parse_args([self.shell.var_expand(token) for token in tokens])
        if parsed.help:
            print(PARSER.format_help())
            return None
        options = read_options(parsed)
        if cell is None:
            source = read_line(self.shell, rest)
        elif rest:
            raise UsageError(f"{rest!r} is no option of %%memsafe: the call goes on the last line of the cell.")
        else:
            source = read_cell(self.shell, cell)
        call = run_cell(self.shell, source)
        call.check()
        return self._debug(call, options)

    def _debug(self, call: Call, options: Options) -> Any:
        if options.run and call.abstract:
            raise UsageError("--run needs values, and a ShapeDtypeStruct has none: call it with arrays.")
        if options.run and not resolve(options.target).is_here:
            raise UsageError(
                f"--run runs nothing on a GPU that is not here: use --export, and run it on {options.target}."
            )
        if not options.quiet and can_open(self.shell):
            from .opening import open_panel

            return open_panel(self.shell, call, options)
        report = Report(call, options)
        if not options.rewrites:
            profile = call.profile(options)
            report.show_profile(profile)
            if report.holds(profile):
                return None
        plan = call.plan(options, report.progress)
        name = options.name or f"{call.name}_safe"
        self.shell.push({name: plan.fn})
        if options.export is not None:
            plan.save(options.export)
        report.show_plan(plan, name)
        return plan.fn(*call.args, **call.kwargs) if options.run else None

    def _show_users_own(self, error: Exception) -> None:
        """Makes IPython show the traceback from the user's first frame on."""
        theirs = user_traceback(error, _HERE, os.path.dirname(sys.modules["IPython"].__file__ or "") + os.sep)
        if theirs is not None:
            text = self.shell.InteractiveTB.structured_traceback(type(error), error, theirs, tb_offset=0)
            _show_as(error, text)


def can_open(shell: InteractiveShell) -> bool:
    """Whether there is a notebook to show a panel in, and what it is made of."""
    needed = ("anywidget", "ipywidgets", "plotly")
    return hasattr(shell, "kernel") and all(importlib.util.find_spec(name) for name in needed)


def split_options(line: str) -> tuple[list[str], str]:
    """The options at the start of a magic's line, and the rest of it as it was written.

    The rest is Python: no quote or backslash in it may be touched.
    """
    tokens: list[str] = []
    rest = line.strip()
    while rest.startswith("-"):
        token, rest = _first_token(rest)
        if token == "--":
            break
        tokens.append(token)
        if token in WITH_VALUE and rest:
            value, rest = _first_token(rest)
            unit = rest.partition(" ")[0]
            if token in LIMIT and value[-1:].isdigit() and is_unit(unit):  # 50 MiB, as the panel itself writes it
                value, rest = f"{value} {unit}", rest[len(unit) :].lstrip()
            tokens.append(value)
    return tokens, rest


def _first_token(text: str) -> tuple[str, str]:
    stream = io.StringIO(text)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        token = lexer.get_token()
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}; close the quote.") from None
    return token or "", text[stream.tell() :].lstrip()


def _show_as(error: Exception, lines: list[str]) -> None:
    """What IPython shows of this one exception in place of all frames since the cell's."""
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]


MemscopeMagics.memsafe.__doc__ = textwrap.dedent(PARSER.format_help())
