"""Slices, joins and padding of the cut dim itself: rows move to where their new position is.

Everything is a window of rows (:mod:`autosp.sharding.halo`): a shift by one token moves one
row between neighbours. Of a slice of fewer rows than ranks (``x[:, 0]``, ``x[:, -1:]``)
every rank gets all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from autosp.placement import PARTIAL_SUM, REPLICATE, Shard
from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula
from autosp.sharding.halo import (
    Fill,
    TooFar,
    Window,
    fetch,
    filled,
    is_plain,
    swapped_with_mirror,
)
from autosp.sharding.lookups import rows_at
from autosp.sharding.operation import NoRule, Operation, normalise_dim
from autosp.sharding.rows import cut_of
from autosp.sizes import divided_up, first_row, is_symbolic, plain, same_size

aten = torch.ops.aten


def slice_cut(op: Operation, source: Value, start: int, step: int) -> Value:
    """Every ``step``-th row of the cut dim from ``start``, as many as the result has."""
    cut = cut_of(source)
    kept, size, num_ranks = op.shape[cut.dim], source.shape[cut.dim], op.num_ranks
    if same_size(kept, size):
        return source
    if kept == 0:
        raise NoRule("an empty slice")
    is_whole = same_size(cut.outer, 1) and same_size(cut.atom, size)
    if start == 0 and step == 1 and is_whole:
        tail = Shard(cut.dim, kept, 1, cut.pad + size - kept, cut.order, cut.label)
        return op.result(source.node, tail)
    if kept < num_ranks and source.dtype != torch.bool:
        return op.result(_few_rows(op, source, start, kept, step), PARTIAL_SUM)
    check_plain(source)
    keeps_blocks = step == 1 and 2 * kept > size
    block = cut.block(num_ranks) if keeps_blocks else divided_up(kept, num_ranks)
    window = Window(start, block * step, (block - 1) * step + 1)
    node = fetched(op, source, window)
    if step != 1:
        node = op.emit(aten.slice.Tensor, node, cut.dim, 0, window.length, step)
    _explain(op, f"rows move by {start}" if step == 1 else f"every {step}th row")
    return op.result(node, blocks_of(cut, kept, block, num_ranks))


def _few_rows(op: Operation, source: Value, start: int, kept: int, step: int) -> Node:
    end = start + (kept - 1) * step + 1
    indices = op.emit(
        aten.arange.start_step, start, end, step, dtype=torch.int64, device=source.local.device
    )
    return rows_at(op, source, indices, cut_of(source)).node


def select_cut(op: Operation, source: Value, index: int) -> Value:
    """One row of the cut dim, without the dim."""
    if source.dtype == torch.bool:
        raise NoRule("select of one row of the sharded dim")
    cut = cut_of(source)
    row = _few_rows(op, source, first_row(index, source.shape[cut.dim]), 1, 1)
    return op.result(op.emit(aten.squeeze.dims, row, [cut.dim]), PARTIAL_SUM)


def fetched(op: Operation, source: Value, window: Window, fill: Fill | None = None) -> Node:
    """The window's rows, from neighbours, or from all ranks where it reaches that far."""
    try:
        return fetch(op.builder, source, window, fill=fill)
    except TooFar as why:
        whole = op.replicate(source, str(why))
    cut = cut_of(source)
    rows = _window_of_whole(op, whole, cut.dim, window)
    if fill is None:
        return rows
    return filled(op.builder, rows, source, cut, window, fill)


def _window_of_whole(op: Operation, whole: Value, dim: int, window: Window) -> Node:
    """A rank's window of rows that it holds all of; edge rows stand outside the sequence."""
    size = whole.shape[dim]
    if is_symbolic(window.step) or is_symbolic(size):
        return _window_by_index(op, whole, dim, window)
    front = max(-window.begin(0), 0)
    last = window.begin(op.num_ranks - 1) + window.length
    node = whole.node
    if front or last > size:

        def copies(row: int, count: int) -> Node:
            edge = op.emit(aten.slice.Tensor, whole, dim, row, row + 1)
            sizes = list(whole.shape)
            sizes[dim] = count
            return op.emit(aten.expand.default, edge, sizes)

        around = [copies(0, front), node, copies(size - 1, max(last - size, 0))]
        node = op.emit(aten.cat.default, [n for n in around if n.meta["val"].shape[dim]], dim)
    first = window.begin(op.builder.rank) + front
    return op.emit(aten.slice.Tensor, node, dim, first, first + window.length)


