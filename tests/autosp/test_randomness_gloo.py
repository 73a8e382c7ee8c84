"""Dropout on real gloo processes: one seed, one result, whatever the number of ranks."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from autosp.verification_report import COMPILED_REFERENCE
from tests.support import dropout_cases
from tests.support.gloo_cases import run_cases, verification

TWO_RANKS = {
    "three steps": verification(dropout_cases.gpt, ranks=2, steps=3),
    "inductor": verification(
        partial(dropout_cases.gpt, batch=1, length=9), ranks=2, inner="inductor"
    ),
}
FOUR_RANKS = {
    "four": verification(dropout_cases.gpt, ranks=4),
    "data parallel": verification(dropout_cases.gpt, ranks=4, dp=2, steps=2),
}
OTHERS = {
    "seeds": dropout_cases.ranks_with_other_seeds,
    "groups": dropout_cases.whole_output_of_two_groups,
}


@pytest.fixture(scope="module")
def two():
    return run_on_ranks(partial(run_cases, {**TWO_RANKS, **OTHERS}), num_ranks=2)


@pytest.fixture(scope="module")
def four():
    return run_on_ranks(partial(run_cases, FOUR_RANKS), num_ranks=4)


def assert_equal_to_one_rank(report):
    assert not isinstance(report, str), report
    assert report.reference == COMPILED_REFERENCE
    assert report.loss_error <= report.loss_tolerance
    wrong = [g for g in report.gradients if not g.rel_error <= report.tolerance]
    assert not wrong, (wrong, report.first_wrong_detail)
    assert len(report.gradients) > 20
    assert report.ok


@pytest.mark.parametrize("name", TWO_RANKS)
def test_gpt_with_dropout_on_two_ranks_equals_one_rank(two, name):
    assert_equal_to_one_rank(two[name])


@pytest.mark.parametrize("name", FOUR_RANKS)
def test_gpt_with_dropout_on_four_ranks_equals_one_rank(four, name):
    assert_equal_to_one_rank(four[name])


def test_ranks_whose_generators_differ_agree_on_the_numbers(two):
    losses = two["seeds"]
    assert not isinstance(losses, str), losses
    assert losses[0] == losses[1]
    assert losses[2] == losses[3]
    assert losses[0] != losses[2]


def test_data_parallel_groups_drop_other_elements(two):
    alike = two["groups"]
    assert not isinstance(alike, str), alike
    assert 0.45 < alike < 0.55
