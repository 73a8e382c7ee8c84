"""FSDP2 around the whole model, on real ranks, equals training in one process."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from tests.support.engine_cases import Training, compare_fsdp, inner_fsdp_error
from tests.support.gloo_cases import run_cases


@pytest.fixture(scope="module")
def results():
    cases = {
        "SGD": partial(compare_fsdp, Training()),
        "AdamW": partial(
            compare_fsdp, Training(model="llama", optimizer="AdamW", clipping=0.5, steps=8)
        ),
        "inner": inner_fsdp_error,
    }
    return run_on_ranks(partial(run_cases, cases), num_ranks=2)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_training(results, name):
    result = results[name]
    assert not isinstance(result, str), result
    assert result.num_all_to_alls >= 8
    assert result.whole_activations == ()
    assert result.loss_error < 1e-5
    for found, expected in result.norms:
        assert found == pytest.approx(expected, rel=1e-5)
    if name == "SGD":
        assert result.parameter_error < 1e-6


def test_fsdp_inside_the_model_is_refused(results):
    assert "fully_shard was called on 'layers.0' and 1 more, inside the model" in results["inner"]
