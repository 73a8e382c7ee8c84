"""Rows that move between ranks do so on real processes as in the oracle."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from tests.support.gloo_cases import run_cases, verification
from tests.support.gloo_sequences import moving

CASES = {
    "even": verification(partial(moving, batch=2, length=8), ranks=2),
    "padding": verification(partial(moving, batch=1, length=7), ranks=2),
}


@pytest.fixture(scope="module")
def results():
    return run_on_ranks(partial(run_cases, CASES), num_ranks=2)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_equal_the_eager_model(results, name):
    report = results[name]
    assert not isinstance(report, str), report
    assert report.ok, (report.loss_error, report.first_wrong_detail)
    assert len(report.gradients) > 3
