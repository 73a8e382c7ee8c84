"""Cases of regions, writes and wrappers that ranks run; the tests judge the plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

import autosp
from tests.support import gloo_cases, programs, writing
from tests.support.checkpointed import Call, Decoder, checkpointed, nested, selectively, tokens
from tests.support.gloo_cases import (
    Case,
    Subject,
    gradients_of,
    largest_difference,
    verification,
)
from tests.support.programs import SmallModel
from tests.support.wrapped import Adapted, PartlyInHalf, Tied, peft_adapters


def decoder(call: Call, *, length: int, dropout: float = 0.0) -> Subject:
    torch.manual_seed(0)
    ids, labels = tokens(2, length)
    model = Decoder(call, dtype=torch.float64, dropout=dropout)
    return Subject(model, kwargs={"input_ids": ids, "labels": labels})


def checkpointed_llama() -> Subject:
    """transformers' own way to checkpoint every layer."""
    subject = gloo_cases.sample("hf_llama", batch=2, length=13, dtype="float64")
    enable: Callable[..., None] = subject.module.gradient_checkpointing_enable  # type: ignore[assignment]
    enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return subject


CHECKPOINTED: dict[str, Case] = {
    "llama": verification(checkpointed_llama, ranks=2, steps=3),
    "nested": verification(partial(decoder, nested, length=9), ranks=2, partitioner="default"),
    "selective": verification(partial(decoder, selectively, length=9), ranks=2),
}
DROPPED: dict[str, Case] = {
    "all of it": verification(
        partial(decoder, checkpointed, length=9, dropout=0.2), ranks=2, partitioner="default"
    ),
    "a policy": verification(
        partial(decoder, selectively, length=9, dropout=0.2), ranks=2, inner="inductor"
    ),
}
"""Regions that draw random numbers, and draw them again."""


def wrapped(kind: Callable[..., Decoder]) -> Case:
    return verification(partial(_wrapped, kind), ranks=2)


def adapted_by_peft() -> Subject:
    subject = gloo_cases.sample("llama", batch=2, length=15, dtype="float64")
    return Subject(peft_adapters(subject.module), kwargs=subject.kwargs)


def _wrapped(kind: Callable[..., Decoder]) -> Subject:
    torch.manual_seed(0)
    ids, labels = tokens(2, 9)
    return Subject(kind(dtype=torch.float64), kwargs={"input_ids": ids, "labels": labels})


WRAPPED: dict[str, Case] = {
    **{kind.__name__: wrapped(kind) for kind in (Adapted, Tied)},
    "adapted by peft": verification(adapted_by_peft, ranks=2),
}


def under_autocast(kind: Callable[..., Decoder], *, around: bool, inner: str = "eager") -> Case:
    return partial(_under_autocast, kind, around, inner)


def _under_autocast(kind: Callable[..., Decoder], around: bool, inner: str) -> dict[str, float]:
    """Distances from the eager step under the same autocast, and its own from float32."""
    ids, labels = tokens(2, 9)

    def step(model: torch.nn.Module, run: Any, enabled: bool) -> tuple[float, torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = run(ids, labels)
        loss.backward()
        autosp.average_gradients(model.parameters())
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return float(loss.detach()), torch.cat(gradients).double()

    def made() -> Decoder:
        torch.manual_seed(0)
        return kind(dtype=torch.float32)

    eager, own, precise = made(), made(), made()
    loss, gradients = step(eager, eager, around)
    found, found_gradients = step(own, autosp.compile(own, inner=inner), around)
    with without_autocast():
        exact, exact_gradients = step(precise, precise, False)
    return {
        "loss": abs(found - loss),
        "gradients": float((found_gradients - gradients).norm()),
        "noise of the loss": abs(loss - exact),
        "noise of the gradients": float((gradients - exact_gradients).norm()),
    }


def without_autocast() -> AbstractContextManager[Any]:
    """Regions of autocast inside do nothing."""

    def disabled(device: str, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        return original(device, enabled=False)

    original = torch.autocast
    return patch.object(torch, "autocast", disabled)


AUTOCAST: dict[str, Case] = {
    "region inside one around": under_autocast(PartlyInHalf, around=True),
    "around adapters": under_autocast(Adapted, around=True),
}


def written_state(
    kind: type[SmallModel],
    *,
    num_steps: int,
    inner: str = "eager",
    reference: type[SmallModel] | None = None,
) -> Case:
    return partial(_written_state, kind, reference or kind, num_steps, inner)


def _written_state(
    kind: type[SmallModel], reference: type[SmallModel], num_steps: int, inner: str
) -> dict[str, float]:
    """Losses, gradients, buffers and inputs after some steps, beside those of eager steps."""
    expected, actual = reference(), kind()
    compiled = autosp.compile(actual, inner=inner)
    errors: dict[str, float] = {}

    def compare(name: str, left: torch.Tensor, right: torch.Tensor) -> None:
        difference = (left.detach().double() - right.detach().double()).abs().max()
        errors[name] = max(errors.get(name, 0.0), float(difference))

    for step in range(num_steps):
        inputs = [programs.tokens(2, 7, seed=step + 1) for _ in range(2)]
        losses = [model(*given) for model, given in zip((expected, compiled), inputs, strict=True)]
        for loss in losses:
            loss.backward()
        autosp.average_gradients(actual.parameters())
        compare("loss", *losses)
        for left, right in zip(*inputs, strict=True):
            compare("inputs", left, right)
        for (name, left), right in zip(expected.named_buffers(), actual.buffers(), strict=True):
            compare(name, left, right)
    errors["gradients"] = largest_difference(gradients_of(expected), gradients_of(actual))
    return errors


WRITING: dict[str, Case] = {
    **{kind.__name__: written_state(kind, num_steps=3) for kind in writing.WRITING},
    # Its buffer keeps the graph of the step before: eager fails as well.
    "KeepingSums": written_state(writing.KeepingSums, num_steps=1),
    # The eager region runs twice and writes twice.
    "CheckpointedStatistics": written_state(
        writing.CheckpointedStatistics, num_steps=3, reference=writing.RunningStatistics
    ),
}
