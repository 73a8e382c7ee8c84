"""Compiled modules in a larger program, on two gloo ranks."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from tests.support import composed_cases
from tests.support.gloo_cases import run_cases

CASES = {
    "chain": composed_cases.one_after_the_other,
    "around": composed_cases.around_distributed_data_parallel,
    "inside": composed_cases.inside_distributed_data_parallel,
    "buffer": partial(composed_cases.remembering, True),
    "attribute": partial(composed_cases.remembering, False),
    "history": composed_cases.remembering_with_history,
    "evaluation": composed_cases.remembering_without_gradients,
}


@pytest.fixture(scope="module")
def found():
    return run_on_ranks(partial(run_cases, CASES), num_ranks=2)


def test_two_compiled_modules_one_after_the_other_are_right(found):
    assert not isinstance(found["chain"], str), found["chain"]
    assert max(found["chain"].values()) < 1e-12


def test_compiling_ddp_is_refused_with_the_order_that_works(found):
    text = found["around"]
    assert "DistributedDataParallel(autosp.compile(model))" in text
    assert "\n" not in text


def test_ddp_around_a_compiled_model_averages_as_the_convention_wants(found):
    assert not isinstance(found["inside"], str), found["inside"]
    assert max(found["inside"].values()) < 1e-12


@pytest.mark.parametrize("name", ["buffer", "attribute"])
def test_sharded_state_is_kept_from_step_to_step(found, name):
    assert not isinstance(found[name], str), found[name]
    assert len(found[name]) == 4
    assert max(found[name]) < 1e-12


def test_sharded_state_with_a_history_is_refused_not_silently_cut_off(found):
    assert "compiled without a gradient" in found["history"]
    assert "self.state = x.detach()" in found["history"]
    assert "\n" not in found["history"]


def test_state_from_an_evaluation_may_be_read_in_training(found):
    assert not isinstance(found["evaluation"], str), found["evaluation"]
    assert found["evaluation"] < 1e-12
