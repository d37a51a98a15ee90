"""The options that the command line and the notebook magics share, checked before anything runs."""

from __future__ import annotations

import argparse
import dataclasses
import keyword
import pathlib

from .errors import TargetError
from .sizes import check_limit
from .target import Target, resolve

EXPORTS = (".py", ".jaxexport")
OWN_MARK = "rewritten by memscope"
"""Stands at the top of source that memscope writes, and may write over."""


class UsageError(ValueError):
    """What was asked for makes no sense; the message is one sentence that says what to do instead."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What to do with a call.

    Attributes:
      limit: bytes of the whole call as a person writes them ("512MiB", "25%"); None is what the target holds.
      target: the place it will run, or its name; None is where JAX runs by default.
      run: also run the rewritten function.
      export: file to write the rewritten function to, .py or .jaxexport.
      name: what the rewritten function is bound to in a notebook; None is "<function>_safe".
      quiet: one line of text in place of the report.
    """

    limit: str | None = None
    target: str | Target | None = None
    run: bool = False
    export: pathlib.Path | None = None
    name: str | None = None
    quiet: bool = False

    @property
    def rewrites(self) -> bool:
        """True where a rewritten function is asked for, and not only the account of the one given."""
        return self.limit is not None or self.run or self.export is not None or self.name is not None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the shared options on a parser of any front end."""
    parser.add_argument(
        "-l",
        "--limit",
        metavar="SIZE",
        help="bytes that arguments, results and temporaries may take together: 512MiB, 2GB (1e9), or 25%% of "
        "today's peak; without it, what the target holds",
    )
    add_target(parser)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Declares those of the shared options that have nothing to do with a limit."""
    parser.add_argument(
        "-t",
        "--target",
        metavar="NAME",
        help="where it will run: cpu, gpu, or a GPU that need not be here, such as a100-40gb",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="one line of text in place of the report")


def add_rewrite_options(parser: argparse.ArgumentParser) -> None:
    """Declares the shared options that concern the rewritten function."""
    parser.add_argument("-r", "--run", action="store_true", help="run the rewritten function on the arguments as well")
    parser.add_argument(
        "--export",
        metavar="FILE",
        help="write the rewritten function to FILE: .py is standalone source, .jaxexport a compiled artifact",
    )


def read_options(parsed: argparse.Namespace) -> Options:
    """The Options in what a parser found.

    Raises:
      UsageError: a limit that is no size, an unknown target, a file that can't be written, a name that is none.
    """
    export, name = getattr(parsed, "export", None), getattr(parsed, "name", None)
    limit = getattr(parsed, "limit", None)
    if limit is not None:
        _check(check_limit, limit)
    if parsed.target is not None:
        _check(resolve, parsed.target)
    if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
        raise UsageError(f"--name {name!r} is not a Python name: use letters, digits and underscores, and no keyword.")
    return Options(
        limit=limit,
        target=parsed.target,
        run=getattr(parsed, "run", False),
        export=None if export is None else _export_path(export),
        name=name,
        quiet=parsed.quiet,
    )


def writable_path(text: str, option: str) -> pathlib.Path:
    """The path of a file to be written.

    Raises:
      UsageError: its folder does not exist, or it is a folder itself.
    """
    path = pathlib.Path(text).expanduser()
    if path.is_dir():
        raise UsageError(f"{option} {text} is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {text}: there is no folder {path.parent}; make it first.")
    return path


def _export_path(text: str) -> pathlib.Path:
    path = writable_path(text, "--export")
    if path.suffix not in EXPORTS:
        raise UsageError(
            f"--export {text}: end the name in .py for source that imports jax only, or in .jaxexport for jax.export."
        )
    if path.suffix == ".py" and path.exists() and OWN_MARK not in path.read_text(errors="replace")[:1000]:
        raise UsageError(
            f"--export {text}: that file is there already, and memscope did not write it: name another one."
        )
    return path


def _check(check: object, value: str) -> None:
    assert callable(check)
    try:
        check(value)
    except (TargetError, ValueError) as error:
        raise UsageError(str(error)) from None
