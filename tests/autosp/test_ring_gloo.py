"""Ring attention on real gloo processes: loss, gradients and training as in one process."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from autosp.verification_processes import run_on_ranks
from tests.support import gloo_cases
from tests.support.gloo_cases import (
    Subject,
    assert_gradients_and_loss_equal,
    run_cases,
    sample,
    small,
    verification,
)
from tests.support.masks import FACTORED, attention_under, masked_tokens
from tests.support.programs import SmallModel, tokens


def checkpointed(*, batch, length):
    """The attention in a checkpointed region: its ring runs again in the backward."""

    def twice(model, x):
        return x + torch.utils.checkpoint.checkpoint(model.attend, x, use_reentrant=False)

    return Subject(SmallModel(loss=gloo_cases.mean_loss, after=twice), tokens(batch, length))


def bidirectional(*, batch, length):
    def attention(model, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return Subject(
        SmallModel(loss=gloo_cases.mean_loss, attention=attention), tokens(batch, length)
    )


def masked(*, batch, length):
    """Padding, a window within documents, and a prefix, one attention each."""
    names = ("causal and left or right padding", "window in documents", "prefix and padding")
    attention = attention_under({name: FACTORED[name] for name in names})
    model = SmallModel(loss=gloo_cases.mean_loss, attention=attention)
    return Subject(model, masked_tokens(batch, length))


def verify_sample(name, batch, length, dtype="float64", **options):
    build = partial(sample, name, batch=batch, length=length, dtype=dtype)
    return verification(build, dtype=dtype, **options)


RING = {"attention": "ring"}
TWO_RANKS = {
    "llama float32": verify_sample("llama", 2, 13, "float32", **RING),
    "hf_llama, ten steps": verify_sample("hf_llama", 2, 13, **RING, steps=10, regulariser=1e-3),
    "inductor": verification(partial(small, batch=2, length=7), inner="inductor", **RING),
    "checkpointed": verification(
        partial(checkpointed, batch=2, length=9), partitioner="default", **RING
    ),
    "masks": verification(
        partial(masked, batch=2, length=11), attention="ulysses", inner="inductor"
    ),
}
ENTRIES = {
    "logits": partial(gloo_cases.logits_are_whole_when_read, **RING),
    "loss outside": partial(gloo_cases.loss_outside_on_gathered_logits, **RING),
    "evaluation": partial(gloo_cases.evaluation_without_gradients, **RING),
    "broken and read": partial(gloo_cases.broken_program, gloo_cases.read_a_sum, **RING),
}
FOUR_RANKS = {
    "llama": verify_sample("llama", 2, 21, **RING, ranks=4),
    "hybrid": verification(
        partial(small, batch=2, length=11), ranks=4, attention="hybrid", steps=10
    ),
    "masks": verification(partial(masked, batch=2, length=11), ranks=4, **RING),
    "masks, hybrid": verification(partial(masked, batch=2, length=13), ranks=4, attention="hybrid"),
    "a rank of padding whose block nobody needs": verification(
        partial(bidirectional, batch=2, length=5), ranks=4, **RING
    ),
    "data parallel": verification(
        partial(small, batch=2, length=7), ranks=4, dp=2, **RING, steps=10
    ),
}


@pytest.fixture(scope="module")
def two():
    return run_on_ranks(partial(run_cases, {**TWO_RANKS, **ENTRIES}), num_ranks=2)


@pytest.fixture(scope="module")
def four():
    return run_on_ranks(partial(run_cases, FOUR_RANKS), num_ranks=4)


def assert_equal_to_eager(report):
    assert_gradients_and_loss_equal(report)
    assert report.ok


@pytest.mark.parametrize("case", TWO_RANKS)
def test_two_ranks(two, case):
    assert_equal_to_eager(two[case])


@pytest.mark.parametrize("case", FOUR_RANKS)
def test_four_ranks(four, case):
    assert_equal_to_eager(four[case])


def test_outputs_in_zigzag_order_are_whole_and_in_order_when_read(two):
    assert two["logits"]["shape"] == (2, 7, 17)
    assert two["logits"]["error"] < 1e-12
    assert two["loss outside"] < 1e-12
    assert two["evaluation"] < 1e-12


def test_pieces_of_a_broken_program_hand_zigzag_blocks_on(two):
    found = two["broken and read"]
    assert not isinstance(found, str), found
    assert found["loss"] < 1e-12 and found["gradients"] < 1e-12
    assert found["gathers"] == 0
    assert found["pieces"] == 4
