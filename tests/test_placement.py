"""Offsets for live ranges: valid, optimal where proved, never below the most alive at once."""

from __future__ import annotations

import importlib.util
import itertools
from random import Random

import pytest

from memscope.schedule import cpsat
from memscope.schedule.placement import LiveRange, Placement, most_alive, place

needs_ortools = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="OR-Tools is not installed: it comes with the extra `order`"
)


def random_ranges(random: Random, count: int, sizes: tuple[int, ...] = (1, 2, 3, 5, 8)) -> list[LiveRange]:
    starts = [random.randrange(8) for _ in range(count)]
    return [LiveRange(start, start + random.randrange(5), random.choice(sizes)) for start in starts]


def assert_valid(ranges: list[LiveRange], placement: Placement) -> None:
    spans = [(offset, offset + r.bytes) for r, offset in zip(ranges, placement.offsets, strict=True)]
    for (a, (low, high)), (b, (start, end)) in itertools.combinations(zip(ranges, spans, strict=True), 2):
        if a.start <= b.end and b.start <= a.end and a.bytes and b.bytes:
            assert high <= start or end <= low
    assert placement.total_bytes == max((high for _, high in spans), default=0)
    assert placement.load_bytes <= placement.lower_bound_bytes <= placement.total_bytes


def least_total(ranges: list[LiveRange]) -> int:
    """The optimum: in some order of placing each buffer as low as it goes, an optimal placement comes out."""
    best = sum(r.bytes for r in ranges)
    for order in itertools.permutations(range(len(ranges))):
        tops: dict[int, tuple[int, int]] = {}
        for i in order:
            taken = sorted(
                tops[j] for j in tops if ranges[i].start <= ranges[j].end and ranges[j].start <= ranges[i].end
            )
            low = 0
            for start, end in taken:
                if low + ranges[i].bytes <= start:
                    break
                low = max(low, end)
            tops[i] = low, low + ranges[i].bytes
        best = min(best, max((high for _, high in tops.values()), default=0))
    return best


@needs_ortools
@pytest.mark.parametrize("seed", range(60))
def test_small_placements_are_optimal(seed: int) -> None:
    ranges = random_ranges(Random(seed), 6)
    placement = place(ranges, seconds=10)
    assert_valid(ranges, placement)
    assert placement.total_bytes == placement.lower_bound_bytes == least_total(ranges)
    assert placement.optimal


@pytest.mark.parametrize("seed", range(60))
def test_without_ortools_placements_are_valid(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpsat, "available", lambda: False)
    ranges = random_ranges(Random(seed), 40)
    placement = place(ranges)
    assert_valid(ranges, placement)
    assert placement.lower_bound_bytes == placement.load_bytes
    assert placement.optimal or "memscope-jax[order]" in placement.remark


# Best fit puts the 1 on top of a hole that the 3 then doesn't fit into.
FRAGMENTED = [LiveRange(0, 1, 2), LiveRange(1, 3, 2), LiveRange(0, 2, 1), LiveRange(3, 5, 3), LiveRange(2, 5, 1)]


@needs_ortools
def test_fragmentation_is_what_lies_unused() -> None:
    placement = place(FRAGMENTED, seconds=10)
    assert_valid(FRAGMENTED, placement)
    assert placement.fragmentation_bytes == placement.total_bytes - most_alive(FRAGMENTED)
    assert placement.total_bytes == least_total(FRAGMENTED)


def test_the_most_alive_counts_both_ends() -> None:
    assert most_alive([LiveRange(0, 2, 5), LiveRange(2, 4, 7), LiveRange(3, 3, 1)]) == 12
    assert most_alive([]) == 0


def test_offsets_and_sizes_are_aligned() -> None:
    placement = place([LiveRange(0, 3, 100), LiveRange(1, 2, 65), LiveRange(2, 3, 1)], alignment=64)
    assert all(offset % 64 == 0 for offset in placement.offsets)
    assert placement.load_bytes == 128 + 128 + 64


def test_buffers_of_no_bytes_and_no_buffers() -> None:
    assert place([]).total_bytes == 0
    placement = place([LiveRange(0, 1, 0), LiveRange(0, 1, 4)])
    assert (placement.total_bytes, placement.fragmentation_bytes) == (4, 0)


def test_a_range_that_ends_before_it_starts_is_an_error() -> None:
    with pytest.raises(ValueError, match="lives to the step"):
        place([LiveRange(3, 2, 4)])


def test_a_thousand_buffers_are_placed_quickly_and_well() -> None:
    random = Random(0)
    starts = [random.randrange(500) for _ in range(1000)]
    ranges = [LiveRange(s, s + random.randrange(60), random.randrange(1, 1000)) for s in starts]
    placement = place(ranges, seconds=0.5)
    assert_valid(ranges, placement)
    assert placement.total_bytes <= 1.2 * placement.load_bytes
