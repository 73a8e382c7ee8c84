"""Moving rows between neighbours: a rank fetches any window of the rows of a cut dim.

Rank ``r`` wants rows ``start + r * step`` to ``start + r * step + length`` of the whole dim.
Every rank gets as many rows before and after its own as the neediest rank wants, in one
all-to-all along the ring of ranks, and takes its window out of them: shifts, convolutions
and new block sizes move a few rows at the edges. What is fetched has the same shape on
every rank, so that the ranks' programs differ in numbers alone. Where the ring closes, rows
of the other end stand outside the sequence: they fill padding, or are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from autosp.graph import CollectiveTag, functional
from autosp.placement import Shard
from autosp.sharding.builder import ProgramBuilder, Value
from autosp.sizes import divided_up, is_symbolic, plain, same_size, surely_at_most

aten = torch.ops.aten


class TooFar(Exception):
    """The window needs rows of so many ranks that the whole tensor serves better."""


@dataclass(frozen=True, slots=True)
class Window:
    """The rows that each rank wants; positions in the whole dim, which may lie outside."""

    start: int
    step: int
    length: int

    def begin(self, rank: int) -> int:
        return self.start + rank * self.step

    def margins(self, block: int, size: int, num_ranks: int) -> tuple[int, int]:
        """Rows wanted before and after a rank's own block: the most of any rank.

        Raises:
            TooFar: their number depends on a length that stays dynamic.
        """
        before, after = 0, 0
        for rank in range(num_ranks):
            begin = self.begin(rank)
            end = begin + self.length
            front, behind = plain(rank * block - begin), plain(end - (rank + 1) * block)
            if is_symbolic(front) or is_symbolic(behind):
                raise TooFar("the length decides how far away the rows are")
            if is_symbolic(size) or (begin < size and end > 0):
                before, after = max(before, front), max(after, behind)
        return before, after


@dataclass(frozen=True, slots=True)
class Fill:
    """``value`` for the rows before the sequence, and after it up to position ``end``."""

    value: float
    end: int


def is_plain(value: Value, cut: Shard) -> bool:
    """Whether the rows of a rank are neighbours, and blocks lie in the ranks' order."""
    is_whole = same_size(cut.outer, 1) and same_size(value.shape[cut.dim], cut.atom)
    return is_whole and cut.order == "contiguous"


def fetch(
    builder: ProgramBuilder, value: Value, window: Window, *, fill: Fill | None = None
) -> Node:
    """The window's rows on this rank; outside the sequence ``fill``, else any valid row.

    ``value`` must be cut plainly.

    Raises:
        TooFar: neighbours do not have the rows.
    """
    cut = value.placement
    assert isinstance(cut, Shard) and is_plain(value, cut), cut
    block, rank = cut.block(builder.num_ranks), builder.rank
    before, after = window.margins(block, cut.atom, builder.num_ranks)
    if len(_portions(before, block)) + len(_portions(after, block)) >= builder.num_ranks:
        raise TooFar(f"rows of all ranks are wanted: {before} before and {after} after {block}")
    rows = _with_neighbours(builder, value, cut, before, after)
    known = before + block + after
    wanted = plain(window.begin(rank) - rank * block + before)
    first = min(max(wanted, 0), plain(known - window.length))
    if not same_size(window.length, known):
        with builder.role("slice"):
            rows = builder.emit(aten.slice.Tensor, rows, cut.dim, first, first + window.length)
    return rows if fill is None else filled(builder, rows, value, cut, window, fill)


