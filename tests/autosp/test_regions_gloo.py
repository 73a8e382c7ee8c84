"""Checkpointed regions, writes to buffers and wrapped layers on real gloo processes."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from tests.support.gloo_cases import run_cases
from tests.support.region_cases import CHECKPOINTED


@pytest.fixture(scope="module")
def found():
    return run_on_ranks(partial(run_cases, CHECKPOINTED), num_ranks=2)


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpointed_models_equal_the_eager_model(found, name):
    report = found[name]
    assert not isinstance(report, str), report
    assert report.ok, (report.max_rel_error, report.first_wrong_detail)
    assert len(report.gradients) > 3
