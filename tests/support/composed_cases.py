"""Compiled modules in a larger program: one after the other, wrapped, and with state."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import autosp
from tests.support.gloo_cases import gradients_of, largest_difference, mean_loss
from tests.support.programs import WIDTH, SmallModel, tokens

BATCH, LENGTH = 2, 7


class First(nn.Module):
    """Tokens to hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SmallModel()

    def forward(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self.inner.embedding)
        return x + self.inner.attend(x)


class Second(First):
    """Hidden states to hidden states."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x + self.inner.attend(x))


class Remembering(First):
    """Adds what it saw in the last step, which is sharded; a buffer, or a plain attribute."""

    def __init__(self, *, is_buffer: bool, detaches: bool = True) -> None:
        super().__init__()
        self.detaches = detaches
        nothing = torch.zeros(BATCH, LENGTH, WIDTH, dtype=torch.float64)
        if is_buffer:
            self.register_buffer("seen", nothing)
        else:
            self.seen = nothing

    def forward(self, ids: Tensor) -> Tensor:
        x = super().forward(ids) + 0.1 * self.seen
        self.seen = x.detach() if self.detaches else x
        return x.sin().sum()


def one_after_the_other() -> dict[str, float]:
    """``second(first(ids))``: the block goes on as it is; the loss is outside of both."""
    both = nn.ModuleList([First(), Second()])
    ids, _ = tokens(BATCH, LENGTH)
    expected = both[1](both[0](ids)).square().sum()
    expected.backward()
    reference = gradients_of(both)
    both.zero_grad()
    first, second = (autosp.compile(part, inner="eager") for part in both)
    loss = second(first(ids)).square().sum()
    loss.backward()
    autosp.average_gradients(both.parameters())
    difference = largest_difference(reference, gradients_of(both))
    return {"loss": abs(float(loss.detach() - expected.detach())), "gradients": difference}


def around_distributed_data_parallel() -> str:
    try:
        autosp.compile(DistributedDataParallel(SmallModel()), inner="eager")
    except autosp.AutoSPError as error:
        return str(error)
    return "no error"


def inside_distributed_data_parallel() -> dict[str, float]:
    """As the error says: DDP averages the gradients over all ranks."""
    model = SmallModel(loss=mean_loss)
    ids, labels = tokens(BATCH, LENGTH)
    expected = model(ids, labels)
    expected.backward()
    reference = gradients_of(model)
    model.zero_grad()
    compiled: Any = autosp.compile(model, inner="eager")
    wrapped = DistributedDataParallel(compiled, find_unused_parameters=True)
    loss = wrapped(ids, labels)
    loss.backward()
    difference = largest_difference(reference, gradients_of(model))
    return {"loss": abs(float(loss.detach() - expected.detach())), "gradients": difference}


def remembering(is_buffer: bool) -> list[float]:
    """Differences of three losses from the eager model's, and of what it remembers."""
    ids, _ = tokens(BATCH, LENGTH)
    eager, model = Remembering(is_buffer=is_buffer), Remembering(is_buffer=is_buffer)
    compiled = autosp.compile(model, inner="eager")
    differences = []
    for _ in range(3):
        loss = compiled(ids)
        loss.backward()
        differences.append(abs(float(loss.detach() - eager(ids).detach())))
    differences.append(float((model.seen - eager.seen).abs().max()))
    return differences


def remembering_with_history() -> str:
    """Eager PyTorch would go back through two steps; here that gradient would be lost."""
    ids, _ = tokens(BATCH, LENGTH)
    compiled = autosp.compile(Remembering(is_buffer=False, detaches=False), inner="eager")
    compiled(ids)
    try:
        compiled(ids)
    except autosp.AutoSPError as error:
        return str(error)
    return "no error"


def remembering_without_gradients() -> float:
    """In evaluation nothing is lost."""
    ids, _ = tokens(BATCH, LENGTH)
    models = [Remembering(is_buffer=False, detaches=False) for _ in range(2)]
    compiled = autosp.compile(models[0], inner="eager")
    with torch.no_grad():
        compiled(ids)
        models[1](ids)
    return abs(float(compiled(ids).detach() - models[1](ids).detach()))
