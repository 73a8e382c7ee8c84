"""KV heads go to the ranks whose queries need them, and to no others."""

from __future__ import annotations

import torch
from torch.fx import Node

from autosp.graph import CollectiveTag, functional
from autosp.head_map import HeadMap
from autosp.placement import REPLICATE, Shard
from autosp.sharding.attention_plan import HEAD_DIM, SEQUENCE_DIM
from autosp.sharding.builder import Value
from autosp.sharding.operation import Operation
from autosp.sharding.redistribute import merge_blocks
from autosp.sizes import same_size

aten = torch.ops.aten


def one_head_per_rank(op: Operation, tensor: Value, num_ranks: int) -> Value:
    """Repeat each of fewer KV heads than ranks to the ranks whose queries need it.

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


def one_head_per_query(op: Operation, tensor: Value, heads: HeadMap) -> Value:
    """The KV head of each of this rank's query heads, where they do not come in equal groups.

    A rank receives the KV heads that its queries need, which may be more than another's, and
    repeats them after that. ``[B, Hkv, S, D]`` -> ``[B, H, S, D]`` on head shards.
    """
    cut, length = tensor.placement, tensor.shape[SEQUENCE_DIM]
    reason = "each rank gets the KV heads that its query heads read"
    is_plain = isinstance(cut, Shard) and (cut.dim, cut.outer) == (SEQUENCE_DIM, 1)
    if not is_plain or not same_size(cut.atom, length):  # type: ignore[union-attr]
        tensor, cut = op.replicate(tensor, "keys that are cut another way"), REPLICATE
    if isinstance(cut, Shard):
        with op.builder.role("pack", reason):
            first, node = heads.needed_by(op.builder.rank).start, _dealt_out(op, tensor, cut, heads)
    else:
        first, node = 0, op.emit(aten.permute.default, tensor, [1, 2, 0, 3])
    with op.builder.role("unpack", "a KV head for each query head"):
        node = op.emit(aten.index_select.default, node, 0, _kv_head_of_queries(op, heads, first))
        node = op.emit(aten.permute.default, node, [2, 0, 1, 3])
    placement = Shard(HEAD_DIM, heads.num_heads, label="head")
    shape = (tensor.shape[0], heads.num_heads, *tensor.shape[SEQUENCE_DIM:])
    op.builder.amend(node, placement=placement, global_shape=shape)
    return Value(node, placement, shape)


def _dealt_out(op: Operation, tensor: Value, cut: Shard, heads: HeadMap) -> Node:
    """``[B, Hkv, b, D]`` of each rank -> ``[needed here, S, B, D]``."""
    builder = op.builder
    needed = [heads.needed_by(rank) for rank in range(op.num_ranks)]
    parts = [op.emit(aten.slice.Tensor, tensor, HEAD_DIM, n.start, n.stop) for n in needed]
    node = op.emit(aten.cat.default, parts, HEAD_DIM)
    node = op.emit(aten.permute.default, node, [1, 2, 0, 3])
    node = op.emit(aten.contiguous.default, node)
    own, sent = len(needed[builder.rank]), [len(n) for n in needed]
    tag = CollectiveTag("all_to_all", "sp", op.num_ranks, str(cut), "the heads that are read")
    node = builder.collective(
        tag,
        functional.all_to_all_single.default,
        node,
        [own] * op.num_ranks,
        sent,
        builder.group_name,
    )
    with builder.role("unpack"):
        sizes = node.meta["val"].shape
        node = op.emit(aten.reshape.default, node, [op.num_ranks, own, *sizes[1:]])
        return merge_blocks(builder, node, 1, cut.on_dim(1), tensor.shape[SEQUENCE_DIM])


def _kv_head_of_queries(op: Operation, heads: HeadMap, first: int) -> Node:
    """Where the KV head of each of this rank's query heads is, of those from ``first`` on."""
    count, device = heads.queries_per_rank, op.args[0].local.device
    begin = op.builder.rank * count
    queries = op.emit(aten.arange.start, begin, begin + count, device=device)
    kv_heads = op.emit(aten.floor_divide.Scalar, queries, heads.group_size)
    return op.emit(aten.sub.Scalar, kv_heads, first)
