"""Bytes from what people write, and back. Inside memscope a size is always an int, in bytes."""

from __future__ import annotations

import math
import re

from .errors import ArgumentError, SizeError

_UNITS = {
    "": 1,
    "b": 1,
    **{p + "b": 1000**i for i, p in enumerate("kmgt", 1)},
    **{p + "ib": 1024**i for i, p in enumerate("kmgt", 1)},
}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kmgt]?i?b?|%)\s*", re.IGNORECASE)
_EXPECTED = 'give bytes as an int, or a text like "512MiB", "2GB" or "25%"'


def parse_limit(limit: int | float | str, original_peak_bytes: int) -> int:
    """Bytes of a limit: an int, "512MiB", "2GB" (1e9), "1.5 GiB", or "25%" of the original peak.

    Raises:
      ValueError: not a size, or not above zero.
      TypeError: neither a number nor a text.
    """
    percent = check_limit(limit)
    if percent is not None:
        return max(1, int(original_peak_bytes * percent / 100))
    return parse_size(limit)


def check_limit(limit: int | float | str) -> float | None:
    """The percentage a limit asks for, or None where it is a size of its own; raises as `parse_limit`."""
    if isinstance(limit, str) and limit.strip().endswith("%"):
        match = _SIZE.fullmatch(limit)
        if match is None:
            raise SizeError(f"limit {limit!r} is not a size: {_EXPECTED}.")
        percent = float(match[1])
        if percent <= 0:
            raise SizeError(f"limit {limit!r} must be above zero: {_EXPECTED}.")
        return percent
    parse_size(limit)
    return None


def parse_size(size: int | float | str) -> int:
    """Bytes of a size given as a number or a text with a unit; raises as `parse_limit`."""
    if isinstance(size, bool) or not (isinstance(size, (int, float, str)) or hasattr(size, "__index__")):
        raise ArgumentError(f"limit {size!r} is a {type(size).__name__}, not a size: {_EXPECTED}.")
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = None if match is None else _UNITS.get(match[2].lower())
        if match is None or unit is None:
            raise SizeError(f"limit {size!r} is not a size: {_EXPECTED}.")
        value = float(match[1]) * unit
    else:
        value = float(size)
    if not math.isfinite(value) or (not isinstance(size, str) and value != int(value)):
        raise SizeError(f"limit {size!r} is not a size: {_EXPECTED}.")
    if value < 1:
        raise SizeError(f"limit {size!r} must be above zero: {_EXPECTED}.")
    return int(value)


def is_unit(text: str) -> bool:
    """Whether a word stands for a unit of bytes, as in "MiB"."""
    return text != "" and text.lower() in _UNITS


def format_bytes(count: int | float) -> str:
    """Three digits and a unit, as in "1.34 GiB"."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 999.5 or unit == "TiB":
            break
        value /= 1024
    if unit == "B":
        return f"{int(value)} B"
    digits = max(0, 2 - len(str(int(abs(value)))) + 1)
    return f"{value:.{digits}f} {unit}"


def format_at_least(count: int) -> str:
    """The same, rounded up: a limit that is written so holds that many bytes."""
    text, more = format_bytes(count), count
    while parse_size(text) < count:
        more += 1 + count // 2000
        text = format_bytes(more)
    return text


def format_apart(small: int, large: int) -> tuple[str, str]:
    """Two sizes that differ, to the byte where three digits don't tell them apart."""
    texts = format_bytes(small), format_bytes(large)
    return texts if texts[0] != texts[1] else (f"{small:,} bytes", f"{large:,} bytes")
