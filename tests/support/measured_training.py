"""Small trainings whose steps are measured, in any process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import profile

import autosp
from autosp_inspector import recording
from tests.support.programs import SmallModel, tokens

STEPS = 3
ENOUGH_STEPS = 1 + 2 + STEPS + 1
"""One that compiles, two to warm up, those that are timed, and the profiled one."""


def train(
    folder: Path,
    *,
    num_steps: int = ENOUGH_STEPS,
    micro_batches: int = 1,
    lengths: tuple[int, ...] = (12,),
    optimizer: type[torch.optim.Optimizer] | None = torch.optim.AdamW,
    inner: str = "eager",
    profiler: profile | None = None,
    **options: Any,
) -> torch.Tensor:
    """Train a small model on this rank under a recorder; returns all parameters.

    ``profiler`` starts before step 3, as a script's own would.
    """
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = SmallModel(dtype=torch.float32)
    stepper = None if optimizer is None else optimizer(model.parameters(), lr=1e-3)
    inputs = [tokens(2, length) for length in lengths]
    with recording(folder, rank=dist.get_rank(), **options) as recorder:
        compiled = autosp.compile(model, inner=inner, recorder=recorder)
        for step in range(num_steps):
            if step == 3 and profiler is not None:
                profiler.start()
            for _ in range(micro_batches):
                compiled(*inputs[step % len(inputs)]).backward()
            if dist.get_world_size() > 1:
                autosp.average_gradients(model.parameters())
            if stepper is not None:
                stepper.step()
            model.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train_on_ranks(folder: Path) -> None:
    """What every rank of the test with two processes runs."""
    train(folder, gpu="h100")
