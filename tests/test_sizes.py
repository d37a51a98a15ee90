"""Bytes in words, and words in bytes."""

from __future__ import annotations

import pytest

from memscope.sizes import format_apart, format_at_least, format_bytes, parse_size

COUNTS = [1, 999, 1000, 1023, 1024, 1025, 1_120_520, 1_120_521, (1 << 20) - 1, 1 << 30, (1 << 30) + 1, 10**12 + 7]


@pytest.mark.parametrize("count", COUNTS)
def test_a_limit_rounded_up_holds_what_it_stands_for(count: int) -> None:
    written = parse_size(format_at_least(count))
    assert count <= written <= 1.01 * count


def test_what_three_digits_do_not_tell_apart_is_told_to_the_byte() -> None:
    assert format_apart(1 << 20, 1 << 21) == ("1.00 MiB", "2.00 MiB")
    assert format_apart(1 << 20, (1 << 20) + 1) == ("1,048,576 bytes", "1,048,577 bytes")
    assert format_bytes((1 << 20) + 1) == "1.00 MiB"
