"""Redistributions: the collectives, and the copies around them, that change a placement.

================  ===========================  ========================
from              to                           how
================  ===========================  ========================
``R``             ``S``                        local slice, no communication
``S``             ``S`` on another dim         all-to-all, in either order of rows
``S``             ``S``, other block size      all-to-all of the rows that move
``S``             ``R``                        all-gather
``P(sum)``        ``R``                        all-reduce
``P(sum)``        ``S``                        reduce-scatter
================  ===========================  ========================

Every collective is a native functional collective followed by its wait, between explicit
pack and unpack nodes, so that copies are visible, priced and movable. Torch derives the
backward: slice <-> zero padding, all-gather <-> reduce-scatter, all-to-all <-> all-to-all.

The layouts are chosen so that unpacking an all-to-all is a view: the rank that sends is
the outermost dim and the gathered dim comes right after it.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Any

import torch
from torch.fx import Node

from autosp.graph import CollectiveTag, functional
from autosp.placement import (
    PARTIAL_SUM,
    REPLICATE,
    Partial,
    Placement,
    Replicate,
    Shard,
    local_shape,
)
from autosp.sharding.builder import ProgramBuilder, Value
from autosp.sharding.halo import TooFar, Window, fetch, is_plain
from autosp.sharding.operation import CannotRedistribute
from autosp.sharding.padding_rows import local_sizes, pad_rows, split_dim
from autosp.sizes import is_symbolic, same_shape, same_size

aten = torch.ops.aten


def redistribute(
    builder: ProgramBuilder,
    value: Value,
    target: Placement,
    *,
    reason: str,
    fill: int | None = None,
) -> Value:
    """Bring ``value`` to ``target``; returns it unchanged if it is there already.

    ``fill`` is the value of padding rows of a replicated tensor that is cut (labels:
    the ignore index); by default padding rows repeat a valid row.

    Raises:
        CannotRedistribute: to ``P``, or a cut that no collective produces.
    """
    source = value.placement
    if source == target:
        return value
    with builder.role("slice", reason):
        match source, target:
            case Replicate(), Shard():
                node = _slice(builder, value, target, fill)
            case Shard(), Replicate():
                node = _all_gather(builder, value, source)
            case Partial(), Replicate():
                node = _all_reduce(builder, value)
            case Partial(), Shard():
                node = _reduce_scatter(builder, value, target)
            case Shard(), Shard() if source.dim != target.dim:
                node = _all_to_all(builder, value, source, target)
            case Shard(), Shard():
                if _only_blocks_differ(value, source, target):
                    block = target.block(builder.num_ranks)
                    with suppress(TooFar):
                        node = fetch(builder, value, Window(0, block, block))
                        return _placed(builder, value, node, target)
                whole = redistribute(builder, value, REPLICATE, reason=reason)
                return redistribute(builder, whole, target, reason=reason, fill=fill)
            case _:
                raise CannotRedistribute(f"{source} -> {target}")
    return _placed(builder, value, node, target)


def _placed(builder: ProgramBuilder, value: Value, node: Node, target: Placement) -> Value:
    result = Value(node, target, value.shape)
    expected = local_shape(value.shape, target, builder.num_ranks)
    assert same_shape(result.local.shape, expected), (value, target, result.local.shape, expected)
    builder.amend(node, placement=target, global_shape=value.shape)
    return result


def _only_blocks_differ(value: Value, source: Shard, target: Shard) -> bool:
    """The same plain dim with more or less padding: some rows move between neighbours."""
    same = source.dim == target.dim and same_size(source.atom, target.atom)
    return same and is_plain(value, source) and is_plain(value, target)


def _slice(builder: ProgramBuilder, value: Value, target: Shard, fill: int | None) -> Node:
    """This rank's block of a replicated tensor."""
    sizes, dim = value.shape, target.dim
    inner = sizes[dim] // (target.outer * target.atom)
    node, atom_dim = value.node, dim
    viewed = not (same_size(target.outer, 1) and same_size(inner, 1))
    if viewed:
        atom_dim = dim + 1
        node = builder.emit(
            aten.reshape.default,
            node,
            split_dim(sizes, dim, (target.outer, target.atom, inner)),
        )
    node = pad_rows(builder, node, atom_dim, target, fill)
    pieces = [
        builder.emit(aten.slice.Tensor, node, atom_dim, first, end)
        for first, end in target.bounds(builder.rank, builder.num_ranks)
    ]
    if len(pieces) > 1:
        node = builder.emit(aten.cat.default, pieces, atom_dim)
    else:  # a copy, so that the whole tensor need not live as long as the block does
        (node,) = pieces
        node = builder.emit(aten.clone.default, node, memory_format=torch.contiguous_format)
    if viewed:
        local = local_shape(sizes, target, builder.num_ranks)
        node = builder.emit(aten.reshape.default, node, list(local))
    return node


