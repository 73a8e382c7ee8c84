"""Attention whose mask is a predicate over vectors, with its derivative.

A composite whose derivative is defined here: AOTAutograd takes it apart into the two opaque
operators of :mod:`autosp.runtime.blockwise_attention`. Kept for the backward are query, key,
value, output and log-sum-exp, and the vectors: nothing grows with the square of the length.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autosp.runtime.blockwise_attention import (
    BLOCKWISE_ATTENTION,
    BLOCKWISE_ATTENTION_BACKWARD,
)
from autosp.runtime.keyed_random import LIBRARY


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: dict[str, Any],
        num_query_vectors: int,
        *vectors: Tensor | None,
    ) -> Tensor:
        mask = _mask(vectors, num_query_vectors)
        out, lse = BLOCKWISE_ATTENTION(query, key, value, **mask, **options)
        ctx.save_for_backward(query, key, value, out, lse, *vectors)
        ctx.details = (options, num_query_vectors)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        options, num_query_vectors = ctx.details
        query, key, value, out, lse, *vectors = ctx.saved_tensors
        gradients = BLOCKWISE_ATTENTION_BACKWARD(
            cotangents[0], query, key, value, out, lse,
            **_mask(vectors, num_query_vectors), **options,
        )  # fmt: skip
        return (*gradients, None, None, *(None for _ in vectors))


def _mask(tensors: Any, num_query_vectors: int) -> dict[str, Any]:
    *vectors, slopes = tensors
    return {
        "query_vectors": vectors[:num_query_vectors],
        "key_vectors": vectors[num_query_vectors:],
        "slopes": slopes,
    }


def _masked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_vectors: list[Tensor],
    key_vectors: list[Tensor],
    predicate: str,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    density: float = 1.0,
    softcap: float = 0.0,
    slopes: Tensor | None = None,
) -> Tensor:
    del is_causal, enable_gqa
    device = query.device.type
    if torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device)
        query, key, value = query.to(low), key.to(low), value.to(low)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    options = {"predicate": predicate, "scale": scale, "density": density, "softcap": softcap}
    with torch.amp.autocast(device, enabled=False):
        result: Tensor = _Masked.apply(  # type: ignore[no-untyped-call]
            query, key, value, options, len(query_vectors), *query_vectors, *key_vectors, slopes
        )
    return result


LIBRARY.define(  # type: ignore[no-untyped-call]
    "masked_attention(Tensor query, Tensor key, Tensor value, *, Tensor[] query_vectors, "
    "Tensor[] key_vectors, str predicate, bool is_causal=False, float? scale=None, "
    "bool enable_gqa=False, float density=1.0, float softcap=0.0, Tensor? slopes=None) -> Tensor"
)
LIBRARY.impl("masked_attention", _masked_attention, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]

MASKED_ATTENTION: torch._ops.OpOverload = torch.ops.autosp.masked_attention.default
"""``scaled_dot_product_attention`` with a mask that is said by ``predicate``.

``is_causal`` says what is known of the predicate beforehand: no key after its query counts.
It masks nothing by itself. ``softcap`` and ``slopes`` ``[H]`` or ``[B, H]`` change the scores, see
:mod:`autosp.runtime.score_change`.
"""
