"""Checkpointed regions, writes to buffers and wrapped layers on real gloo processes."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from tests.support.gloo_cases import run_cases
from tests.support.region_cases import AUTOCAST, CHECKPOINTED, WRAPPED, WRITING


@pytest.fixture(scope="module")
def found():
    return run_on_ranks(
        partial(run_cases, {**CHECKPOINTED, **WRAPPED, **AUTOCAST, **WRITING}), num_ranks=2
    )


@pytest.mark.parametrize("name", [*CHECKPOINTED, *WRAPPED])
def test_checkpointed_and_adapted_models_equal_the_eager_model(found, name):
    report = found[name]
    assert not isinstance(report, str), report
    assert report.ok, (report.max_rel_error, report.first_wrong_detail)
    assert len(report.gradients) > 3


@pytest.mark.parametrize("name", WRITING)
def test_buffers_and_inputs_are_written_as_eager_steps_write_them(found, name):
    errors = found[name]
    assert not isinstance(errors, str), errors
    assert max(errors.values()) < 1e-12, errors


@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_inside_and_around_the_call_is_that_of_the_eager_model(found, name):
    errors = found[name]
    assert not isinstance(errors, str), errors
    assert errors["noise of the loss"] > 1e-5, "autocast changed nothing"
    assert errors["loss"] <= errors["noise of the loss"] / 10, errors
    assert errors["gradients"] <= errors["noise of the gradients"], errors
