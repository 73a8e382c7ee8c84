"""Moving rows between neighbours: a rank fetches any window of the rows of a cut dim.

Rank ``r`` wants rows ``start + r * step`` to ``start + r * step + length`` of the whole dim.
Every rank sends to each other rank what that one's window has of its own rows, in one
all-to-all with uneven splits: shifts, convolutions and new block sizes move a few rows at
the edges, only between the ranks concerned; a rank's own rows stay where they are. What
lies outside the sequence is filled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from autosp.graph import CollectiveTag, functional
from autosp.placement import Shard
from autosp.sharding.builder import ProgramBuilder, Value

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Window:
    """The rows that each rank wants; positions in the whole dim, which may lie outside."""

    start: int
    step: int
    length: int

    def begin(self, rank: int) -> int:
        return self.start + rank * self.step

    def inside(self, rank: int, size: int) -> tuple[int, int]:
        """First and end of the wanted rows that exist; at least one row, so that one is there.

        A rank that wants none gets the nearest, for its padding.
        """
        first = min(max(self.begin(rank), 0), size - 1)
        return first, max(min(self.begin(rank) + self.length, size), first + 1)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Who sends which rows to whom."""

    window: Window
    block: int
    size: int
    num_ranks: int

    def rows(self, sender: int, receiver: int) -> tuple[int, int]:
        """First and end, counted from the sender's first row; equal if there are none."""
        first, end = self.window.inside(receiver, self.size)
        begin = sender * self.block
        own = min(begin + self.block, self.size)
        low, high = max(first, begin), min(end, own)
        return (low - begin, high - begin) if low < high else (0, 0)

    def count(self, sender: int, receiver: int) -> int:
        first, end = self.rows(sender, receiver)
        return end - first

    def distances(self) -> list[int]:
        """``receiver - sender`` of all pairs between which rows move, ascending."""
        ranks = range(self.num_ranks)
        return sorted({r - s for s in ranks for r in ranks if r != s and self.count(s, r)})


@dataclass(frozen=True, slots=True)
class Fill:
    """``value`` for the rows before the sequence, and after it up to position ``end``."""

    value: float
    end: int


def fetch(
    builder: ProgramBuilder, value: Value, window: Window, *, fill: Fill | None = None
) -> Node:
    """The window's rows on this rank; where ``fill`` says nothing, the nearest row.

    ``value`` must be cut plainly: contiguous blocks, neither strided nor with inner rows.
    """
    cut = value.placement
    assert isinstance(cut, Shard) and is_plain(value, cut), cut
    block, rank = cut.block(builder.num_ranks), builder.rank
    traffic = Traffic(window, block, cut.atom, builder.num_ranks)
    first, end = traffic.rows(rank, rank)
    with builder.role("slice"):
        rows = builder.emit(aten.slice.Tensor, value.node, cut.dim, first, end)
    if traffic.distances():
        rows = _exchange(builder, value, cut, traffic, rows)
    return _completed(builder, rows, value, cut, window, fill)


def is_plain(value: Value, cut: Shard) -> bool:
    """Whether the rows of a rank are neighbours, and blocks lie in the ranks' order."""
    return cut.outer == 1 and cut.order == "contiguous" and value.shape[cut.dim] == cut.atom


def _exchange(
    builder: ProgramBuilder, value: Value, cut: Shard, traffic: Traffic, own: Node
) -> Node:
    """The rows of lower ranks, ``own`` rows, the rows of higher ranks."""
    num_ranks, rank, dim = builder.num_ranks, builder.rank, cut.dim
    others = [other for other in range(num_ranks) if other != rank]
    with builder.role("pack"):
        node = builder.emit(aten.movedim.int, value.node, dim, 0) if dim else value.node
        parts = []
        for distance in traffic.distances():
            known = rank + distance in others
            first, end = traffic.rows(rank, rank + distance) if known else (0, 0)
            parts.append(builder.emit(aten.slice.Tensor, node, 0, first, end))
        packed = builder.emit(aten.cat.default, parts, 0)
    sends, receives = [0] * num_ranks, [0] * num_ranks
    for other in others:
        sends[other], receives[other] = traffic.count(rank, other), traffic.count(other, rank)
    with builder.role("collective"):
        started = builder.emit(
            functional.all_to_all_single.default, packed, receives, sends, builder.group_name
        )
        tag = CollectiveTag("all_to_all", "sp", num_ranks, str(cut), "rows of other ranks")
        builder.amend(started, collective=tag)
    with builder.role("wait"):
        received = builder.emit(functional.wait_tensor.default, started)
    with builder.role("unpack"):
        if dim:
            received = builder.emit(aten.movedim.int, received, 0, dim)
        before, total = sum(receives[:rank]), sum(receives)
        lower = builder.emit(aten.slice.Tensor, received, dim, 0, before)
        higher = builder.emit(aten.slice.Tensor, received, dim, before, total)
        return builder.emit(aten.cat.default, [lower, own, higher], dim)


def _completed(
    builder: ProgramBuilder,
    rows: Node,
    value: Value,
    cut: Shard,
    window: Window,
    fill: Fill | None,
) -> Node:
    """As many rows as the window has."""
    ranks, dim = range(builder.num_ranks), cut.dim
    missing = [
        (first - window.begin(rank), window.begin(rank) + window.length - end)
        for rank in ranks
        for first, end in [window.inside(rank, cut.atom)]
    ]
    if not any(front or back for front, back in missing):
        return rows
    front, back = missing[builder.rank]
    with builder.role("pack", "rows outside the sequence"):
        # A window that lies outside has a row of padding too many on one side.
        kept = max(window.length - max(front, 0) - max(back, 0), 0)
        front = min(max(front, 0), window.length)
        node = _repeated(builder, rows, dim, front, kept, window.length - front - kept)
        return node if fill is None else _filled(builder, node, value, cut, window, fill)


def _filled(
    builder: ProgramBuilder, node: Node, value: Value, cut: Shard, window: Window, fill: Fill
) -> Node:
    begin = window.begin(builder.rank)
    position = builder.emit(
        aten.arange.start, begin, begin + window.length, device=value.local.device
    )
    outside = builder.emit(aten.lt.Scalar, position, 0)
    if fill.end > cut.atom:
        after = builder.emit(aten.ge.Scalar, position, cut.atom)
        ends = builder.emit(aten.lt.Scalar, position, fill.end)
        after = builder.emit(aten.logical_and.default, after, ends)
        outside = builder.emit(aten.logical_or.default, outside, after)
    shape = [1] * len(value.shape)
    shape[cut.dim] = -1
    outside = builder.emit(aten.reshape.default, outside, shape)
    return builder.emit(aten.where.ScalarSelf, outside, fill.value, node)


def _repeated(
    builder: ProgramBuilder, rows: Node, dim: int, front: int, kept: int, back: int
) -> Node:
    """The first row ``front`` times, the first ``kept`` rows, the last row ``back`` times."""

    def copies(row: int, count: int) -> Node:
        node = builder.emit(aten.slice.Tensor, rows, dim, row, row + 1)
        sizes = list(node.meta["val"].shape)
        sizes[dim] = count
        return builder.emit(aten.expand.default, node, sizes)

    last = int(rows.meta["val"].shape[dim]) - 1
    body = builder.emit(aten.slice.Tensor, rows, dim, 0, kept)
    return builder.emit(aten.cat.default, [copies(0, front), body, copies(last, back)], dim)
