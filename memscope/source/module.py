"""A whole module: imports, the function, and the jitted wrapper around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.extend import core as jex_core
from jax.tree_util import PyTreeDef

from .constants import Constants
from .control import CONTROL
from .expr import Expr, tuple_text, wrap
from .names import Names, identifier
from .printer import Block, Printer
from .trees import Argument, Result, arguments, result
from .values import param_text

ClosedJaxpr = jex_core.ClosedJaxpr


def python_source(
    closed: ClosedJaxpr,
    *,
    name: str,
    in_tree: PyTreeDef,
    out_tree: PyTreeDef,
    argument_names: Sequence[str],
    header: str,
    compiler_options: Mapping[str, str],
    x64: bool,
    donated: Sequence[bool] = (),
    platform: str = "cpu",
) -> str:
    """Standalone Python that defines `<name>_safe`, which computes `closed`.

    Args:
      closed: flat arguments and results in the order of the trees.
      name: the original function's name.
      in_tree: the treedef of (args, kwargs), static arguments left out.
      argument_names: of each flat argument, as `Program.argument_names` has them.
      header: the module's docstring.
      compiler_options: what the function is jitted with where nothing traces it.
      x64: the mode the program was traced in.
      donated: which flat arguments are donated; empty for none.
      platform: whose branch of a platform-dependent computation inside a loop is written.

    Raises:
      NotImplementedError: a primitive can't be written; the message names it and its line.
      ValueError: the program's constants are too large for source.
    """
    names = Names()
    safe, function = names.exact(f"{identifier(name)}_safe"), f"_{identifier(name)}"
    inputs = arguments(in_tree, argument_names, names)
    constants = Constants(names)
    wide = not x64 and any(_is_64_bit(v.aval) for v in _variables(closed.jaxpr))
    contexts = ["jax.enable_x64(True)"] * wide + ["jax.threefry_partitionable(False)"] * _old_threefry(closed.jaxpr)
    printer = Printer(names, constants, CONTROL, x64=x64 or wide, platform=platform)
    block = Block(8 if contexts else 4)
    flat = printer.flat(closed)
    body = printer.body(flat, [Expr(leaf) for a in inputs for leaf in a.leaves], block)
    returned = result(out_tree, printer.results(body), inputs)
    page = _Page(function, safe, inputs, returned, header, dict(compiler_options), x64)
    types = [f"{v.aval.dtype}{list(v.aval.shape)}" for v in closed.jaxpr.invars]
    used = {leaf for leaf, v in zip(_leaves(inputs), flat.jaxpr.invars, strict=True) if body.used(v)}
    code = [
        *([*constants.module_lines, ""] if constants.module_lines else []),
        *_type_table(inputs, types),
        "",
        "",
        *_function(page, block, constants.body_lines, contexts, used),
        "",
        "",
        *_jits(page, donated),
        "",
        "",
        *_wrapper(page),
        "",
    ]
    return "\n".join([*_docstring(header), "", *_imports("\n".join(code), constants), "", *code])


@dataclasses.dataclass(frozen=True)
class _Page:
    function: str
    safe: str
    inputs: list[Argument]
    returned: Result
    header: str
    options: dict[str, str]
    x64: bool

    @property
    def parameters(self) -> str:
        positional = [a.name for a in self.inputs if not a.keyword]
        keywords = [a.name for a in self.inputs if a.keyword and not a.hidden]
        rest = ["**keywords"] if any(a.hidden for a in self.inputs) else []
        return ", ".join([*positional, *(["*"] if keywords else []), *keywords, *rest])

    @property
    def passed(self) -> str:
        shown = [f"{a.name}={a.name}" if a.keyword else a.name for a in self.inputs if not a.hidden]
        return ", ".join([*shown, *(["**keywords"] if any(a.hidden for a in self.inputs) else [])])

    @property
    def everything(self) -> str:
        """The arguments as one tree, its leaves in the program's order."""
        return tuple_text([a.name for a in self.inputs]) if self.inputs else "()"


def _leaves(inputs: Sequence[Argument]) -> list[str]:
    return [leaf for a in inputs for leaf in a.leaves]


def _docstring(header: str) -> list[str]:
    text = header.replace("\\", "\\\\").replace('"""', "'''").strip()
    lines = [line.rstrip() for line in text.splitlines()] or ["Written by memscope."]
    if len(lines) == 1 and not lines[0].endswith('"'):
        return [f'"""{lines[0]}"""']
    return [f'"""{lines[0]}', *lines[1:], '"""']


def _imports(code: str, constants: Constants) -> Iterator[str]:
    if constants.uses_base64:
        yield from ("import base64", "")
    yield from ("import jax", "import jax.numpy as jnp")
    if constants.uses_numpy:
        yield "import numpy as np"
    if "lax." in code:
        yield "from jax import lax"
    if "primitives." in code:
        yield "from jax.extend.core import primitives"


