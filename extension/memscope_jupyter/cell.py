"""From the text of a line or cell to the call that is to be debugged, evaluated in the user's namespace."""

from __future__ import annotations

import ast
import collections
import dataclasses
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from memscope.call import Call
from memscope.options import UsageError

_CAPTURE = "__memscope_call__"
_EXPECTED = "memscope debugs a call, such as knn(q, x)"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell split in what runs as it is and the call that is only taken apart."""

    statements: ast.Module
    call: ast.Expression
    filename: str


def read_line(shell: InteractiveShell, text: str) -> Cell:
    """The call on the magic's own line.

    Raises:
      UsageError: there is no expression, or it is no call.
      SyntaxError: it is no Python.
    """
    if not text.strip():
        raise UsageError(f"nothing to debug: {_EXPECTED}, as in %memsafe --limit 512MiB knn(q, x).")
    return _read(shell, text, lines_before=0)


def read_cell(shell: InteractiveShell, text: str) -> Cell:
    """The cell under the magic's line: its last expression is the call; raises as `read_line`."""
    return _read(shell, text, lines_before=1)


def run_cell(shell: InteractiveShell, cell: Cell) -> Call:
    """Runs the statements in the user's namespace and evaluates function and arguments, without the call itself."""
    exec(shell.compile(cell.statements, cell.filename, "exec"), shell.user_global_ns, shell.user_ns)  # type: ignore[arg-type]
    code = shell.compile(cell.call, cell.filename, "eval")  # type: ignore[arg-type]
    # A map before the user's names, not an entry among them; what the expression itself assigns still lands there.
    names = collections.ChainMap(shell.user_ns, {_CAPTURE: _capture})
    call: Call = eval(code, shell.user_global_ns, names)
    return call


def _capture(name: str | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call:
    return Call(fn, args, kwargs, name)


def _read(shell: InteractiveShell, text: str, lines_before: int) -> Cell:
    # Magics and shell lines work in the cell as in any other, and its lines count from the magic's own.
    source = "\n" * lines_before + shell.transform_cell(text)
    filename = shell.compile.cache(source, shell.execution_count, raw_code=text)
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=filename))
    assert isinstance(tree, ast.Module)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        raise UsageError(f"{_EXPECTED}: the last expression here is {_describe(last)}.")
    _refuse_method_of_result(last.value)
    return Cell(ast.Module(tree.body[:-1], []), _taken_apart(last.value), filename)


def _refuse_method_of_result(call: ast.Call) -> None:
    """`attend(q).sum()` would run `attend` to find its result's method, which is what the magic promises not to do."""
    if isinstance(call.func, ast.Attribute) and any(isinstance(node, ast.Call) for node in ast.walk(call.func.value)):
        inner = ast.unparse(call.func.value)
        raise UsageError(
            f"{ast.unparse(call)} calls a method of what {inner} returns, so {inner} would have to run first: "
            f"debug {inner} itself, or put both in a function."
        )


def _taken_apart(call: ast.Call) -> ast.Expression:
    """`f(a, *b, k=c)` as `capture("f", f, a, *b, k=c)`: Python itself sorts out the arguments."""
    capture = ast.copy_location(ast.Name(_CAPTURE, ast.Load()), call.func)
    name = {ast.Name: "id", ast.Attribute: "attr"}.get(type(call.func))
    label = ast.copy_location(ast.Constant(name and getattr(call.func, name)), call.func)
    taken = ast.Call(capture, [label, call.func, *call.args], call.keywords)
    return ast.fix_missing_locations(ast.Expression(ast.copy_location(taken, call)))


def _describe(node: ast.stmt | None) -> str:
    if node is None:
        return "missing"
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return f"the assignment {_short(node)}, not a call"
    return f"{_short(node)}, not a call"


def _short(node: ast.stmt) -> str:
    text = ast.unparse(node).splitlines()[0]
    return repr(text if len(text) <= 60 else text[:57] + "...")
