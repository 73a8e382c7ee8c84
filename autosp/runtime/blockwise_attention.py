"""Attention under a mask that is never built: block by block, from O(S) vectors.

The mask is a predicate over vectors (:mod:`autosp.mask_predicate`). Blocks of which it leaves
nothing are not computed, blocks of which it leaves everything run in the fused kernel of the
device, and of the others the mask of one block exists at a time (:mod:`.block_plan`). Results
of blocks are merged by their log-sum-exp in float32 at least. If the vectors say that the whole
mask is causal, one call of the fused causal kernel does it all.

Two operators, opaque to compilers because what they compute depends on values::

    autosp::blockwise_attention(query, key, value, *, query_vectors, key_vectors, predicate,
                                scale, density) -> (out, lse)
    autosp::blockwise_attention_backward(cotangent, query, key, value, out, lse, *, ...the same)
                                -> (gradients of query, key and value)

Shapes: ``query [B, H, Sq, D]``, ``key [B, Hkv, Sk, D]``, ``value [B, Hkv, Sk, Dv]`` with ``H`` a
multiple of ``Hkv``; ``lse [B, H, Sq]`` in float32 or float64; vectors ``[B or 1, Sq]`` and
``[B or 1, Sk]``. The backward takes ``out`` and ``lse`` over *all* keys, so both serve as the
tile of a ring, whose rank passes the vectors of its own queries and of the block it meets.
``density``, the part of the pairs that the mask leaves as far as that is known beforehand, is
for estimates alone.

A query without any key gets 0 and a log-sum-exp of minus infinity, as
``scaled_dot_product_attention`` gives it under a boolean mask. ``softcap`` and ``slopes``
``[B or 1, H]`` change scores (:mod:`.score_change`); with slopes the first vectors are positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from autosp.mask_predicate import Predicate, parse
from autosp.runtime.block_attention import attend, attend_backward, wide_type
from autosp.runtime.block_plan import BLOCK_ROWS, MaskedBlock, plan_blocks
from autosp.runtime.keyed_random import LIBRARY
from autosp.runtime.score_change import ScoreChange

Vectors = Sequence[Tensor]


def merge(before: tuple[Tensor, Tensor], out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Two outputs and log-sum-exps of the same queries over different keys, as one.

    A log-sum-exp of minus infinity on both sides, a query without keys so far, stays.
    """
    out_before, lse_before = before
    total = torch.logaddexp(lse_before, lse)
    finite = total.masked_fill(total == -math.inf, 0.0)
    share_before = (lse_before - finite).exp().unsqueeze(-1)
    share = (lse - finite).exp().unsqueeze(-1)
    return out_before * share_before + out.to(lse.dtype) * share, total


def attend_blockwise(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_vectors: Vectors,
    key_vectors: Vectors,
    predicate: Predicate,
    *,
    scale: float,
    change: ScoreChange | None = None,
    rows: int = BLOCK_ROWS,
) -> tuple[Tensor, Tensor]:
    """Output, in the type of the query, and log-sum-exp. ``rows``: of a block."""
    out = query.new_zeros((*query.shape[:-1], value.shape[-1]))
    lse = query.new_full(query.shape[:-1], -math.inf, dtype=wide_type(query.dtype))
    for batch, own, others in _alike(query.shape[0], query_vectors, key_vectors):
        sizes = (query.shape[2], key.shape[2])
        blocks = plan_blocks(predicate, own, others, *sizes, rows, is_fused=change is None)
        for start, group in groupby(blocks, key=lambda block: block.query.start):
            merged = None
            for block in group:
                part = attend(
                    query[batch, :, block.query],
                    key[batch, :, block.key],
                    value[batch, :, block.key],
                    is_causal=block.is_causal,
                    scale=scale,
                    allowed=block.allowed,
                    change=change and change.of_block(batch, block.query, block.key),
                )
                merged = (
                    (part[0].to(lse.dtype), part[1]) if merged is None else merge(merged, *part)
                )
            assert merged is not None
            own_rows = slice(start, start + merged[1].shape[-1])
            out[batch, :, own_rows] = merged[0].to(out.dtype)
            lse[batch, :, own_rows] = merged[1]
    return out, lse