def _type_table(inputs: Sequence[Argument], types: Sequence[str]) -> list[str]:
    rows = [f'    ("{leaf}", "{text}"),' for leaf, text in zip(_leaves(inputs), types, strict=True)]
    return ["_ARGUMENTS = (", *rows, ")"] if rows else ["_ARGUMENTS = ()"]


def _function(
    page: _Page, block: Block, constant_lines: Sequence[str], contexts: Sequence[str], used: set[str]
) -> Iterator[str]:
    yield from wrap(f"def {page.function}({page.parameters}):", 0)
    for argument in page.inputs:
        for line in argument.unpacking:
            target = line.split(" = ")[0]
            if target in used or "," in target or target not in argument.leaves:
                yield from wrap(line, 4)
    if contexts:
        yield f"    with {', '.join(contexts)}:"
    for line in constant_lines:
        yield from wrap(line, block.indent)
    yield from block.lines
    text = page.returned.text
    # A bare tuple reads better, where it fits.
    bare = text[1:-1] if text.startswith("(") and not text.endswith(",)") and text != "()" else text
    if not text.startswith("(") or _closes_at_end(text):
        yield from wrap(f"return {bare}" if len(bare) < 80 else f"return {text}", block.indent)
    else:
        yield from wrap(f"return {text}", block.indent)


def _closes_at_end(text: str) -> bool:
    depth = 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if depth == 0:
            return i == len(text) - 1
    return False


def _jits(page: _Page, donated: Sequence[bool]) -> list[str]:
    donate = _donation(page.inputs, donated)
    pairs = ", ".join(f"{param_text(key)}: {param_text(value)}" for key, value in sorted(page.options.items()))
    options = f", compiler_options={{{pairs}}}" if pairs else ""
    lines = wrap(f"_compiled = jax.jit({page.function}{donate}{options})", 0)
    if options:
        lines += ["# Inside another jit, grad or vmap no compiler options may be given: the outermost jit's hold."]
        lines += [f"_traced = jax.jit({page.function})"]
    return lines


def _donation(inputs: Sequence[Argument], donated: Sequence[bool]) -> str:
    """jit donates whole arguments: those all of whose leaves are donated."""
    numbers, keywords, first = [], [], 0
    for i, argument in enumerate(inputs):
        flags = donated[first : first + len(argument.leaves)]
        first += len(argument.leaves)
        if flags and all(flags):
            keywords += [argument.key] if argument.keyword else []
            numbers += [] if argument.keyword else [i]
    text = f", donate_argnums={tuple_text([str(n) for n in numbers])}" if numbers else ""
    quoted = [f'"{k}"' for k in keywords]
    return text + (f", donate_argnames={tuple_text(quoted)}" if keywords else "")


def _wrapper(page: _Page) -> Iterator[str]:
    yield from wrap(f"def {page.safe}({page.parameters}):", 0)
    if page.returned.flat:
        yield '    """Checks the arguments and computes; call this one.'
        yield ""
        yield "    The result has custom pytree nodes, which no source can stand for: its leaves are returned"
        yield "    as a flat tuple, in the order of `jax.tree.leaves`."
        yield '    """'
    else:
        yield '    """Checks the arguments and computes; call this one."""'
    yield f"    with jax.enable_x64({page.x64}):"
    yield from wrap(f"leaves = jax.tree.leaves({page.everything})", 8)
    yield '        given = [f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in leaves]'
    yield "        wanted = [text for _, text in _ARGUMENTS]"
    yield "        if given != wanted:"
    yield "            # Another shape would give wrong values: the sizes are written into the code."
    yield f'            raise TypeError(f"{page.safe} takes {{wanted}}, not {{given}}")'
    if page.options:
        yield "        # Under an outer jit new arrays are traced, even where the arguments are constants."
        yield "        probe = [*leaves, jnp.zeros(())]"
        yield "        if any(isinstance(leaf, jax.core.Tracer) for leaf in probe):"
        yield from wrap(f"return _traced({page.passed})", 12)
    yield from wrap(f"return _compiled({page.passed})", 8)


def _variables(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield from eqn.outvars
        for inner in _inner(eqn):
            yield from _variables(inner)


def _inner(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, jex_core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, jex_core.Jaxpr):
                yield item


def _is_64_bit(aval: Any) -> bool:
    return str(getattr(aval, "dtype", "")) in ("float64", "int64", "uint64", "complex128")


def _old_threefry(jaxpr: Any) -> bool:
    """True where keys were used under the counter layout that is no longer the default."""
    return any(
        (eqn.primitive.name.startswith("random_") and not eqn.ctx.threefry_partitionable)
        or any(_old_threefry(inner) for inner in _inner(eqn))
        for eqn in jaxpr.eqns
    )
