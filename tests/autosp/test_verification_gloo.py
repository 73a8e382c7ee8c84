"""The compiled program on real gloo processes: loss, gradients and training as in one process."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.errors import RankError
from autosp.verification import VerifyRequest, verify
from autosp.verification_processes import run_on_ranks
from tests.support import attention_cases, gloo_cases
from tests.support.gloo_cases import (
    assert_gradients_and_loss_equal,
    run_cases,
    sample,
    small,
    verification,
)

SAMPLES = ("gpt", "llama", "hf_llama")


def sample_cases(names, shape, *, ranks, **options):
    batch, length, dtype = shape
    return {
        f"{name} {batch}x{length} {dtype}": verification(
            partial(sample, name, batch=batch, length=length, dtype=dtype),
            ranks=ranks,
            dtype=dtype,
            **options,
        )
        for name in names
    }


TWO_RANKS = {
    **sample_cases(("gpt",), (1, 16, "float64"), ranks=2),
    **sample_cases(("llama",), (2, 13, "float32"), ranks=2),
    **sample_cases(SAMPLES, (2, 13, "float64"), ranks=2, steps=10, regulariser=1e-3),
    "inductor": verification(partial(small, batch=2, length=7), ranks=2, inner="inductor"),
}
FORMS_OF_TWO = {
    "flex": partial(
        attention_cases.against_written_out, attention_cases.flex, length=7, num_kv_heads=4
    ),
    "flash ring": partial(
        attention_cases.against_written_out, attention_cases.flash, length=7, num_kv_heads=12,
        attention="ring",
    ),
}  # fmt: skip
ENTRIES = {
    "two lengths": gloo_cases.backend_entry_at_two_lengths,
    "logits": gloo_cases.logits_are_whole_when_read,
    "shifted logits": gloo_cases.shifted_logits_are_whole_when_read,
    "detached logits": gloo_cases.backward_through_detached_logits,
    "loss outside": gloo_cases.loss_outside_on_gathered_logits,
    "loss inside": gloo_cases.loss_compiled_inside,
    "evaluation": gloo_cases.evaluation_without_gradients,
    "parts": gloo_cases.parts_of_the_sequence_on_each_rank,
    "parts of embeddings": gloo_cases.parts_of_embeddings_on_each_rank,
    "unfit parts": gloo_cases.parts_that_do_not_fit_together,
    "unknown part": gloo_cases.unknown_sharded_input,
    "broken and read": gloo_cases.broken_program_that_reads,
}
FOUR_RANKS = {
    **sample_cases(SAMPLES, (2, 13, "float64"), ranks=4),
    "data parallel": verification(partial(small, batch=2, length=7), ranks=4, dp=2, steps=10),
    "one kv head": verification(partial(small, batch=2, length=5, num_kv_heads=1), ranks=4),
    "six kv heads": verification(partial(small, batch=2, length=5, num_kv_heads=6), ranks=4),
    "flash hybrid": verification(
        partial(attention_cases.subject, attention_cases.flash, batch=1, length=11, num_kv_heads=4),
        ranks=4,
        attention="hybrid",
    ),
}


@pytest.fixture(scope="module")
def two():
    return run_on_ranks(partial(run_cases, {**TWO_RANKS, **FORMS_OF_TWO, **ENTRIES}), num_ranks=2)


@pytest.fixture(scope="module")
def four():
    return run_on_ranks(partial(run_cases, FOUR_RANKS), num_ranks=4)


def assert_equal_to_eager(report):
    assert_gradients_and_loss_equal(report)
    assert report.ok


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_equal_the_eager_model(two, name):
    assert_equal_to_eager(two[name])


@pytest.mark.parametrize("name", FOUR_RANKS)
def test_four_ranks_equal_the_eager_model(four, name):
    assert_equal_to_eager(four[name])


@pytest.mark.parametrize("name", FORMS_OF_TWO)
def test_forms_of_attention_equal_a_softmax_written_out(two, name):
    assert not isinstance(two[name], str), two[name]
    assert max(two[name].values()) < 1e-12


def test_ten_steps_lead_to_the_same_parameters(two, four):
    errors = [two[f"{name} 2x13 float64"].parameter_error for name in SAMPLES]
    errors.append(four["data parallel"].parameter_error)
    assert max(errors) <= 1e-10


def test_tolerances_are_those_of_the_precision(two):
    assert two["gpt 1x16 float64"].tolerance == 1e-12
    assert two["gpt 1x16 float64"].loss_tolerance == 1e-12
    assert two["hf_llama 2x13 float64"].loss_tolerance == 1e-6
    assert two["llama 2x13 float32"].tolerance == 1e-5


def test_another_length_is_another_compilation_and_a_known_one_is_not(two):
    errors = two["two lengths"]
    assert errors.pop("compilations") == 2
    assert max(errors.values()) < 1e-12


def test_logits_beside_a_loss_are_whole_when_read(two):
    assert two["logits"]["shape"] == (2, 7, 17)
    assert two["logits"]["error"] < 1e-12


def test_logits_without_their_last_row_are_whole_when_read(two):
    assert two["shifted logits"] == {"shape": (2, 7, 17), "equal": True}


def test_a_gradient_of_logits_beside_a_loss_is_an_error(two):
    assert "compiled without a gradient" in two["detached logits"]


def test_a_loss_outside_on_gathered_logits_is_right(two):
    assert two["loss outside"] < 1e-12


def test_a_loss_compiled_inside_is_right(two):
    assert max(two["loss inside"].values()) < 1e-12


def test_evaluation_without_gradients(two):
    assert two["evaluation"] < 1e-12


def test_inputs_may_be_sharded_already(two):
    assert max(two["parts"].values()) < 1e-12


def test_embeddings_sharded_already_get_their_gradient(two):
    assert two["parts of embeddings"] < 1e-12


def test_parts_of_different_batches_are_an_error(two):
    assert "parts of different kinds" in two["unfit parts"]


def test_an_unknown_sharded_input_is_an_error(two):
    assert "'input_id', which the model's forward does not take" in two["unknown part"]
    assert "ids, labels" in two["unknown part"]


def test_pieces_of_a_broken_program_hand_blocks_on_and_are_right(two):
    found = two["broken and read"]
    assert found["loss"] < 1e-12
    assert found["gradients"] < 1e-12
    assert found["gathers"] == 0
    assert found["pieces"] == 4


def test_a_failing_rank_is_one_clear_line():
    build = partial(small, batch=1, length=9)
    with pytest.raises(RankError) as caught:
        verify(VerifyRequest(build=build, ranks=5, attention="ulysses"))
    assert "SP degree 5 does not fit attention" in str(caught.value)
    assert "\n" not in str(caught.value)
