"""Completion of the magics' options, and of the values that can be listed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_MAGIC = re.compile(r"\s*%%?memsafe\s+(?P<before>.*?)(?P<word>\S*)$")
_TARGET = re.compile(r".*(-t|--target)\s+$")


@context_matcher(identifier="memscope.options")
def complete_options(context: CompletionContext) -> SimpleMatcherResult:
    """Options after `%memsafe`, targets after `--target`."""
    match = _MAGIC.match(context.line_with_cursor)
    if match is None or match["word"] != context.token:
        return {"completions": []}
    if _TARGET.match(match["before"]):
        from memscope.target import targets

        words = targets()
    elif context.token.startswith("-"):
        from .magics import PARSER

        words = tuple(option for action in PARSER._actions for option in action.option_strings)
    else:
        return {"completions": []}
    found = [SimpleCompletion(word, type="param") for word in words if word.startswith(context.token)]
    return {"completions": found, "suppress": bool(found)}


def register(shell: InteractiveShell) -> None:
    unregister(shell)
    if shell.Completer is not None:
        shell.Completer.custom_matchers.append(complete_options)


def unregister(shell: InteractiveShell) -> None:
    if shell.Completer is not None and complete_options in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(complete_options)