def _window_by_index(op: Operation, whole: Value, dim: int, window: Window) -> Node:
    """The same where a length that stays dynamic decides which rows are outside."""
    begin = window.begin(op.builder.rank)
    position = op.emit(
        aten.arange.start,
        begin,
        begin + window.length,
        dtype=torch.int64,
        device=whole.local.device,
    )
    inside = op.emit(aten.clamp.default, position, 0, whole.shape[dim] - 1)
    return op.emit(aten.index_select.default, whole, dim, inside)


def check_plain(source: Value) -> None:
    """Raise :class:`NoRule` where rows that follow each other lie on far-off ranks."""
    cut = cut_of(source)
    if not is_plain(source, cut):
        kind = "strided" if cut.order == "contiguous" else cut.order
        raise NoRule(f"rows of a {kind} cut {cut} would move")


def blocks_of(cut: Shard, size: int, block: int, num_ranks: int) -> Shard:
    return Shard(cut.dim, size, 1, block * num_ranks - size, cut.order, cut.label)


def block_for(cut: Shard, size: int, num_ranks: int) -> int:
    """Rows per rank for a new ``size``: as before where that fits and wastes little."""
    block = cut.block(num_ranks)
    if is_symbolic(block):
        more = plain(size - cut.atom)
        if is_symbolic(more):
            return divided_up(size, num_ranks)
        return block + divided_up(max(more, 0), num_ranks)
    fits = size <= block * num_ranks < 2 * size
    return block if fits else divided_up(size, num_ranks)


def pad(op: Operation) -> Value | Formula:
    """``F.pad`` on any dims; on the cut dim by a constant or by repeating the edge."""
    source: Value = op.args[0]
    cut = cut_of(source)
    widths = list(op.args[1])
    is_constant_pad = op.target is aten.constant_pad_nd.default
    mode = "constant" if is_constant_pad else op.argument(2, "mode", "constant")
    value = op.argument(2 if is_constant_pad else 3, "value", 0) or 0
    place = 2 * (len(source.shape) - 1 - cut.dim)
    front, back = (widths[place : place + 2] + [0, 0])[:2]
    if not front and not back:
        return op.result(op.same(), cut)
    if mode in _EDGES and min(front, back) >= 0 and sum(widths) == front + back:
        return Formula(_EDGES[mode], (source, cut.dim, front, back))
    if mode != "constant":
        raise NoRule(f"{mode} padding of the sharded dim")
    check_plain(source)
    size = op.shape[cut.dim]
    block = block_for(cut, size, op.num_ranks)
    fill = Fill(value, source.shape[cut.dim] + max(back, 0))
    node = fetched(op, source, Window(-front, block, block), fill)
    widths[place : place + 2] = [0, 0]
    if any(widths):
        node = op.emit(aten.pad.default, node, widths, mode, value)
    _explain(op, f"{front} rows before and {back} after the sequence")
    return op.result(node, blocks_of(cut, size, block, op.num_ranks))


def _edges_repeated(x: Any, dim: int, front: int, back: int) -> Any:
    sizes = list(x.shape)

    def copies(row: int, count: int) -> Any:
        return x.narrow(dim, row, 1).expand([*sizes[:dim], count, *sizes[dim + 1 :]])

    return _joined(copies(0, front), x, copies(sizes[dim] - 1, back), dim)


def _mirrored(x: Any, dim: int, front: int, back: int) -> Any:
    first = x.narrow(dim, 1, front).flip(dim)
    last = x.narrow(dim, x.shape[dim] - 1 - back, back).flip(dim)
    return _joined(first, x, last, dim)


def _wrapped_around(x: Any, dim: int, front: int, back: int) -> Any:
    return _joined(x.narrow(dim, x.shape[dim] - front, front), x, x.narrow(dim, 0, back), dim)


def _joined(front: Any, x: Any, back: Any, dim: int) -> Any:
    return torch.cat([part for part in (front, x, back) if part.shape[dim]], dim)


_EDGES = {"replicate": _edges_repeated, "reflect": _mirrored, "circular": _wrapped_around}


def join_cut(op: Operation, parts: list[Value], dim: int) -> Value:
    """``cat`` along the cut dim: every rank takes its rows out of each part."""
    sharded = [part for part in parts if _is_cut_on(part, dim)]
    for part in sharded:
        check_plain(part)
    lead = cut_of(max(sharded, key=lambda part: part.shape[dim]))
    size, num_ranks = op.shape[dim], op.num_ranks
    block = block_for(lead, size, num_ranks)
    begin = op.builder.rank * block
    position = op.emit(aten.arange.start, begin, begin + block, device=parts[0].local.device)
    joined: Node | None = None
    offset = 0
    for part in parts:
        if len(part.shape) != len(op.shape) or part.shape[dim] == 0:
            continue
        rows = _rows_of_part(op, part, dim, offset, block)
        if rows.meta["val"].dtype != op.output.dtype:
            rows = op.emit(aten.to.dtype, rows, op.output.dtype)
        joined = rows if joined is None else _from(op, position, offset, rows, joined, dim)
        offset += part.shape[dim]
    assert joined is not None
    _explain(op, f"{len(parts)} parts are joined along the sequence")
    return op.result(joined, blocks_of(lead, size, block, num_ranks))


