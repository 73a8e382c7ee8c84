"""A decoder written by hand whose layers are checkpointed in different ways."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

WIDTH, NUM_HEADS, VOCABULARY = 32, 4, 16

Call = Callable[..., Any]
"""``call(layer, x)`` runs a layer, checkpointed or not."""


class Decoder(nn.Module):
    """Two layers with attention; ``call`` runs each of them."""

    def __init__(
        self, call: Call, *, dtype: torch.dtype = torch.float32, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.call, self.dropout = call, dropout
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.mixing = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.to(dtype)

    def layer(self, index: int, x: Tensor) -> Tensor:
        return self.feed(index, self.attend(index, x))

    def attend(self, index: int, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, NUM_HEADS, -1).transpose(1, 2)
            for part in self.mixing[index](x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return x + y.transpose(1, 2).reshape(batch, length, width)

    def feed(self, index: int, x: Tensor) -> Tensor:
        return x + F.dropout(self.down[index](F.gelu(self.up[index](x))), self.dropout)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(input_ids)
        for index in range(2):
            x = self.call(partial(self.layer, index), x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def plainly(layer: Call, x: Tensor) -> Any:
    return layer(x)


def checkpointed(layer: Call, x: Tensor) -> Any:
    return checkpoint(layer, x, use_reentrant=False)


def nested(layer: Call, x: Tensor) -> Any:
    def outer(y: Tensor) -> Any:
        return checkpointed(layer, y.sin())

    return checkpointed(outer, x)


PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
RECEIVED = torch.ops._c10d_functional.wait_tensor.default


def keep_products_and_collectives(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    del context, args, kwargs
    if operator in PRODUCTS or operator is RECEIVED:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def selectively(layer: Call, x: Tensor) -> Any:
    contexts = partial(create_selective_checkpoint_contexts, keep_products_and_collectives)
    return checkpoint(layer, x, use_reentrant=False, context_fn=contexts)


def tokens(batch: int, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (batch, length), generator=generator)
    return ids, ids.roll(-1, 1)
