"""Programs that dynamo breaks, on two real ranks, equal the eager model."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from tests.support.break_cases import PROGRAMS, compare, dropping
from tests.support.gloo_cases import Case, run_cases, verification


@pytest.fixture(scope="module")
def results():
    cases: dict[str, Case] = {name: partial(compare, name) for name in PROGRAMS}
    cases["dropout"] = verification(dropping, ranks=2, allow_breaks=True)
    return run_on_ranks(partial(run_cases, cases), num_ranks=2)


@pytest.mark.parametrize("name", PROGRAMS)
def test_pieces_train_as_the_eager_model(results, name):
    found = results[name]
    assert not isinstance(found, str), found
    assert found["ranks"] == 2
    assert found["pieces"] >= 2
    assert found["loss"] < 1e-12
    assert found["gradients"] < 1e-12


def test_dropout_in_pieces_and_between_them_is_that_of_one_rank(results):
    report = results["dropout"]
    assert not isinstance(report, str), report
    assert report.ok, report.as_dict()
    assert len(report.gradients) > 3
