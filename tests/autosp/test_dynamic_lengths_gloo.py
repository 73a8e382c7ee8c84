"""One program for many lengths, trained on real processes as the eager model is."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from tests.support.dynamic_cases import (
    compiled_by_inductor,
    logits_of_every_length,
    one_program_for_batches_and_lengths,
    one_program_for_lengths,
    parts_of_every_length,
)
from tests.support.gloo_cases import run_cases

LENGTHS = (17, 16, 23, 32)
TWO = {
    **{name: partial(one_program_for_lengths, name, LENGTHS) for name in ("gpt", "hf_llama")},
    "batches": one_program_for_batches_and_lengths,
    "logits": logits_of_every_length,
    "parts": parts_of_every_length,
    "inductor": compiled_by_inductor,
}
FOUR = {"llama": partial(one_program_for_lengths, "llama", LENGTHS)}


@pytest.fixture(scope="module")
def two():
    return run_on_ranks(partial(run_cases, TWO), num_ranks=2)


@pytest.fixture(scope="module")
def four():
    return run_on_ranks(partial(run_cases, FOUR), num_ranks=4)


def assert_equal_with_one_compilation(errors, tolerance=1e-12):
    assert not isinstance(errors, str), errors
    assert errors.pop("compilations", 1) == 1
    assert len(errors) >= 6
    assert max(errors.values()) < tolerance, errors


@pytest.mark.parametrize("name", TWO)
def test_two_ranks_equal_the_eager_model_at_every_length(two, name):
    in_float32 = name == "hf_llama"  # transformers computes the loss so
    assert_equal_with_one_compilation(two[name], 2e-6 if in_float32 else 1e-12)


def test_four_ranks_equal_the_eager_model_at_every_length(four):
    assert_equal_with_one_compilation(four["llama"])
