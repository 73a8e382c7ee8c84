"""Model state per parameter against the ZeRO paper (Rajbhandari et al. 2020)."""

from __future__ import annotations

import pytest

from autosp.cost.optimizer import OptimizerModel, state_tensors, step_bytes, temporary_bytes
from autosp.cost.zero import ZeroModel

PARAMETERS = 7_500_000_000
BF16_BYTES = 2
MIXED = OptimizerModel(name="adamw", master_weights=True)


def _state_bytes(optimizer: OptimizerModel, elements: int, element_bytes: int) -> int:
    states = state_tensors(optimizer, num_elements=elements, element_bytes=element_bytes)
    return sum(state.size_bytes for state in states)


def test_mixed_precision_adam_keeps_twelve_bytes_per_parameter() -> None:
    assert _state_bytes(MIXED, 1000, BF16_BYTES) == 12 * 1000 + 4


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_the_zero_paper(stage: int, gigabytes: float) -> None:
    """7.5 billion parameters, 64 ranks: 120, 31.4, 16.6 and 1.9 GB."""
    zero = ZeroModel(stage=stage, world_size=64)
    parameters = gradients = BF16_BYTES * PARAMETERS
    optimizer = _state_bytes(MIXED, PARAMETERS, BF16_BYTES)
    total = (
        (zero.share(parameters) if zero.shards_parameters else parameters)
        + (zero.share(gradients) if zero.shards_gradients else gradients)
        + (zero.share(optimizer) if zero.shards_optimizer else optimizer)
    )
    assert total / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_states_in_the_type_of_the_parameter_without_master_weights() -> None:
    names = [s.name for s in state_tensors(OptimizerModel(), num_elements=10, element_bytes=2)]
    assert names == ["exp_avg", "exp_avg_sq", "step"]
    assert _state_bytes(OptimizerModel(), 10, 2) == 2 * 10 * 2 + 4


@pytest.mark.parametrize(
    ("optimizer", "state", "temporary"),
    [
        (OptimizerModel(name="none"), 0, 0),
        (OptimizerModel(name="sgd", weight_decay=False), 0, 0),
        (OptimizerModel(name="sgd", weight_decay=True), 0, 40),
        (OptimizerModel(name="sgd", momentum=True, weight_decay=False), 40, 0),
        (OptimizerModel(name="adamw"), 84, 80),
        (OptimizerModel(name="adamw", implementation="foreach"), 84, 40),
        (OptimizerModel(name="adamw", implementation="fused"), 84, 0),
    ],
)
def test_state_and_temporaries_of_ten_float32_elements(
    optimizer: OptimizerModel, state: int, temporary: int
) -> None:
    assert _state_bytes(optimizer, 10, 4) == state
    assert temporary_bytes(optimizer, num_elements=10, element_bytes=4) == temporary


def test_a_step_moves_state_and_parameter_twice_and_the_gradient_once() -> None:
    assert step_bytes(OptimizerModel(), num_elements=10, element_bytes=4) == 2 * (40 + 84) + 40
    assert step_bytes(OptimizerModel(name="none"), num_elements=10, element_bytes=4) == 0


def test_a_share_is_rounded_up() -> None:
    assert ZeroModel(stage=1, world_size=8).share(17) == 3