def _start_and_wait(
    builder: ProgramBuilder, kind: str, source: Placement, target: Placement, node: Node
) -> Node:
    """Emit the collective and its wait on the packed ``node``; complex numbers travel as pairs."""
    if node.meta["val"].is_complex():
        pairs = builder.emit(aten.view_as_real.default, node)
        received = _start_and_wait(builder, kind, source, target, pairs)
        return builder.emit(aten.view_as_complex.default, received)
    num_ranks, group = builder.num_ranks, builder.group_name
    call: tuple[Any, ...]
    tag = CollectiveTag(kind, "sp", num_ranks, str(source), str(target))  # type: ignore[arg-type]
    match kind:
        case "all_to_all":
            splits = [1] * num_ranks
            call = (functional.all_to_all_single.default, node, splits, splits, group)
        case "all_gather":
            call = (functional.all_gather_into_tensor.default, node, num_ranks, group)
        case "reduce_scatter":
            call = (functional.reduce_scatter_tensor.default, node, "sum", num_ranks, group)
        case _:
            call = (functional.all_reduce.default, node, "sum", group)
    return builder.collective(tag, *call)


def _pack_for(builder: ProgramBuilder, value: Value, target: Shard, leading: int | None) -> Node:
    """Lay the blocks of ``target`` out as ``[P, ...]``, contiguous.

    ``leading`` is a dim that comes right after the rank, so that the receiver can merge
    the two without a copy.
    """
    with builder.role("pack"):
        node = value.node
        sizes, dim = local_sizes(node), target.dim
        inner = value.shape[dim] // (target.outer * target.atom)
        if target.is_padded:
            if not (same_size(target.outer, 1) and same_size(inner, 1)):
                raise CannotRedistribute(f"padding a strided cut {target}")
            node = pad_rows(builder, node, dim, target, None)
            sizes = local_sizes(node)
        if target.order == "zigzag":
            if target.outer != 1 or inner != 1:
                raise CannotRedistribute(f"to a strided cut {target}")
            node = zigzag_order(builder, node, dim, builder.num_ranks)
        block = target.block(builder.num_ranks)
        if is_symbolic(target.pad):
            return _stacked_blocks(builder, node, dim, block, leading)
        strided = not same_size(target.outer, 1)
        split = ((target.outer,) if strided else ()) + (builder.num_ranks, block * inner)
        node = builder.emit(aten.reshape.default, node, split_dim(sizes, dim, split))
        rank_dim = dim + strided
        order = [d for d in range(len(sizes) + len(split) - 1) if d != rank_dim]
        if leading is not None:
            moved = leading if leading < dim else leading + len(split) - 1
            order.remove(moved)
            order.insert(0, moved)
        node = builder.emit(aten.permute.default, node, [rank_dim, *order])
        node = builder.emit(aten.contiguous.default, node)
        if not strided:
            return node
        rows = target.outer * block * inner
        packed = _packed_shape(builder.num_ranks, sizes, dim, rows, leading)
        return builder.emit(aten.reshape.default, node, packed)


def _stacked_blocks(
    builder: ProgramBuilder, node: Node, dim: int, block: int, leading: int | None
) -> Node:
    """``[P, leading?, ...rest]`` of a tensor that may have more rows than the blocks take.

    Such a tensor is a view of which torch cannot tell, without its length, whether it can be
    seen as blocks.
    """
    num_ranks = builder.num_ranks
    node = builder.emit(aten.slice.Tensor, node, dim, 0, num_ranks * block)
    blocks = builder.emit(aten.split_with_sizes.default, node, [block] * num_ranks, dim)
    parts = [builder.emit(operator.getitem, blocks, rank) for rank in range(num_ranks)]
    if leading is not None:
        parts = [builder.emit(aten.movedim.int, part, leading, 0) for part in parts]
    return builder.emit(aten.stack.default, parts)


def _packed_shape(
    num_ranks: int, sizes: tuple[int, ...], dim: int, rows: int, leading: int | None
) -> list[int]:
    """``[P, leading?, ...rest]`` with the cut dim merged to its local ``rows``."""
    rest = list(sizes)
    rest[dim] = rows
    if leading is not None:
        rest.insert(0, rest.pop(leading))
    return [num_ranks, *rest]


def _all_to_all(builder: ProgramBuilder, value: Value, source: Shard, target: Shard) -> Node:
    """Cut ``target.dim`` and make ``source.dim`` whole, in one all-to-all."""
    packed = _pack_for(builder, value, target, source.dim)
    received = _start_and_wait(builder, "all_to_all", source, target, packed)
    with builder.role("unpack"):
        sizes = local_sizes(received)
        local_rest = sizes[2:]
        gathered = merge_blocks(builder, received, 0, source, value.shape[source.dim])
        # [source.dim, rest...] back to the order of the tensor
        order = list(range(1, len(local_rest) + 1))
        order.insert(source.dim, 0)
        return builder.emit(aten.permute.default, gathered, order)


