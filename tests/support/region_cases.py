"""Cases of regions, writes and wrappers that ranks run; the tests judge the plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tests.support import gloo_cases
from tests.support.checkpointed import Call, Decoder, checkpointed, nested, selectively, tokens
from tests.support.gloo_cases import Case, Subject, verification


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
