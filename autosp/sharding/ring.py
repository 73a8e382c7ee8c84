"""Attention in a ring of ranks, or of groups of ranks that exchange heads among themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from autosp.events import Alternative
from autosp.graph import CollectiveTag
from autosp.placement import REPLICATE, Shard, padding_of
from autosp.ring_schedule import RingSchedule
from autosp.runtime.masked_attention import MASKED_ATTENTION
from autosp.runtime.ring_attention import RING_ATTENTION
from autosp.sharding.attention_figures import Work, ring_figures
from autosp.sharding.attention_plan import HEAD_DIM, SEQUENCE_DIM, SitePlan
from autosp.sharding.builder import Value
from autosp.sharding.head_exchange import HeadExchange
from autosp.sharding.kv_heads import one_head_per_rank
from autosp.sharding.masked import masked_rows, ring_mask
from autosp.sharding.operation import NoRule, Operation

aten = torch.ops.aten


def ring_attention(op: Operation, plan: SitePlan) -> Value:
    """Queries stay, blocks of keys and values come by."""
    query, key, value = op.args[:3]
    cut, is_causal = query.placement, bool(op.argument(5, "is_causal", False))
    assert isinstance(cut, Shard)
    if cut.outer != 1 or cut.atom != query.shape[SEQUENCE_DIM]:
        raise NoRule(f"a ring with queries in a strided cut {cut}")
    if not is_causal and key.placement == value.placement == REPLICATE:
        return _with_whole_keys(op, cut)
    key_cut = cut if is_causal else _key_cut(op, key)
    reason = "keys and values go round the ring in blocks"
    key, value = (op.redistribute(tensor, key_cut, reason) for tensor in (key, value))

    exchange = HeadExchange(op.builder, plan.num_ulysses)
    with op.builder.role("pack", "neighbouring ranks exchange heads"):
        key, value = (one_head_per_rank(op, t, plan.num_ulysses) for t in (key, value))
        on_heads = [
            exchange.to_heads(tensor.node, order)
            for tensor, order in ((query, cut.order), (key, key_cut.order), (value, key_cut.order))
        ]
    stride = plan.num_ulysses
    place = op.builder.rank // stride
    sizes = [node.meta["val"].shape[SEQUENCE_DIM] for node in on_heads]
    schedule = RingSchedule(
        place, plan.num_ring, sizes[0], sizes[1], key_cut.atom, is_causal, key_cut.order
    )
    mask = ring_mask(op, schedule, key_cut) if op.target is MASKED_ATTENTION else {}
    node = op.emit(
        RING_ATTENTION,
        *on_heads,
        is_causal,
        scale=op.kwargs.get("scale"),
        key_length=key_cut.atom,
        order=key_cut.order,
        ring_rank=place,
        ring_size=plan.num_ring,
        receiver=(op.builder.rank + stride) % op.num_ranks,
        sender=(op.builder.rank - stride) % op.num_ranks,
        num_ranks=op.num_ranks,
        group_name=op.builder.group_name,
        **mask,
    )
    axis = "ring" if plan.num_ulysses > 1 else "sp"
    tag = CollectiveTag("send_recv", axis, plan.num_ring, str(key_cut), "the next rank's")
    op.builder.amend(node, ring=tag)
    with op.builder.role("pack", "neighbouring ranks exchange heads back"):
        node = exchange.to_rows(node, cut.order)
    _explain(op, plan, schedule, ring_figures(op, plan, schedule, cut, key_cut))
    return Value(node, cut, op.shape)


def _with_whole_keys(op: Operation, cut: Shard) -> Value:
    """Every rank holds all keys and values: nothing need be sent."""
    op.decide(
        "applied",
        "attention",
        "each rank's queries with all keys, nothing is sent",
        "keys and values are whole on every rank",
        rule="ring.ring_attention",
    )
    node = masked_rows(op, cut) if op.target is MASKED_ATTENTION else op.same()
    return op.result(node, cut)


def _key_cut(op: Operation, key: Value) -> Shard:
    """How keys lie that need not be the queries' tokens."""
    own, length = key.placement, key.shape[SEQUENCE_DIM]
    if isinstance(own, Shard) and (own.dim, own.outer, own.atom) == (SEQUENCE_DIM, 1, length):
        return own
    return Shard(SEQUENCE_DIM, length, pad=padding_of(length, op.num_ranks), label="seq")


def _explain(
    op: Operation, plan: SitePlan, schedule: RingSchedule, figures: Mapping[str, Any]
) -> None:
    size = schedule.size
    at_most = ", at most: what the mask makes of data is seen when it runs"
    skipped = [step for step in range(size) if schedule.tile(step) is None]
    steps = "; ".join(_step_text(schedule, step) for step in range(size))
    op.decide(
        "analysis",
        "ring-steps",
        f"{size} steps, {len(skipped)} skipped: {steps}",
        "blocks whose every key is masked or padding are not computed",
        rule="ring_schedule.tile",
    )
    op.decide(
        "analysis",
        "ring-work",
        f"{schedule.order} order: {balance_text(figures['work'])}"
        f"{at_most if op.target is MASKED_ATTENTION else ''}",
        "pairs of a query and a key that each ring rank computes per head",
        rule="ring_schedule.num_scores",
        alternatives=_other_order(figures),
    )
    op.decide(
        "applied",
        "attention",
        _chosen(plan, op),
        plan.reason,
        rule="ring.ring_attention",
        figures=figures,
        alternatives=plan.rejected,
    )


def _chosen(plan: SitePlan, op: Operation) -> str:
    num_heads = op.args[0].shape[HEAD_DIM]
    if plan.num_ulysses == 1:
        return f"ring of {plan.num_ring} ranks, all {num_heads} query heads on each"
    return (
        f"{plan.name}: {num_heads // plan.num_ulysses} of {num_heads} query heads per rank, "
        f"a ring of {plan.num_ring} groups of {plan.num_ulysses} neighbouring ranks"
    )


def _step_text(schedule: RingSchedule, step: int) -> str:
    tile = schedule.tile(step)
    where = f"block of {schedule.source(step)}"
    if tile is None:
        return f"{where} skipped"
    return f"{where} {tile.num_queries}x{tile.key_end}{' causal' if tile.is_causal else ''}"


def balance_text(work: Work) -> str:
    """Work of every ring rank, and of the busiest against the mean."""
    totals = [sum(steps) for steps in work]
    busiest = max(totals) * len(totals) / max(sum(totals), 1)
    return f"{', '.join(map(str, totals))} (busiest {busiest:.2f} of the mean)"


def _other_order(figures: Mapping[str, Any]) -> tuple[Alternative, ...]:
    if "other_order" not in figures:
        return ()
    name, cost = f"{figures['other_order']} order", balance_text(figures["other_work"])
    return (Alternative(name, "the mask leaves ranks unequal work", cost),)
