"""One program for many lengths, trained on real processes as the eager model is."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from tests.support.dynamic_cases import (
    function_of_every_length,
    logits_of_every_length,
    one_program_for_lengths,
    parts_of_every_length,
    ring_of_a_dynamic_length,
)
from tests.support.gloo_cases import run_cases

CASES = {
    "gpt": partial(one_program_for_lengths, "gpt", (17, 16, 23, 32)),
    "logits": logits_of_every_length,
    "parts": parts_of_every_length,
    "function": function_of_every_length,
    "ring": ring_of_a_dynamic_length,
}


@pytest.fixture(scope="module")
def two():
    return run_on_ranks(partial(run_cases, CASES), num_ranks=2)


@pytest.mark.parametrize("name", ["gpt", "logits", "parts", "function"])
def test_two_ranks_equal_the_eager_model_at_every_length(two, name):
    errors = two[name]
    assert not isinstance(errors, str), errors
    assert errors.pop("compilations", 1) == 1
    assert len(errors) >= 6
    assert max(errors.values()) < 1e-12, errors


def test_a_ring_of_a_dynamic_length_is_refused(two):
    assert "--attention ring: a ring serves one length" in two["ring"]
