"""Cases of regions, writes and wrappers that ranks run; the tests judge the plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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


def decoder(call: Call, *, length: int) -> Subject:
    torch.manual_seed(0)
    ids, labels = tokens(2, length)
    model = Decoder(call, dtype=torch.float64)
    return Subject(model, kwargs={"input_ids": ids, "labels": labels})


def checkpointed_llama() -> Subject:
    """transformers' own way to checkpoint every layer."""
    subject = gloo_cases.sample("hf_llama", batch=2, length=13, dtype="float64")
    enable: Callable[..., None] = subject.module.gradient_checkpointing_enable  # type: ignore[assignment]
    enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return subject


CHECKPOINTED: dict[str, Case] = {
    "llama": verification(checkpointed_llama, ranks=2, steps=3),
    "llama, default partition": verification(checkpointed_llama, ranks=2, partitioner="default"),
    "decoder": verification(partial(decoder, checkpointed, length=8), ranks=2),
    "decoder, inductor": verification(
        partial(decoder, checkpointed, length=9), ranks=2, inner="inductor"
    ),
    "nested": verification(partial(decoder, nested, length=9), ranks=2),
    "selective": verification(partial(decoder, selectively, length=9), ranks=2),
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
    "inductor": written_state(writing.RunningStatistics, num_steps=2, inner="inductor"),
}
