"""The estimated live peak is what the profiler measures, for peaks all over the step."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from autosp.events import MEMORY_CATEGORIES, MemoryPoint
from tests.support.peak_cases import CASES, PeakCase
from tests.support.profiled_training import predict_memory, profile_training

TOLERANCE = 0.005


def _loss(output: Any) -> torch.Tensor:
    loss = output if isinstance(output, torch.Tensor) else output.loss
    assert isinstance(loss, torch.Tensor)
    return loss


def _table(case: PeakCase, predicted: MemoryPoint, rows: dict[str, tuple[int, int]]) -> str:
    lines = [f"{case.name}: peak at {predicted.phase} {predicted.node} {predicted.module}"]
    lines += [
        f"  {name:<22}{estimate:>14,} estimated{truth:>14,} measured{estimate / truth - 1:>+10.4%}"
        for name, (estimate, truth) in rows.items()
    ]
    lines += [f"  {name:<22}{size:>14,}" for name, size in predicted.categories.items() if size]
    return "\n".join(lines)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_peak_is_within_half_a_percent_of_the_profiler(case: PeakCase) -> None:
    torch.manual_seed(0)
    training = profile_training(
        case.build(),
        case.inputs(),
        loss_of=_loss,
        make_optimizer=case.make_optimizer,
        partitioner=case.partitioner,
    )
    memory = predict_memory(training.step, optimizer=case.optimizer)
    peak = memory.peak
    measured = training.measured.peak_bytes
    excess = peak.live_bytes - memory.persistent_bytes
    rows = {
        "peak": (peak.live_bytes, measured + training.base_bytes),
        "above the base": (excess, measured),
        "base": (memory.persistent_bytes, training.base_bytes),
    }
    table = _table(case, peak, rows)
    for estimate, truth in rows.values():
        assert abs(estimate - truth) <= TOLERANCE * truth, table
    assert re.search(case.where, f"{peak.phase} {peak.node} {peak.module}"), table
    assert tuple(peak.categories) == MEMORY_CATEGORIES


def test_categories_sum_to_the_live_bytes_at_every_point() -> None:
    case = CASES[0]
    training = profile_training(
        case.build(),
        case.inputs(),
        loss_of=_loss,
        make_optimizer=case.make_optimizer,
        partitioner=case.partitioner,
    )
    memory = predict_memory(training.step, optimizer=case.optimizer)
    assert all(sum(p.categories.values()) == p.live_bytes for p in memory.points)
    assert sum(tensor.bytes for tensor in memory.live_at_peak) == memory.peak.live_bytes
