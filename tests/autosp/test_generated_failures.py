"""What generated programs found wrong once, each by name."""

from __future__ import annotations

import torch

from tests.support.generated_program import GeneratedProgram, Step
from tests.support.generated_proof import Outcome, prove_program


def assert_proved(program: GeneratedProgram) -> None:
    """Right on every number of ranks, nothing refused."""
    for outcome in prove_program(program):
        assert outcome == Outcome(num_fallbacks=outcome.num_fallbacks)


def test_a_mask_made_in_the_dtype_of_queries_under_autocast():
    # The capture traced without autocast: queries were float32, the mask bfloat16 already.
    assert_proved(GeneratedProgram(mask="per_head", dtype="float32", autocast=True))
    assert not torch.is_autocast_enabled("cpu")


def test_an_output_that_is_some_rows_of_a_tensor_which_is_an_output_too():
    # The oracle joined the blocks of the shorter output in the shape of the longer one.
    assert_proved(
        GeneratedProgram(
            length=3,
            before=(Step("index", ("rotary",), (0, (1, 2))),),
            after=(Step("chunk", ("x",), (-2,)),),
            loss="outside",
        )
    )


def test_a_frozen_table_written_in_place():
    # The proof compared with a second run of the module, whose table the first had written.
    assert_proved(
        GeneratedProgram(
            length=2,
            heads=2,
            kv_heads=2,
            head_size=4,
            after=(Step("scale_in_place", ("table",)),),
            frozen=("table",),
        )
    )
