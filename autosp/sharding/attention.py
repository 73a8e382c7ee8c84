"""Attention: the one place where every token needs every other.

Ulysses (Jacobs et al., 2023, arXiv:2309.14509): queries, keys and values go from sequence
shards to head shards in an all-to-all, attention runs on ``H/P`` heads and the whole
sequence, and its output returns to sequence shards at once. The alternative is a ring
(:mod:`autosp.sharding.ring`); :mod:`autosp.sharding.attention_plan` chooses.
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from autosp.events import Alternative
from autosp.head_map import HeadMap
from autosp.placement import Shard, shard_dim
from autosp.runtime.masked_attention import MASKED_ATTENTION
from autosp.sharding.attention_figures import ulysses_figures
from autosp.sharding.attention_plan import ATTENTION, HEAD_DIM, SEQUENCE_DIM, SitePlan
from autosp.sharding.builder import Value
from autosp.sharding.kv_heads import one_head_per_query, one_head_per_rank
from autosp.sharding.masked import masked_on_heads
from autosp.sharding.operation import NoRule, Operation, RuleTable
from autosp.sharding.randomness import attention_dropout
from autosp.sharding.ring import ring_attention
from autosp.sizes import examples

BACK = "attention output back: head shards -> sequence shards"


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


def flex_attention(op: Operation) -> list[Value]:
    """As above, with functions of scores and positions that count heads from the first."""
    cut, plan = op.args[0].placement, op.builder.attention.sites[op.node]
    if not isinstance(cut, Shard) or cut.dim != SEQUENCE_DIM:
        raise NoRule(f"attention whose query is placed {cut}, not sharded on its sequence dim")
    if plan.refusal is not None:
        raise plan.refusal
    query, key, value, tables, *buffers = op.args
    tables = [None if table is None else _of_own_heads(op, table, 1) for table in tables]
    reason = "score_mod or mask_mod reads it whole"
    whole = [[op.replicate(buffer, reason) for buffer in group] for group in buffers]
    first = op.builder.rank * (query.shape[HEAD_DIM] // op.num_ranks)
    node = op.emit(replace(op.target, first_head=first), *_on_heads(op), tables, *whole)
    op.builder.amend(node, placement=_head_placement(op))  # what is derived from it lies alike
    out, lse, largest = op.results(node, [_head_placement(op)] * len(op.outputs))
    for result in (out, lse, largest):
        op.builder.amend(result.node, placement=result.placement, global_shape=result.shape)
    _explain(op, query, key, plan)
    return [op.redistribute(out, cut, BACK), lse, largest]


def _ulysses(op: Operation, cut: Shard, plan: SitePlan) -> Value:
    query, key = op.args[:2]
    head_placement = _head_placement(op)
    node = _attend(op, _on_heads(op), head_placement)
    op.builder.amend(node, placement=head_placement, global_shape=op.shape)
    _explain(op, query, key, plan)
    output = Value(node, head_placement, op.shape)
    return op.redistribute(output, cut, BACK)


def _on_heads(op: Operation) -> list[Value]:
    """Query, key and value on head shards."""
    query, key, value = op.args[:3]
    reason = "attention needs the whole sequence: sequence shards -> head shards"
    query_heads = op.redistribute(query, _head_cut(op, query), reason)
    return [query_heads, *(_kv_heads(op, tensor, reason) for tensor in (key, value))]


def _head_placement(op: Operation) -> Shard:
    return Shard(HEAD_DIM, op.args[0].shape[HEAD_DIM], label="head")


def _kv_heads(op: Operation, tensor: Value, reason: str) -> Value:
    """A rank's KV heads, in groups of query heads of one size, or one a query head."""
    heads = HeadMap(op.args[0].shape[HEAD_DIM], tensor.shape[HEAD_DIM], op.num_ranks)
    if not heads.is_even:
        return one_head_per_query(op, tensor, heads)
    tensor = one_head_per_rank(op, tensor, op.num_ranks)
    return op.redistribute(tensor, _head_cut(op, tensor), reason)


def _attend(op: Operation, heads: list[Value], placement: Shard) -> Node:
    """The attention of this rank's heads over the whole sequence."""
    if op.target is MASKED_ATTENTION:
        return masked_on_heads(op, heads)
    return op.emit(
        op.target,
        *heads,
        _local_mask(op),
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


def _local_mask(op: Operation) -> Value | None:
    """The mask for this rank's heads: whole in its sequence dims."""
    mask: Value | None = op.argument(3, "attn_mask")
    if mask is None:
        return None
    return _of_own_heads(op, mask, len(mask.shape) - 3)


def _of_own_heads(op: Operation, mask: Value, head_dim: int) -> Value:
    num_heads = op.args[0].shape[HEAD_DIM]
    if head_dim >= 0 and mask.shape[head_dim] == num_heads > 1:
        cut = shard_dim(head_dim, num_heads, op.num_ranks, label="head")
        return op.redistribute(mask, cut, "a mask per head follows the heads")
    return op.replicate(mask, "attention on head shards needs the whole mask")


def _explain(op: Operation, query: Value, key: Value, plan: SitePlan) -> None:
    batch, num_heads, length, size = examples(query.shape)
    gathered = 2 * batch * key.shape[HEAD_DIM] * length * size * query.dtype.itemsize
    op.decide(
        "applied",
        "attention",
        f"Ulysses: {num_heads // op.num_ranks} of {num_heads} query heads per rank",
        f"the sequence is sharded, {plan.reason}",
        rule="attention.scaled_dot_product",
        figures=ulysses_figures(op, plan),
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
