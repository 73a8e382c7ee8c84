"""The estimate holds for sequence-parallel steps on real ranks, collectives included."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.support.peak_cases import PeakCase
from tests.support.sharded_cases import IN_A_RING, ON_FOUR_RANKS, ON_TWO_RANKS
from tests.support.sharded_training import compare_peaks

TOLERANCE = 0.005


@pytest.mark.parametrize(("num_ranks", "from_list"), [(2, "ON_TWO_RANKS"), (4, "ON_FOUR_RANKS")])
def test_peak_of_a_rank_is_within_half_a_percent_of_the_profiler(
    num_ranks: int, from_list: str
) -> None:
    cases = ON_TWO_RANKS if num_ranks == 2 else ON_FOUR_RANKS
    check_peaks(cases, num_ranks, from_list, num_all_to_alls=[8] * len(cases))


def test_peak_in_a_ring_is_within_half_a_percent_of_the_profiler() -> None:
    check_peaks(IN_A_RING, 2, "IN_A_RING", num_all_to_alls=[1, 2])


def check_peaks(
    cases: Sequence[PeakCase], num_ranks: int, from_list: str, *, num_all_to_alls: list[int]
) -> None:
    found = compare_peaks(range(len(cases)), num_ranks, from_list)
    assert len(found) == len(cases)
    table = "\n".join(str(comparison) for comparison in found)
    assert [comparison.num_all_to_alls for comparison in found] == num_all_to_alls, table
    for case, comparison in zip(cases, found, strict=True):
        error = abs(comparison.estimated_bytes / comparison.measured_bytes - 1)
        assert error <= TOLERANCE, f"{comparison}\n{table}"
        assert re.search(case.where, comparison.place), f"{comparison}\n{table}"
