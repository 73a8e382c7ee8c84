"""Attention under a factored mask: its vectors on the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from autosp.mask_predicate import parse
from autosp.placement import Shard
from autosp.ring_schedule import RingSchedule
from autosp.runtime.masked_attention import MASKED_ATTENTION
from autosp.sharding.attention_plan import SEQUENCE_DIM
from autosp.sharding.builder import Value
from autosp.sharding.mask_density import MaskDensity
from autosp.sharding.operation import Operation
from autosp.sharding.redistribute import zigzag_order
from autosp.sizes import example

aten = torch.ops.aten

WHOLE = "a mask looks at vectors of the whole sequence"
POSITIONS = 1
"""Dim of a vector ``[batch, positions]``."""


def masked_on_heads(op: Operation, heads: Sequence[Value]) -> Node:
    """All queries and keys, some heads: every rank has the whole vectors."""
    vectors = {
        name: [op.replicate(vector, WHOLE) for vector in op.kwargs[name]]
        for name in ("query_vectors", "key_vectors")
    }
    return op.emit(MASKED_ATTENTION, *heads, **(op.kwargs | vectors | slopes_of_rank(op)))


def slopes_of_rank(op: Operation, num_ulysses: int | None = None) -> dict[str, Node]:
    """The slopes of the heads that a rank has after exchanging heads among so many ranks."""
    slopes: Value | None = op.kwargs.get("slopes")
    if slopes is None:
        return {}
    count = op.num_ranks if num_ulysses is None else num_ulysses
    per_rank, dim = slopes.shape[-1] // count, len(slopes.shape) - 1
    whole = op.replicate(slopes, "a slope per head")
    first = op.builder.rank % count * per_rank
    with op.builder.role("slice", "the slopes of this rank's heads"):
        return {"slopes": op.emit(aten.slice.Tensor, whole, dim, first, first + per_rank)}


def _all_positions(tensor: Value) -> list[range]:
    return [range(example(tensor.shape[SEQUENCE_DIM]))]


def masked_rows(op: Operation, cut: Shard) -> Node:
    """Some queries, all heads and keys."""
    vectors = {
        "query_vectors": [
            op.redistribute(vector, cut.on_dim(POSITIONS), "numbers of these queries")
            for vector in op.kwargs["query_vectors"]
        ],
        "key_vectors": [op.replicate(vector, WHOLE) for vector in op.kwargs["key_vectors"]],
    }
    own = cut.pieces(op.builder.rank, op.num_ranks)
    density = mask_density(op).among(own, _all_positions(op.args[1]))
    changed = vectors | {"density": density} | slopes_of_rank(op, 1)
    return op.emit(MASKED_ATTENTION, *op.args[:3], **(op.kwargs | changed))


def ring_mask(op: Operation, schedule: RingSchedule, key_cut: Shard) -> dict[str, Any]:
    """What a ring takes to mask: vectors of this rank's queries, and of all blocks of keys."""
    cut = op.args[0].placement
    assert isinstance(cut, Shard)
    predicate = op.kwargs["predicate"]
    first = schedule.rank * schedule.query_rows
    with op.builder.role("slice", "the numbers of these queries and of each block of keys"):
        queries = [
            op.builder.emit(aten.slice.Tensor, node, POSITIONS, first, first + schedule.query_rows)
            for node in _dealt_out(op, op.kwargs["query_vectors"], cut, schedule)
        ]
        keys = _dealt_out(op, op.kwargs["key_vectors"], key_cut, schedule)
        if key_cut.pad:
            predicate = f"({predicate}) and k{len(keys)}"
            keys.append(_in_order(op, _valid_keys(op, key_cut), key_cut, schedule))
    return {
        "predicate": predicate,
        "query_vectors": queries,
        "key_vectors": keys,
        "densities": tile_densities(mask_density(op), schedule, cut, key_cut),
        "softcap": op.kwargs.get("softcap", 0.0),
        **slopes_of_rank(op, op.num_ranks // schedule.size),
    }


def mask_density(op: Operation) -> MaskDensity:
    """What positions tell of the mask of ``op``."""
    given: Any = op.node.kwargs
    predicate = parse(op.kwargs["predicate"])
    return MaskDensity.of(predicate, given["query_vectors"], given["key_vectors"])


def tile_densities(
    density: MaskDensity, schedule: RingSchedule, cut: Shard, key_cut: Shard
) -> list[float]:
    """The part of the pairs that is left in the tile of each step; 0 where there is none."""
    own = cut.pieces(schedule.rank, schedule.size)
    found = []
    for step in range(schedule.size):
        tile = schedule.tile(step)
        if tile is None:
            found.append(0.0)
            continue
        keys = key_cut.pieces(schedule.source(step), schedule.size)
        queries = _rows(own, tile.query_start, schedule.query_rows)
        found.append(density.among(queries, _rows(keys, 0, tile.key_end)))
    return found


def _rows(pieces: Sequence[range], start: int, end: int) -> list[range]:
    """The positions of rows ``start`` to ``end`` of what a rank holds."""
    found, offset = [], 0
    for piece in pieces:
        part = piece[max(start - offset, 0) : max(end - offset, 0)]
        offset += len(piece)
        if part:
            found.append(part)
    return found


def _dealt_out(
    op: Operation, vectors: Iterable[Value], cut: Shard, schedule: RingSchedule
) -> list[Node]:
    """Vectors with padding, in the order of the ring's ranks and of their rows."""
    found = []
    for vector in vectors:
        node = op.replicate(vector, WHOLE).node
        if cut.pad:
            node = op.builder.emit(aten.constant_pad_nd.default, node, [0, cut.pad], 0)
        found.append(_in_order(op, node, cut, schedule))
    return found


def _in_order(op: Operation, node: Node, cut: Shard, schedule: RingSchedule) -> Node:
    if cut.order == "contiguous":
        return node
    return zigzag_order(op.builder, node, POSITIONS, schedule.size)


def _valid_keys(op: Operation, cut: Shard) -> Node:
    """1 for a key, 0 for padding: ``[1, rows of all ranks]``."""
    options = {"dtype": torch.bool, "device": op.args[1].local.device}
    node = op.builder.emit(aten.ones.default, [1, cut.atom], **options)
    return op.builder.emit(aten.constant_pad_nd.default, node, [0, cut.pad], 0)
