"""Cases for sequence-parallel steps; a place in the step that the peak must lie in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from tests.support.peak_cases import (
    ADAMW,
    PeakCase,
    small_gpt,
    small_hf_llama,
    small_llama,
)


def checkpointed(model: nn.Module) -> nn.Module:
    """With transformers' gradient checkpointing, as users switch it on."""
    enable: Callable[..., None] = model.gradient_checkpointing_enable  # type: ignore[assignment]
    enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


UNEVEN_LLAMA = PeakCase(
    "llama, bf16, default partition, length not divisible",
    lambda: small_llama(vocab=16, dtype="bfloat16", hidden=16, width=64),
    2,
    511,
    16,
    "backward",
    "default",
)

ON_TWO_RANKS: tuple[PeakCase, ...] = (
    PeakCase("gpt, loss", lambda: small_gpt(vocab=2000), 2, 256, 2000, "softmax"),
    PeakCase(
        "gpt, mlp, bf16, default partition",
        lambda: small_gpt(vocab=64).bfloat16(),
        2,
        512,
        64,
        "mlp",
        "default",
    ),
    PeakCase(
        "llama, between the all-to-alls",
        lambda: small_llama(vocab=16, dtype="float32", hidden=16, width=64),
        1,
        1024,
        16,
        "attention",
    ),
    UNEVEN_LLAMA,
    PeakCase(
        "hf llama, loss, bf16",
        lambda: small_hf_llama(vocab=2000, dtype="bfloat16"),
        2,
        256,
        2000,
        "softmax",
        "default",
    ),
    PeakCase(
        "gpt, AdamW", lambda: small_gpt(vocab=2000), 1, 32, 2000, "optimizer", optimizer=ADAMW
    ),
    PeakCase(
        "checkpointed hf llama, a layer recomputed, bf16",
        lambda: checkpointed(small_hf_llama(vocab=64, dtype="bfloat16")),
        2,
        512,
        64,
        "backward",
    ),
)

ON_FOUR_RANKS: tuple[PeakCase, ...] = (
    PeakCase("gpt, mlp", lambda: small_gpt(vocab=64), 1, 1024, 64, "mlp"),
    PeakCase(
        "hf llama, mlp, bf16",
        lambda: small_hf_llama(vocab=64, dtype="bfloat16", intermediate=2048),
        1,
        512,
        64,
        "mlp",
    ),
    PeakCase(
        "llama, loss, length not divisible",
        lambda: small_llama(vocab=2000, dtype="float32"),
        2,
        255,
        2000,
        "softmax",
    ),
)


class MostlyAttention(nn.Module):
    """Wide keys and values between narrow rows: the peak is in the attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.queries, self.keys, self.values = (nn.Linear(8, 256) for _ in range(3))
        self.out = nn.Linear(256, 8)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        del labels
        x = self.embedding(input_ids)
        q, k, v = (
            project(x).unflatten(-1, (4, 64)).transpose(1, 2)
            for project in (self.queries, self.keys, self.values)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2)).square().mean()


IN_A_RING: tuple[PeakCase, ...] = (
    PeakCase(
        "between the sends", lambda: MostlyAttention(), 1, 1024, 16, "flash", attention="ring"
    ),
    replace(UNEVEN_LLAMA, attention="ring"),
)
"""On two ranks."""