def attend_blockwise_backward(
    cotangent: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    query_vectors: Vectors,
    key_vectors: Vectors,
    predicate: Predicate,
    *,
    scale: float,
    change: ScoreChange | None = None,
    rows: int = BLOCK_ROWS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, in their types."""
    sums = [torch.zeros_like(t, dtype=lse.dtype) for t in (query, key, value)]
    for batch, own, others in _alike(query.shape[0], query_vectors, key_vectors):
        sizes = (query.shape[2], key.shape[2])
        is_fused = change is None
        for block in plan_blocks(predicate, own, others, *sizes, rows, is_fused=is_fused):
            gradients = attend_backward(
                cotangent[batch, :, block.query],
                query[batch, :, block.query],
                key[batch, :, block.key],
                value[batch, :, block.key],
                out[batch, :, block.query],
                lse[batch, :, block.query],
                is_causal=block.is_causal,
                scale=scale,
                allowed=block.allowed,
                change=change and change.of_block(batch, block.query, block.key),
            )
            for total, part, where in zip(sums, gradients, _places(block), strict=True):
                total[batch, :, where] += part
    of_query, of_key, of_value = (
        total.to(t.dtype) for total, t in zip(sums, (query, key, value), strict=True)
    )
    return of_query, of_key, of_value


def _places(block: MaskedBlock) -> tuple[slice, slice, slice]:
    return block.query, block.key, block.key


def _alike(
    batch: int, query_vectors: Vectors, key_vectors: Vectors
) -> Iterator[tuple[slice, list[Tensor], list[Tensor]]]:
    """Batch rows with the same mask, and its vectors."""
    if all(vector.shape[0] == 1 for vector in (*query_vectors, *key_vectors)):
        yield slice(None), list(query_vectors), list(key_vectors)
        return
    for row in range(batch):
        own = slice(row, row + 1)
        yield own, _of_rows(query_vectors, own), _of_rows(key_vectors, own)


def _of_rows(vectors: Vectors, rows: slice) -> list[Tensor]:
    return [vector if vector.shape[0] == 1 else vector[rows] for vector in vectors]


# ------------------------------------------------------------------ the operators

_MASK = (
    "Tensor[] query_vectors, Tensor[] key_vectors, str predicate, float scale, float density, "
    "float softcap=0.0, Tensor? slopes=None"
)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_vectors: list[Tensor],
    key_vectors: list[Tensor],
    predicate: str,
    scale: float,
    density: float,
    softcap: float = 0.0,
    slopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    del density
    vectors = (query_vectors, key_vectors)
    change = ScoreChange.of(softcap, slopes, *vectors)
    return attend_blockwise(
        query, key, value, *vectors, parse(predicate), scale=scale, change=change
    )


def _backward(
    cotangent: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    query_vectors: list[Tensor],
    key_vectors: list[Tensor],
    predicate: str,
    scale: float,
    density: float,
    softcap: float = 0.0,
    slopes: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    del density
    return attend_blockwise_backward(
        cotangent, query, key, value, out, lse, query_vectors, key_vectors, parse(predicate),
        scale=scale, change=ScoreChange.of(softcap, slopes, query_vectors, key_vectors),
    )  # fmt: skip


def _fake_forward(
    query: Tensor, key: Tensor, value: Tensor, **mask: object
) -> tuple[Tensor, Tensor]:
    del key, mask
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return out, query.new_empty(query.shape[:-1], dtype=wide_type(query.dtype))


def _fake_backward(
    cotangent: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Tensor, **mask: object
) -> tuple[Tensor, Tensor, Tensor]:
    del cotangent, rest, mask
    of_query, of_key, of_value = (torch.empty_like(t) for t in (query, key, value))
    return of_query, of_key, of_value


def _define(
    name: str, schema: str, function: Callable[..., Any], fake: Callable[..., Any]
) -> torch._ops.OpOverload:
    LIBRARY.define(f"{name}{schema}")  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"autosp::{name}", fake, lib=LIBRARY)
    packet: torch._ops.OpOverloadPacket = getattr(torch.ops.autosp, name)
    operator: torch._ops.OpOverload = packet.default
    return operator


BLOCKWISE_ATTENTION = _define(
    "blockwise_attention",
    f"(Tensor query, Tensor key, Tensor value, *, {_MASK}) -> (Tensor, Tensor)",
    _forward,
    _fake_forward,
)
BLOCKWISE_ATTENTION_BACKWARD = _define(
    "blockwise_attention_backward",
    "(Tensor cotangent, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, *, "
    f"{_MASK}) -> (Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)
