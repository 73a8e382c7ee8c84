"""Models whose forward writes to what they were given: statistics, caches, counters, inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.support.programs import NUM_HEADS, WIDTH, SmallModel

CACHE_LENGTH = 16


class Counting(SmallModel):
    """Counts its steps, through a view, and reads the counter afterwards."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("count", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.count: Tensor
        self.steps: Tensor

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        self.steps += 1
        self.count[1:].add_(1)
        return super().forward(ids, labels) * self.count.sum() / self.steps


class RunningStatistics(SmallModel):
    """Scales by the running mean square *before* it is updated; the backward needs the old one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(before=self.scaled, **options)
        self.register_buffer("square", torch.ones(WIDTH, dtype=torch.float64))
        self.square: Tensor

    def scaled(self, model: SmallModel, x: Tensor) -> Tensor:
        y = x * self.square.sqrt() + self.square.sin() * model.bias
        with torch.no_grad():
            self.square.lerp_(x.detach().square().mean((0, 1)), 0.3)
        return y * self.square


class CheckpointedStatistics(RunningStatistics):
    """The same inside a checkpointed region, which runs twice but writes once."""

    def scaled(self, model: SmallModel, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(super().scaled, model, x, use_reentrant=False)
        return result


class Caching(SmallModel):
    """Keeps its inputs in a cache of static size, as generation does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(before=self.kept, **options)
        self.register_buffer(
            "cache", torch.zeros(2, NUM_HEADS, CACHE_LENGTH, WIDTH // NUM_HEADS).double()
        )
        self.cache: Tensor

    def kept(self, model: SmallModel, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = x.detach().view(batch, length, NUM_HEADS, -1).transpose(1, 2)
        self.cache[:batch, :, 1 : length + 1] = heads
        mean = self.cache[:batch].mean((1, 2, 3))
        return x * (1 + mean[:, None, None])


class KeepingSums(SmallModel):
    """``copy_`` of a value that carries a gradient, which flows on through the buffer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(after=self.kept, **options)
        self.register_buffer("total", torch.zeros(WIDTH, dtype=torch.float64))
        self.total: Tensor

    def kept(self, model: SmallModel, x: Tensor) -> Tensor:
        self.total.copy_(x.sum((0, 1)))
        return x * self.total.sin()


class ShiftingLabels(SmallModel):
    """Writes to an input: the caller sees it."""

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        labels.add_(1)
        return super().forward(ids, labels) + labels.sum()


WRITING = (
    Counting,
    RunningStatistics,
    CheckpointedStatistics,
    Caching,
    KeepingSums,
    ShiftingLabels,
)
