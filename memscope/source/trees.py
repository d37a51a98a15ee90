"""Arguments taken apart and results put together, as source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef

from .expr import tuple_text
from .names import Names

_KEYS = (str, int, bool, float, type(None))


@dataclasses.dataclass(frozen=True)
class Argument:
    """One parameter of the written function.

    Attributes:
      leaves: its leaves' names, in order.
      unpacking: the statements that bind them; none where the argument is its own leaf.
      key: the keyword it is passed by; None for a positional argument.
      hidden: its keyword would hide a builtin or an import, so it comes in `**keywords`.
    """

    name: str
    tree: PyTreeDef
    leaves: tuple[str, ...]
    unpacking: tuple[str, ...]
    key: str | None = None
    hidden: bool = False

    @property
    def keyword(self) -> bool:
        return self.key is not None


def arguments(in_tree: PyTreeDef, leaf_names: Sequence[str], names: Names) -> list[Argument]:
    """The parameters for a treedef of (args, kwargs), named after the user's own."""
    positional, keywords = in_tree.children()
    keys: list[Any] = [None] * len(positional.children())
    keys += keywords.node_data()[1] if keywords.node_data() is not None else []
    trees = [*positional.children(), *keywords.children()]
    bases, first = [], 0
    for tree, key in zip(trees, keys, strict=True):
        base = leaf_names[first] if tree.num_leaves else "unused"
        bases.append(str(key) if key is not None else base.split("[")[0].split(".")[0])
        first += tree.num_leaves
    # A keyword can't be renamed, so it comes first; where even it is taken, it stays in `**keywords`.
    hidden = {key for key in keys if key is not None and not names.claim(key)}
    if hidden:
        names.claim("keywords")
    found, first = [], 0
    for tree, key, base in zip(trees, keys, bases, strict=True):
        wanted = leaf_names[first : first + tree.num_leaves]
        first += tree.num_leaves
        if key is not None:
            name = f'keywords["{key}"]' if key in hidden else key
        else:  # `*args` gives several arguments the same name
            name = names.exact(base) if bases.count(base) == 1 else names.numbered(base)
        leaves, unpacking = _unpacked(name, tree, wanted, names)
        found.append(Argument(name, tree, leaves, unpacking, key, key in hidden))
    return found


def _unpacked(
    name: str, tree: PyTreeDef, wanted: Sequence[str], names: Names
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of an argument's leaves, and the statements that bind them."""
    if jax.tree_util.treedef_is_leaf(tree) and tree.num_leaves == 1 and name.isidentifier():
        return (name,), ()
    leaves = tuple(names.exact(w) for w in wanted)
    if not leaves:
        return (), ()
    if _is_plain(tree):
        return leaves, tuple(f"{leaf} = {path}" for leaf, path in zip(leaves, _paths(tree, name), strict=True))
    target = ", ".join(leaves) if len(leaves) > 1 else f"[{leaves[0]}]"
    return leaves, (f"{target if len(target) < 60 else f'({target})'} = jax.tree.leaves({name})",)


def _node(tree: PyTreeDef) -> tuple[Any, Any]:
    """The node's type and its data; (None, None) for a leaf."""
    data = tree.node_data()
    return (None, None) if data is None else data


def _is_plain(tree: PyTreeDef) -> bool:
    """True where only tuples, lists, dicts with simple keys and None are in the tree."""
    kind, data = _node(tree)
    if kind is dict and not all(type(key) in _KEYS for key in data):
        return False
    return kind in (None, tuple, list, dict, type(None)) and all(_is_plain(child) for child in tree.children())


def _paths(tree: PyTreeDef, prefix: str) -> Iterator[str]:
    kind, data = _node(tree)
    if kind is None:
        yield prefix
    keys = data if kind is dict else range(len(tree.children()))
    for key, child in zip(keys, tree.children(), strict=True):
        yield from _paths(child, f"{prefix}[{_quoted(key)}]")


def _quoted(key: Any) -> str:
    text = repr(key)
    return f'"{key}"' if isinstance(key, str) and text == f"'{key}'" and '"' not in key else text


@dataclasses.dataclass(frozen=True)
class Result:
    """The returned expression; `flat` where it is a tuple of leaves in place of a structure that can't be written."""

    text: str
    flat: bool = False


def result(out_tree: PyTreeDef, leaves: Sequence[str], inputs: Sequence[Argument]) -> Result:
    """The leaves in the output's own structure.

    A custom node (a dataclass, an optimiser's state) is rebuilt where an argument has the same
    structure, as in a training step; where none has, all leaves are returned flat.
    """
    rebuilt = {a.tree: a.name for a in inputs if a.tree.num_leaves}
    text = _build(out_tree, iter(leaves), rebuilt)
    return Result(tuple_text(leaves) if leaves else "()", flat=True) if text is None else Result(text)


def _build(tree: PyTreeDef, leaves: Iterator[str], like: dict[PyTreeDef, str]) -> str | None:
    kind, data = _node(tree)
    if kind is None:
        return next(leaves)
    if not _is_plain(tree) and tree in like:
        own = [next(leaves) for _ in range(tree.num_leaves)]
        return f"jax.tree.unflatten(jax.tree.structure({like[tree]}), [{', '.join(own)}])"
    if kind is type(None):
        return "None"
    if kind not in (tuple, list, dict) or (kind is dict and not all(type(key) in _KEYS for key in data)):
        return None
    children = [_build(child, leaves, like) for child in tree.children()]
    parts = [child for child in children if child is not None]
    if len(parts) < len(children):
        return None
    if kind is dict:
        return "{" + ", ".join(f"{_quoted(k)}: {part}" for k, part in zip(data, parts, strict=True)) + "}"
    if kind is list:
        return f"[{', '.join(parts)}]"
    return tuple_text(parts) if parts else "()"
