"""What the templates pass around: a piece of Python with how tightly it binds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

# Python's binding strength, loosest first.
TUPLE, COMPARE, OR, XOR, AND, SUM, PRODUCT, UNARY, POWER, ATOM = range(10)


@dataclasses.dataclass(frozen=True)
class Expr:
    """A Python expression and the strength of its outermost operator."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text, in parentheses where an operator of strength `level` would tear it apart."""
        return self.text if self.level >= level else f"({self.text})"

    @property
    def is_name(self) -> bool:
        return self.text.isidentifier()


def call(function: str, *arguments: str | Expr, **keywords: str | None) -> Expr:
    """`function(*arguments, **keywords)`; a keyword of None is left out."""
    parts = [a.text if isinstance(a, Expr) else a for a in arguments]
    parts += [f"{name}={text}" for name, text in keywords.items() if text is not None]
    return Expr(f"{function}({', '.join(parts)})")


def tuple_text(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def packed(items: Sequence[str], empty: str = "()") -> str:
    """One item alone, several as a tuple with parentheses."""
    if not items:
        return empty
    return items[0] if len(items) == 1 else tuple_text(items)


def wrap(line: str, indent: int, width: int = 99) -> list[str]:
    """`line` as lines of at most `width` columns, broken inside its brackets as formatters do."""
    pad = " " * indent
    if indent + len(line) <= width:
        return [pad + line]
    spans = _bracket_spans(line)
    target, equals, value = line.partition(" = ")
    if not spans and equals:
        return [f"{pad}{target} = (", f"{pad}    {value}", f"{pad})"]
    if not spans:
        return [pad + line]
    start, end = max(spans, key=lambda span: span[1] - span[0])
    items = _split_commas(line[start + 1 : end])
    is_call = line[start] == "(" and re.search(r"[\w\])]$", line[:start]) is not None
    comma = "," if len(items) > 1 or line[end - 1] == "," or is_call else ""
    if not any(items):
        return [pad + line]
    lines = [pad + line[: start + 1]]
    for item in items:
        if item:
            lines += wrap(item + comma, indent + 4, width)
    lines.append(pad + line[end])
    tail = wrap(line[end:], indent, width)
    return [*lines[:-1], *tail]


def _bracket_spans(text: str) -> list[tuple[int, int]]:
    """Positions of each outermost pair of brackets."""
    spans, depth, start = [], 0, 0
    for i, char in _code(text):
        if char in "([{":
            start = i if depth == 0 else start
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0 and i - start > 1:
                spans.append((start, i))
    return spans


def _split_commas(text: str) -> list[str]:
    items, depth, start = [], 0, 0
    for i, char in _code(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            items.append(text[start:i].strip())
            start = i + 1
    return [*items, text[start:].strip()]


def _code(text: str) -> list[tuple[int, str]]:
    """The characters of `text` outside its string literals, each with its position."""
    kept, quote, i = [], "", 0
    while i < len(text):
        char = text[i]
        if quote:
            i += char == "\\"
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        else:
            kept.append((i, char))
        i += 1
    return kept
