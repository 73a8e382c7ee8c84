"""Adapters, frozen weights, tied heads and autocast: every value and cotangent is right."""

from __future__ import annotations

import pytest
import torch

from autosp.dry_run import dry_run
from autosp.oracle import check_module
from autosp_inspector.target.inputs import inputs_from_signature
from tests.support import gloo_cases
from tests.support.checkpointed import tokens
from tests.support.dry_runs import request_for
from tests.support.programs import assert_right
from tests.support.wrapped import Adapted, PartlyInHalf, Tied, peft_adapters


@pytest.mark.parametrize("kind", [Adapted, Tied])
@pytest.mark.parametrize("length", [8, 7])
def test_frozen_and_shared_weights_are_right(kind, length):
    assert_right(kind(dtype=torch.float64), inputs=tokens, cases=((2, length, 2), (2, length, 4)))


def test_regions_of_autocast_are_right():
    assert_right(PartlyInHalf(), inputs=tokens, cases=((2, 8, 2), (2, 7, 4)))


def test_only_what_is_trained_has_a_gradient():
    inputs = dry_run(request_for(lambda: Adapted(), sp=2, seq=8)).compilation.captured.inputs
    trained = {given.name for given in inputs if given.trainable}
    assert len(trained) == 8
    assert all("lora_" in name for name in trained)


def test_adapters_of_peft_with_dropout_are_right():
    sample = gloo_cases.sample("llama", batch=2, length=9, dtype="float64")
    model = peft_adapters(sample.module, dropout=0.1).train()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 2 * 3 + 1
    report = check_module(model, (), sample.kwargs, num_ranks=2)
    assert report.ok, report.first_wrong
    assert report.num_cotangents_checked > 60 and report.num_fallbacks == 0


def test_inputs_are_made_for_a_model_that_peft_wraps():
    model = peft_adapters(gloo_cases.sample_model("llama", tiny=True))
    made = inputs_from_signature(model, batch=2, seq=8, where="model.py")
    assert {name: tuple(value.shape) for name, value in made.kwargs.items()} == {
        "input_ids": (2, 8),
        "labels": (2, 8),
    }
