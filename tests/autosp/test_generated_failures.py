"""What generated programs found wrong once, each by name."""

from __future__ import annotations

import torch

from tests.support.generated_program import GeneratedProgram
from tests.support.generated_proof import Outcome, prove_program


def assert_proved(program: GeneratedProgram) -> None:
    """Right on every number of ranks, nothing refused."""
    for outcome in prove_program(program):
        assert outcome == Outcome(num_fallbacks=outcome.num_fallbacks)


def test_a_mask_made_in_the_dtype_of_queries_under_autocast():
    # The capture traced without autocast: queries were float32, the mask bfloat16 already.
    assert_proved(GeneratedProgram(mask="per_head", dtype="float32", autocast=True))
    assert not torch.is_autocast_enabled("cpu")
