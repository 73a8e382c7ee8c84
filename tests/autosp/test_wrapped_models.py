"""Adapters, frozen weights, tied heads and autocast: every value and cotangent is right."""

from __future__ import annotations

import pytest
import torch

from autosp.dry_run import dry_run
from tests.support.checkpointed import tokens
from tests.support.dry_runs import request_for
from tests.support.programs import assert_right
from tests.support.wrapped import Adapted, PartlyInHalf, Tied


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
