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
    """

    name: str
    tree: PyTreeDef
    leaves: tuple[str, ...]
    unpacking: tuple[str, ...]
    keyword: bool


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
    found, first = [], 0
    for tree, key, base in zip(trees, keys, bases, strict=True):
        # `*args` gives several arguments the same name.
        plain = base if key is not None or bases.count(base) == 1 else names.numbered(base)
        name = plain if key is not None or plain != base else names.exact(base)
        if key is not None:
            names.exact(name)
        wanted = leaf_names[first : first + tree.num_leaves]
        found.append(_argument(name, tree, wanted, names, keyword=key is not None))
        first += tree.num_leaves
    return found


def _argument(name: str, tree: PyTreeDef, wanted: Sequence[str], names: Names, *, keyword: bool) -> Argument:
    if jax.tree_util.treedef_is_leaf(tree) and tree.num_leaves == 1:
        return Argument(name, tree, (name,), (), keyword)
    leaves = tuple(names.exact(w) for w in wanted)
    if not leaves:
        return Argument(name, tree, (), (), keyword)
    if _is_plain(tree):
        paths = list(_paths(tree, name))
        lines = [f"{leaf} = {path}" for leaf, path in zip(leaves, paths, strict=True)]
    else:
        target = tuple_text(leaves)
        lines = [f"{target if len(target) > 60 else target.strip('()')} = jax.tree.leaves({name})"]
    return Argument(name, tree, leaves, tuple(lines), keyword)


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