def merge_blocks(
    builder: ProgramBuilder,
    node: Node,
    dim: int,
    cut: Shard,
    global_size: int,
) -> Node:
    """``[P, ..., outer*block*inner, ...]`` -> the whole dim, padding removed.

    ``dim`` is the cut dim in the tensor without the leading rank dim.
    """
    num_ranks = builder.num_ranks
    block = cut.block(num_ranks)
    inner = global_size // (cut.outer * cut.atom)
    sizes = local_sizes(node)[1:]
    if is_symbolic(cut.pad):
        return _merge_rows_first(builder, node, dim, cut, inner)
    simple = same_size(cut.outer, 1) and dim == 0
    if not simple:
        split = (cut.outer, block, inner)
        node = builder.emit(aten.reshape.default, node, [num_ranks, *split_dim(sizes, dim, split)])
        order = list(range(1, len(sizes) + 3))
        order.insert(dim + 1, 0)
        node = builder.emit(aten.permute.default, node, order)
    padded = num_ranks * block
    if cut.pad or cut.order == "zigzag":
        rows = split_dim(sizes, dim, (cut.outer, padded, inner))
        node = builder.emit(aten.reshape.default, node, rows)
    if cut.order == "zigzag":
        node = natural_order(builder, node, dim + 1, num_ranks)
    if cut.pad:
        node = builder.emit(aten.slice.Tensor, node, dim + 1, 0, cut.atom)
    return builder.emit(aten.reshape.default, node, split_dim(sizes, dim, (global_size,)))


def natural_order(builder: ProgramBuilder, node: Node, dim: int, num_ranks: int) -> Node:
    """Rows of all ranks side by side, each rank's in zigzag order -> rows by position."""
    sizes = local_sizes(node)
    chunk = sizes[dim] // (2 * num_ranks)
    node = builder.emit(aten.reshape.default, node, split_dim(sizes, dim, (num_ranks, 2, chunk)))
    lower = builder.emit(aten.select.int, node, dim + 1, 0)
    upper = builder.emit(aten.select.int, node, dim + 1, 1)
    upper = builder.emit(aten.flip.default, upper, [dim])
    node = builder.emit(aten.cat.default, [lower, upper], dim)
    return builder.emit(aten.reshape.default, node, list(sizes))


def zigzag_order(builder: ProgramBuilder, node: Node, dim: int, num_ranks: int) -> Node:
    """The reverse of :func:`natural_order`."""
    sizes = local_sizes(node)
    chunk = sizes[dim] // (2 * num_ranks)
    node = builder.emit(aten.reshape.default, node, split_dim(sizes, dim, (2, num_ranks, chunk)))
    lower = builder.emit(aten.select.int, node, dim, 0)
    upper = builder.emit(aten.select.int, node, dim, 1)
    upper = builder.emit(aten.flip.default, upper, [dim])
    node = builder.emit(aten.stack.default, [lower, upper], dim + 1)
    return builder.emit(aten.reshape.default, node, list(sizes))


def _merge_rows_first(
    builder: ProgramBuilder, node: Node, dim: int, cut: Shard, inner: int
) -> Node:
    """:func:`merge_blocks` where the length decides how many padding rows there are.

    They are cut off the outermost dim: only there it does not depend on their number how the
    rest lies in memory, which torch asks for.
    """
    num_ranks, block, sizes = builder.num_ranks, cut.block(builder.num_ranks), local_sizes(node)[1:]
    rest = split_dim(sizes, dim, (cut.outer, inner))
    split = (cut.outer, block, inner)
    node = builder.emit(aten.reshape.default, node, [num_ranks, *split_dim(sizes, dim, split)])
    node = builder.emit(aten.movedim.int, node, dim + 2, 1)
    node = builder.emit(aten.reshape.default, node, [num_ranks * block, *rest])
    node = builder.emit(aten.slice.Tensor, node, 0, 0, cut.atom)
    node = builder.emit(aten.movedim.int, node, 0, dim + 1)
    node = builder.emit(aten.clone.default, node, memory_format=torch.contiguous_format)
    rows = cut.outer * cut.atom * inner
    return builder.emit(aten.reshape.default, node, split_dim(sizes, dim, (rows,)))


def _all_gather(builder: ProgramBuilder, value: Value, source: Shard) -> Node:
    is_bool = value.dtype == torch.bool
    with builder.role("pack"):
        node = value.node
        if is_bool:  # collectives of bool are not supported by every backend
            node = builder.emit(aten.to.dtype, node, torch.uint8)
        node = builder.emit(aten.contiguous.default, node)
        sizes = local_sizes(node)
        node = builder.emit(aten.reshape.default, node, [1, *sizes])
    node = _start_and_wait(builder, "all_gather", source, REPLICATE, node)
    with builder.role("unpack"):
        node = merge_blocks(builder, node, source.dim, source, value.shape[source.dim])
        return builder.emit(aten.to.dtype, node, torch.bool) if is_bool else node


def _all_reduce(builder: ProgramBuilder, value: Value) -> Node:
    return _start_and_wait(builder, "all_reduce", PARTIAL_SUM, REPLICATE, value.node)


def _reduce_scatter(builder: ProgramBuilder, value: Value, target: Shard) -> Node:
    packed = _pack_for(builder, value, target, None)
    node = _start_and_wait(builder, "reduce_scatter", PARTIAL_SUM, target, packed)
    with builder.role("unpack"):
        local = local_shape(value.shape, target, builder.num_ranks)
        return builder.emit(aten.reshape.default, node, list(local))