def _is_cut_on(part: Value, dim: int) -> bool:
    return isinstance(part.placement, Shard) and part.placement.dim == dim


def _rows_of_part(op: Operation, part: Value, dim: int, offset: int, block: int) -> Node:
    """This rank's rows of the joined tensor, right where they come from ``part``."""
    if _is_cut_on(part, dim):
        return fetched(op, part, Window(-offset, block, block))
    part = op.redistribute(part, REPLICATE, "a part that every rank needs some rows of")
    return _window_of_whole(op, part, dim, Window(-offset, block, block))


def _from(op: Operation, position: Node, offset: int, rows: Node, before: Node, dim: int) -> Node:
    shape = [1] * len(op.shape)
    shape[dim] = -1
    is_part = op.emit(aten.reshape.default, op.emit(aten.ge.Scalar, position, offset), shape)
    return op.emit(aten.where.self, is_part, rows, before)


def split_cut(op: Operation, dim: int) -> Formula:
    """split and chunk along the cut dim: a slice each."""
    sizes = [output.shape[dim] for output in op.outputs]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return Formula(
        lambda x: [x.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True)],
        (op.args[0],),
    )


def roll(op: Operation) -> Value | Formula:
    source, shifts, dims = op.args[0], op.args[1], op.argument(2, "dims", [])
    cut, num_dims = cut_of(source), len(source.shape)
    given = [normalise_dim(dim, num_dims) for dim in dims]
    if cut.dim not in given:
        if not given:
            raise NoRule("roll of the flattened tensor")
        return op.result(op.same(), cut)
    size = source.shape[cut.dim]
    shift = sum(s for s, dim in zip(shifts, given, strict=True) if dim == cut.dim) % size
    rest = [(s, dim) for s, dim in zip(shifts, given, strict=True) if dim != cut.dim]

    def function(x: Any) -> Any:
        if rest:
            x = x.roll([s for s, _ in rest], [dim for _, dim in rest])
        if shift == 0:
            return x.clone()
        head, tail = x.narrow(cut.dim, 0, size - shift), x.narrow(cut.dim, size - shift, shift)
        return torch.cat([tail, head], cut.dim)

    return Formula(function, (source,))


def flip(op: Operation) -> Value:
    """Blocks change places with their mirror images; padding then is in front, and moves back."""
    source: Value = op.args[0]
    cut = cut_of(source)
    node = op.same()
    if cut.dim not in {normalise_dim(dim, len(source.shape)) for dim in op.args[1]}:
        return op.result(node, cut)
    check_plain(source)
    if is_symbolic(cut.atom):
        raise NoRule("flip of the sharded dim, whose length stays dynamic")
    num_rows = cut.block(op.num_ranks) * op.num_ranks
    shape = (*source.shape[: cut.dim], num_rows, *source.shape[cut.dim + 1 :])
    mirrored = Value(
        swapped_with_mirror(op.builder, node, cut), Shard(cut.dim, num_rows, label=cut.label), shape
    )
    block = cut.block(op.num_ranks)
    rows = fetched(op, mirrored, Window(cut.pad, block, block))
    _explain(op, "the sequence is reversed")
    return op.result(rows, cut)


def unfold(op: Operation) -> Value:
    """Windows of a dim as a new last dim."""
    source, dim, length, step = op.args[:4]
    cut, dim = cut_of(source), normalise_dim(dim, len(source.shape))
    if dim != cut.dim:
        return op.result(op.same(), cut)
    check_plain(source)
    size = op.shape[dim]
    block = divided_up(size, op.num_ranks)
    window = Window(0, block * step, (block - 1) * step + length)
    node = op.emit(op.target, fetched(op, source, window), dim, length, step)
    return op.result(node, blocks_of(cut, size, block, op.num_ranks))


def _explain(op: Operation, what: str) -> None:
    op.decide(
        "applied",
        "shift",
        "rows move between the ranks concerned",
        f"{what}: positions in the sharded dim change",
        rule="shifts",
    )


RULES = {
    aten.constant_pad_nd.default: pad,
    aten.pad.default: pad,
    aten.roll.default: roll,
    aten.flip.default: flip,
    aten.unfold.default: unfold,
}
