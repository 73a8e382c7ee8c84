"""Numbers of one attention for the trace: its form, and what each rank computes at each step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autosp.placement import BlockOrder, Shard
from autosp.ring_schedule import RingSchedule
from autosp.runtime.masked_attention import MASKED_ATTENTION
from autosp.sharding.attention_plan import (
    ATTENTION,
    HEAD_DIM,
    SEQUENCE_DIM,
    SitePlan,
    is_causal,
)
from autosp.sharding.masked import mask_density, tile_densities
from autosp.sharding.operation import Operation
from autosp.sizes import example, examples

Work = list[list[int]]
"""Pairs of a query and a key that are computed for one head: of each ring rank, at each step."""


def ulysses_figures(op: Operation, plan: SitePlan) -> dict[str, Any]:
    """Every rank has some heads and the whole sequence: one step, the same on all."""
    length, key_length = _lengths(op)
    pairs = round(_part_left(op) * length * key_length)
    if is_causal(op.node):
        pairs = length * (length + 1) // 2
    return _figures(op, plan, [[pairs]], length, key_length) | {"tokens": [length]}


def ring_figures(
    op: Operation, plan: SitePlan, schedule: RingSchedule, cut: Shard, key_cut: Shard
) -> dict[str, Any]:
    """Blocks of keys that come by; of causal rings also what the other order would do."""
    figures = _figures(
        op,
        plan,
        work_by_step(op, schedule, cut, key_cut),
        schedule.query_rows,
        schedule.key_rows,
    )
    figures["order"] = schedule.order
    figures["tokens"] = _tokens(cut, schedule.size)
    if schedule.is_causal and _can_be_reordered(schedule):
        order = other_order(schedule)
        other_cut, other_key_cut = (replace(each, order=order) for each in (cut, key_cut))
        figures["other_order"] = order
        figures["other_work"] = work_by_step(op, schedule.in_order(order), other_cut, other_key_cut)
        figures["other_tokens"] = _tokens(other_cut, schedule.size)
    return figures


def work_by_step(op: Operation, schedule: RingSchedule, cut: Shard, key_cut: Shard) -> Work:
    """Of a mask counts what positions alone tell: conditions on data count as if they held."""
    density = mask_density(op) if op.target is MASKED_ATTENTION else None
    work: Work = []
    for rank in range(schedule.size):
        own = replace(schedule, rank=rank)
        tiles = [own.tile(step) for step in range(schedule.size)]
        if density is None:
            work.append([0 if tile is None else tile.num_scores for tile in tiles])
            continue
        parts = tile_densities(density, own, cut, key_cut)
        work.append(
            [
                0 if tile is None else round(tile.num_queries * tile.key_end * part)
                for tile, part in zip(tiles, parts, strict=True)
            ]
        )
    return work


def other_order(schedule: RingSchedule) -> BlockOrder:
    return "contiguous" if schedule.order == "zigzag" else "zigzag"


def _can_be_reordered(schedule: RingSchedule) -> bool:
    """Zigzag cuts what a rank holds in two."""
    return schedule.query_rows % 2 == 0


def _figures(
    op: Operation, plan: SitePlan, work: Work, query_rows: int, key_rows: int
) -> dict[str, Any]:
    """``query_rows`` and ``key_rows``: what a rank holds while it attends, padding included."""
    query, key = op.args[:2]
    batch, num_heads, _, size = examples(query.shape)
    num_kv_heads = key.shape[HEAD_DIM]
    heads, kv_heads = num_heads // plan.num_ulysses, max(num_kv_heads // plan.num_ulysses, 1)
    length, key_length = _lengths(op)
    block = 2 * batch * kv_heads * key_rows * size * query.dtype.itemsize
    own = 2 * batch * heads * query_rows * size * query.dtype.itemsize
    return {
        "form": plan.name,
        "mask": _mask_text(op),
        "num_ulysses": plan.num_ulysses,
        "num_ring": plan.num_ring,
        "rank": op.builder.rank // plan.num_ulysses,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "heads_per_rank": heads,
        "query_length": length,
        "key_length": key_length,
        "pairs_of_a_block": query_rows * key_rows,
        "work": work,
        "kept_bytes": own + block + 4 * batch * heads * query_rows,
        "in_flight_bytes": 2 * block if plan.num_ring > 1 else 0,
    }


def _lengths(op: Operation) -> tuple[int, int]:
    return tuple(example(tensor.shape[SEQUENCE_DIM]) for tensor in op.args[:2])  # type: ignore[return-value]


def _tokens(cut: Shard, num_ranks: int) -> list[int]:
    """Rows of each rank without padding."""
    return [cut.num_valid(rank, num_ranks) for rank in range(num_ranks)]


def _part_left(op: Operation) -> float:
    if op.target is not MASKED_ATTENTION:
        return 1.0
    length, key_length = _lengths(op)
    return mask_density(op).among([range(length)], [range(key_length)])


def _mask_text(op: Operation) -> str:
    if op.target is MASKED_ATTENTION:
        return str(op.kwargs["predicate"])
    if op.target not in ATTENTION:
        return "a function of scores and positions"
    if is_causal(op.node):
        return "causal"
    return "none" if op.argument(3, "attn_mask") is None else "a tensor"
