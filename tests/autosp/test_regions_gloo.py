"""Checkpointed regions, writes to buffers and wrapped layers on real gloo processes."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from autosp.verification_report import COMPILED_REFERENCE
from tests.support.gloo_cases import run_cases
from tests.support.region_cases import AUTOCAST, CHECKPOINTED, DROPPED, WRAPPED, WRITING


@pytest.fixture(scope="module")
def found():
    cases = {**CHECKPOINTED, **WRAPPED, **AUTOCAST, **WRITING}
    dropped = {f"dropped {name}": case for name, case in DROPPED.items()}
    return run_on_ranks(partial(run_cases, {**cases, **dropped}), num_ranks=2)


@pytest.mark.parametrize("name", [*CHECKPOINTED, *WRAPPED])
def test_checkpointed_and_adapted_models_equal_the_eager_model(found, name):
    report = found[name]
    assert not isinstance(report, str), report
    assert report.ok, (report.max_rel_error, report.first_wrong_detail)
    assert len(report.gradients) > 3


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_in_regions_is_drawn_again_as_one_rank_draws_it(found, name):
    report = found[f"dropped {name}"]
    assert not isinstance(report, str), report
    assert report.reference == COMPILED_REFERENCE
    assert report.ok, (report.max_rel_error, report.first_wrong_detail)
    assert len(report.gradients) > 10


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