def _with_neighbours(
    builder: ProgramBuilder, value: Value, cut: Shard, before: int, after: int
) -> Node:
    """This rank's block with ``before`` rows in front of it and ``after`` behind."""
    if not before and not after:
        return value.node
    block, dim = cut.block(builder.num_ranks), cut.dim
    num_ranks, rank = builder.num_ranks, builder.rank
    # (rank it goes to, its rows in the sender's block): the last rows go up, the first down.
    parts = [((rank + i) % num_ranks, block - n, block) for i, n in _portions(before, block)]
    parts += [((rank - i) % num_ranks, 0, n) for i, n in _portions(after, block)]
    sends = [0] * num_ranks
    with builder.role("pack"):
        node = builder.emit(aten.movedim.int, value.node, dim, 0) if dim else value.node
        slices = []
        for receiver, first, end in parts:
            slices.append((receiver, builder.emit(aten.slice.Tensor, node, 0, first, end)))
            sends[receiver] = end - first
        ordered = [part for _, part in sorted(slices, key=lambda item: item[0])]
        packed = builder.emit(aten.cat.default, ordered, 0)
    lower = [((rank - i) % num_ranks, n) for i, n in reversed(_portions(before, block))]
    higher = [((rank + i) % num_ranks, n) for i, n in _portions(after, block)]
    receives = [0] * num_ranks
    for sender, count in lower + higher:
        receives[sender] = count
    received = _exchanged(builder, packed, receives, sends, cut)
    with builder.role("unpack"):
        if dim:
            received = builder.emit(aten.movedim.int, received, 0, dim)

        def of(sender: int) -> Node:
            first = sum(receives[:sender])
            return builder.emit(aten.slice.Tensor, received, dim, first, first + receives[sender])

        around = [*(of(s) for s, _ in lower), value.node, *(of(s) for s, _ in higher)]
        return builder.emit(aten.cat.default, around, dim)


def _portions(rows: int, block: int) -> list[tuple[int, int]]:
    """(how many ranks away, rows from there), nearest first.

    Raises:
        TooFar: more rows than a neighbour has, of blocks whose size stays dynamic.
    """
    if not is_symbolic(block):
        count = divided_up(rows, block)
        return [(i + 1, min(block, rows - i * block)) for i in range(count)]
    if rows > block:
        raise TooFar(f"{rows} rows are more than a neighbour has")
    return [(1, rows)] if rows else []


def swapped_with_mirror(builder: ProgramBuilder, node: Node, cut: Shard) -> Node:
    """The block of rank ``P - 1 - r`` on rank ``r``; all of the same shape."""
    counts = [0] * builder.num_ranks
    counts[builder.num_ranks - 1 - builder.rank] = cut.block(builder.num_ranks)
    with builder.role("pack"):
        packed = builder.emit(aten.movedim.int, node, cut.dim, 0) if cut.dim else node
        packed = builder.emit(aten.clone.default, packed, memory_format=torch.contiguous_format)
    received = _exchanged(builder, packed, counts, counts, cut)
    if not cut.dim:
        return received
    with builder.role("unpack"):
        return builder.emit(aten.movedim.int, received, 0, cut.dim)


def _exchanged(
    builder: ProgramBuilder, packed: Node, receives: list[int], sends: list[int], cut: Shard
) -> Node:
    tag = CollectiveTag("all_to_all", "sp", builder.num_ranks, str(cut), "with rows of neighbours")
    return builder.collective(
        tag, functional.all_to_all_single.default, packed, receives, sends, builder.group_name
    )


def filled(
    builder: ProgramBuilder, node: Node, value: Value, cut: Shard, window: Window, fill: Fill
) -> Node:
    """The window's rows, with ``fill`` where it says so."""
    last = window.begin(builder.num_ranks - 1) + window.length
    is_after = not surely_at_most(fill.end, cut.atom)
    if window.start >= 0 and (not is_after or surely_at_most(last, cut.atom)):
        return node
    begin = window.begin(builder.rank)
    with builder.role("pack", "rows outside the sequence"):
        position = builder.emit(
            aten.arange.start, begin, begin + window.length, device=value.local.device
        )
        outside = builder.emit(aten.lt.Scalar, position, 0)
        if is_after:
            after = builder.emit(aten.ge.Scalar, position, cut.atom)
            ends = builder.emit(aten.lt.Scalar, position, fill.end)
            after = builder.emit(aten.logical_and.default, after, ends)
            outside = builder.emit(aten.logical_or.default, outside, after)
        shape = [1] * len(value.shape)
        shape[cut.dim] = -1
        outside = builder.emit(aten.reshape.default, outside, shape)
        return builder.emit(aten.where.ScalarSelf, outside, fill.value, node)
