"""Fewer KV heads than ranks that exchange heads: each goes to the ranks whose queries need it."""

from __future__ import annotations

import torch

from autosp.sharding.attention_plan import HEAD_DIM
from autosp.sharding.builder import Value
from autosp.sharding.operation import Operation

aten = torch.ops.aten


def one_head_per_rank(op: Operation, tensor: Value, num_ranks: int) -> Value:
    """Repeat each KV head to the ranks whose queries need it.

    Every rank receives exactly one KV head, the least that its queries can do with.
    """
    num_heads = tensor.shape[HEAD_DIM]
    if num_heads % num_ranks == 0:
        return tensor
    repeat = num_ranks // num_heads
    with op.builder.role("pack", f"each of {num_heads} KV heads goes to {repeat} ranks"):
        local = tuple(tensor.local.shape)
        node = op.emit(aten.unsqueeze.default, tensor, HEAD_DIM + 1)
        node = op.emit(
            aten.expand.default, node, [local[0], num_heads, repeat, *local[HEAD_DIM + 1 :]]
        )
        node = op.emit(aten.reshape.default, node, [local[0], num_ranks, *local[HEAD_DIM + 1 :]])
    shape = (tensor.shape[0], num_ranks, *tensor.shape[HEAD_DIM + 1 :])
    return Value(node, tensor.placement, shape)
