"""Attention: the one place where every token needs every other.

Ulysses (Jacobs et al., 2023, arXiv:2309.14509): queries, keys and values go from sequence
shards to head shards in an all-to-all, attention runs on ``H/P`` heads and the whole
sequence, and its output returns to sequence shards at once. The alternative is a ring
(:mod:`autosp.sharding.ring`); :mod:`autosp.sharding.attention_plan` chooses.
"""

from __future__ import annotations

from torch.fx import Node

from autosp.events import Alternative
from autosp.placement import REPLICATE, Shard, shard_dim
from autosp.runtime.masked_attention import MASKED_ATTENTION
from autosp.sharding.attention_plan import ATTENTION, HEAD_DIM, SEQUENCE_DIM, SitePlan
from autosp.sharding.builder import Value
from autosp.sharding.kv_heads import one_head_per_rank
from autosp.sharding.masked import masked_on_heads
from autosp.sharding.operation import NoRule, Operation, RuleTable
from autosp.sharding.randomness import attention_dropout
from autosp.sharding.ring import ring_attention
from autosp.sizes import examples


def scaled_dot_product(op: Operation) -> Value:
    query = op.args[0]
    cut, plan = query.placement, op.builder.attention.sites.get(op.node)
    if plan is None:
        raise NoRule("attention that is not [batch, heads, sequence, head size]")
    if not isinstance(cut, Shard) or cut.dim != SEQUENCE_DIM:
        raise NoRule(f"attention whose query is placed {cut}, not sharded on its sequence dim")
    if plan.refusal is not None:
        raise plan.refusal
    return ring_attention(op, plan) if plan.num_ring > 1 else _ulysses(op, cut, plan)


def _ulysses(op: Operation, cut: Shard, plan: SitePlan) -> Value:
    query, key, value = op.args[:3]
    reason = "attention needs the whole sequence: sequence shards -> head shards"
    heads = [
        op.redistribute(tensor, _head_cut(op, tensor), reason)
        for tensor in (
            query,
            one_head_per_rank(op, key, op.num_ranks),
            one_head_per_rank(op, value, op.num_ranks),
        )
    ]
    head_placement = Shard(HEAD_DIM, query.shape[HEAD_DIM], label="head")
    node = _on_heads(op, heads, head_placement)
    op.builder.amend(node, placement=head_placement, global_shape=op.shape)
    _explain(op, query, key, plan)
    output = Value(node, head_placement, op.shape)
    return op.redistribute(output, cut, "attention output back: head shards -> sequence shards")


def _on_heads(op: Operation, heads: list[Value], placement: Shard) -> Node:
    """The attention of this rank's heads over the whole sequence."""
    if op.target is MASKED_ATTENTION:
        return masked_on_heads(op, heads)
    return op.emit(
        op.target,
        *heads,
        _local_mask(op, op.args[0].shape[HEAD_DIM]),
        op.argument(4, "dropout_p", 0.0),
        bool(op.argument(5, "is_causal", False)),
        scale=op.kwargs.get("scale"),
        enable_gqa=heads[0].local.shape[HEAD_DIM] != heads[1].local.shape[HEAD_DIM],
        **attention_dropout(op, placement),
    )


def _head_cut(op: Operation, tensor: Value) -> Shard:
    num_heads = tensor.shape[HEAD_DIM]
    cut = shard_dim(HEAD_DIM, num_heads, op.num_ranks, label="head")
    assert not cut.is_padded
    return cut


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


def _explain(op: Operation, query: Value, key: Value, plan: SitePlan) -> None:
    batch, num_heads, length, size = examples(query.shape)
    gathered = 2 * batch * key.shape[HEAD_DIM] * length * size * query.dtype.itemsize
    op.decide(
        "applied",
        "attention",
        f"Ulysses: {num_heads // op.num_ranks} of {num_heads} query heads per rank",
        f"the sequence is sharded, {plan.reason}",
        rule="attention.scaled_dot_product",
        alternatives=(
            Alternative(
                "all-gather keys and values",
                "every rank would hold all keys and values of the whole sequence",
                f"{gathered / 2**20:.1f} MiB per rank and layer",
            ),
            *plan.rejected,
        ),
    )


RULES: RuleTable = dict.fromkeys(ATTENTION, scaled_dot_product)
