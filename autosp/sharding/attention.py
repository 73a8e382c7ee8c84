"""Attention: the one place where every token needs every other.

Ulysses (Jacobs et al., 2023, arXiv:2309.14509): queries, keys and values go from sequence
shards to head shards in an all-to-all, attention runs on ``H/P`` heads and the whole
sequence, and its output returns to sequence shards at once.
"""

from __future__ import annotations

import torch

from autosp.errors import HeadCountError
from autosp.events import Alternative
from autosp.graph import source_location
from autosp.placement import REPLICATE, Shard, shard_dim
from autosp.runtime import keyed_random
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation, RuleTable
from autosp.sharding.randomness import attention_dropout
from autosp.sizes import examples

aten = torch.ops.aten

HEAD_DIM, SEQUENCE_DIM = 1, 2
"""Dims of ``[batch, heads, sequence, head size]``."""


def scaled_dot_product(op: Operation) -> Value:
    query, key, value = op.args[:3]
    cut = query.placement
    if len(query.shape) != 4:
        raise NoRule("attention that is not [batch, heads, sequence, head size]")
    if not isinstance(cut, Shard) or cut.dim != SEQUENCE_DIM:
        raise NoRule(f"attention whose query is placed {cut}, not sharded on its sequence dim")
    check_head_counts(op, query.shape[HEAD_DIM], key.shape[HEAD_DIM])

    reason = "attention needs the whole sequence: sequence shards -> head shards"
    heads = [
        op.redistribute(tensor, _head_cut(op, tensor), reason)
        for tensor in (query, _one_head_per_rank(op, key), _one_head_per_rank(op, value))
    ]
    mask = _local_mask(op, query.shape[HEAD_DIM])
    gqa = heads[0].local.shape[HEAD_DIM] != heads[1].local.shape[HEAD_DIM]
    head_placement = Shard(HEAD_DIM, query.shape[HEAD_DIM], label="head")
    node = op.emit(
        op.target,
        *heads,
        mask,
        op.argument(4, "dropout_p", 0.0),
        bool(op.argument(5, "is_causal", False)),
        scale=op.kwargs.get("scale"),
        enable_gqa=gqa,
        **attention_dropout(op, head_placement),
    )
    op.builder.amend(node, placement=head_placement, global_shape=op.shape)
    _explain(op, query, key)
    output = Value(node, head_placement, op.shape)
    return op.redistribute(output, cut, "attention output back: head shards -> sequence shards")


def legal_sp_degrees(num_heads: int, num_kv_heads: int) -> list[int]:
    """SP degrees that Ulysses can use with these numbers of heads."""
    return [
        degree
        for degree in range(1, num_heads + 1)
        if num_heads % degree == 0 and (num_kv_heads % degree == 0 or degree % num_kv_heads == 0)
    ]


def check_head_counts(op: Operation, num_heads: int, num_kv_heads: int) -> None:
    """Raise :class:`HeadCountError` if the heads cannot be dealt out to the ranks."""
    degree = op.num_ranks
    legal = legal_sp_degrees(num_heads, num_kv_heads)
    if degree in legal:
        return
    where = source_location(op.node)
    raise HeadCountError(
        f"SP degree {degree} does not fit attention with {num_heads} query heads and "
        f"{num_kv_heads} key/value heads",
        where=f"{where.file}:{where.line}" if where else "",
        hint=f"Ulysses can use SP degree {', '.join(map(str, legal))}",
    )


def _head_cut(op: Operation, tensor: Value) -> Shard:
    num_heads = tensor.shape[HEAD_DIM]
    cut = shard_dim(HEAD_DIM, num_heads, op.num_ranks, label="head")
    assert not cut.is_padded
    return cut


def _one_head_per_rank(op: Operation, tensor: Value) -> Value:
    """Fewer KV heads than ranks: repeat each to the ranks whose queries need it.

    Every rank receives exactly one KV head, the least that its queries can do with.
    """
    num_heads, num_ranks = tensor.shape[HEAD_DIM], op.num_ranks
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


def _local_mask(op: Operation, num_heads: int) -> Value | None:
    """The mask for this rank's heads: whole in its sequence dims."""
    mask: Value | None = op.argument(3, "attn_mask")
    if mask is None:
        return None
    mask = op.replicate(mask, "attention on head shards needs the whole mask")
    head_dim = len(mask.shape) - 3
    if head_dim >= 0 and mask.shape[head_dim] == num_heads > 1:
        cut = shard_dim(head_dim, num_heads, op.num_ranks, label="head")
        return op.redistribute(mask, cut, "a mask per head follows the heads")
    assert mask.placement == REPLICATE
    return mask


def _explain(op: Operation, query: Value, key: Value) -> None:
    batch, num_heads, length, size = examples(query.shape)
    gathered = 2 * batch * key.shape[HEAD_DIM] * length * size * query.dtype.itemsize
    op.decide(
        "applied",
        "attention",
        f"Ulysses: {num_heads // op.num_ranks} of {num_heads} query heads per rank",
        "the sequence is sharded, the heads can be dealt out to the ranks",
        rule="attention.scaled_dot_product",
        alternatives=(
            Alternative(
                "all-gather keys and values",
                "every rank would hold all keys and values of the whole sequence",
                f"{gathered / 2**20:.1f} MiB per rank and layer",
            ),
        ),
    )


ATTENTION = (aten.scaled_dot_product_attention.default, keyed_random.ATTENTION)

RULES: RuleTable = dict.fromkeys(ATTENTION, scaled_dot_product)
