"""Training under a DeepSpeed engine on real ranks equals training in one process."""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from tests.support.engine_cases import (
    Training,
    compare,
    compile_error,
    degree_error,
    different_batches_error,
    different_models_error,
    doubled_gradients_error,
    gradients_not_averaged_error,
    later_batches_error,
    resumed,
    samples_of_ranks,
)
from tests.support.gloo_cases import run_cases

pytest.importorskip("deepspeed")

EXACT = {
    "ZeRO 0": Training(),
    "ZeRO 1": Training(stage=1),
    "ZeRO 2": Training(stage=2, model="llama"),
}
ADAM = {
    "ZeRO 0, AdamW": Training(optimizer="AdamW", clipping=0.5, steps=5),
    "ZeRO 2, AdamW, accumulation": Training(
        stage=2, optimizer="AdamW", clipping=0.5, micro_steps=4, steps=4, model="llama"
    ),
}
LOOSE = {
    "ZeRO 1, bf16": Training(stage=1, optimizer="AdamW", bf16=True, steps=3),
}
TWO_RANKS = {**EXACT, **ADAM, **LOOSE}


OTHERS = {
    "no degree": partial(compile_error, sequence_parallel_size=None),
    "own compiler": partial(compile_error, compile={"deepcompile": True}),
    "another degree": degree_error,
    "doubled gradients": doubled_gradients_error,
    "different batches": different_batches_error,
    "a later batch": later_batches_error,
    "different models": different_models_error,
    "gradients not averaged": gradients_not_averaged_error,
}
LAST = {
    "own groups": partial(compile_error, data_parallel_size=1),
    "stage 3": partial(compile_error, zero_optimization={"stage": 3}),
}
"""What they change in DeepSpeed and torch lasts: groups, and the linear operator."""


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("checkpoint"))
    trained = {name: partial(compare, training) for name, training in TWO_RANKS.items()}
    cases = {**trained, **OTHERS, "resumed": partial(resumed, folder), **LAST}
    return run_on_ranks(partial(run_cases, cases), num_ranks=2)


def assert_sharded(result):
    assert not isinstance(result, str), result
    assert result.num_all_to_alls >= 8
    assert result.whole_activations == ()


@pytest.mark.parametrize("name", EXACT)
def test_parameters_after_steps_of_sgd(on_two_ranks, name):
    result = on_two_ranks[name]
    assert_sharded(result)
    assert result.parameter_error < 1e-6
    assert result.loss_error < 1e-6
    for found, expected in result.norms:
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ADAM)
def test_losses_of_adamw_with_clipping(on_two_ranks, name):
    result = on_two_ranks[name]
    assert_sharded(result)
    assert result.loss_error < 1e-5


@pytest.mark.parametrize("name", LOOSE)
def test_bf16_follows_float32(on_two_ranks, name):
    result = on_two_ranks[name]
    assert_sharded(result)
    assert result.loss_error < 0.02


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("stage 3", "ZeRO stage 3 cuts the parameters"),
        ("no degree", "the DeepSpeed config has sequence_parallel_size not set"),
        ("own groups", "the engine has its own sequence-parallel groups (2 ranks)"),
        ("own compiler", "turns on DeepSpeed's own compiler"),
        ("another degree", "sequence_parallel_size 2, the mesh sp 1"),
        ("doubled gradients", "gradients are 2 times the average over the 2 ranks"),
        ("different batches", "the input 'input_ids' on rank 1 is not that of rank 0"),
        ("a later batch", "the input 'labels' on rank 1 is not that of rank 0"),
        (
            "different models",
            "the parameter 'token_embedding.weight' on rank 1 is not that of rank 0",
        ),
        (
            "gradients not averaged",
            "the parameter 'token_embedding.weight' on rank 1 is not that of",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(on_two_ranks, case, expected):
    assert expected in on_two_ranks[case]
    assert "\n" not in on_two_ranks[case].split("Set TORCHDYNAMO", 1)[0].strip()


def test_a_checkpoint_resumes_without_sequence_parallelism(on_two_ranks):
    expected, found = on_two_ranks["resumed"]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def on_four_ranks():
    cases = {
        "DP x SP": partial(compare, Training(stage=1, steps=5)),
        "SP 4": partial(compare, Training(sp=4, stage=2, steps=2, micro_steps=2)),
        "samples": samples_of_ranks,
    }
    return run_on_ranks(partial(run_cases, cases), num_ranks=4)


@pytest.mark.parametrize("name", ["DP x SP", "SP 4"])
def test_four_ranks(on_four_ranks, name):
    result = on_four_ranks[name]
    assert_sharded(result)
    assert result.parameter_error < 1e-6
    for found, expected in result.norms:
        assert found == pytest.approx(expected, rel=1e-5)


def test_ranks_of_a_group_read_the_same_samples(on_four_ranks):
    by_rank = on_four_ranks["samples"]
    assert by_rank[0] == by_rank[1]
    assert by_rank[2] == by_rank[3]
    assert sorted(by_rank[0] + by_rank[2]) == list(range(8))
