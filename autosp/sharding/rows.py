"""The rows of a cut dim that a rank holds: which are padding, and where they belong.

A rank holds ``outer * block * inner`` rows of the dim; see :mod:`autosp.placement`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from autosp.placement import Shard
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation
from autosp.sizes import is_symbolic, same_size

aten = torch.ops.aten


def cut_of(value: Value) -> Shard:
    """The cut of a sharded value.

    Raises:
        NoRule: it is not sharded.
    """
    if not isinstance(value.placement, Shard):
        raise NoRule(f"no rule for an input that is placed {value.placement}")
    return value.placement


def inner_rows(value: Value, cut: Shard) -> int:
    return value.shape[cut.dim] // (cut.outer * cut.atom)


def rows_to_sum(op: Operation, value: Value, cut: Shard) -> Node:
    """The rows of this rank without padding, with the number of dims unchanged.

    There may be none. Where the length decides how many there are, padding rows are zero.
    """
    if not cut.is_padded:
        return value.node
    if is_symbolic(cut.pad):
        return filled_padding(op, value, cut, False if value.dtype == torch.bool else 0)
    block = cut.block(op.num_ranks)
    kept = cut.num_valid(op.builder.rank, op.num_ranks)
    inner, dim = inner_rows(value, cut), cut.dim
    if cut.outer == 1:
        return op.emit(aten.slice.Tensor, value, dim, 0, kept * inner)
    sizes = list(value.local.shape)
    split = [*sizes[:dim], cut.outer, block * inner, *sizes[dim + 1 :]]
    node = op.emit(aten.reshape.default, value, split)
    node = op.emit(aten.slice.Tensor, node, dim + 1, 0, kept * inner)
    return op.emit(
        aten.reshape.default, node, [*sizes[:dim], cut.outer * kept * inner, *sizes[dim + 1 :]]
    )


def row_positions(op: Operation, value: Value, cut: Shard) -> Node:
    """Where each local row lies in the whole dim; int64, ``[local rows]``.

    Positions of padding rows mean nothing.
    """
    inner = inner_rows(value, cut)
    in_atom = _positions_in_atom(op, value, cut)
    if same_size(cut.outer, 1) and same_size(inner, 1):
        return in_atom

    def along(node: Node, position: int, step: int) -> Node:
        shape = [1, 1, 1]
        shape[position] = -1
        return op.emit(aten.mul.Tensor, op.emit(aten.reshape.default, node, shape), step)

    outer = along(_range(op, value, 0, cut.outer), 0, cut.atom * inner)
    atom = along(in_atom, 1, inner)
    rest = along(_range(op, value, 0, inner), 2, 1)
    total = op.emit(aten.add.Tensor, op.emit(aten.add.Tensor, outer, atom), rest)
    return op.emit(aten.reshape.default, total, [-1])


def row_mask(op: Operation, value: Value, cut: Shard) -> Node:
    """True for the local rows that are not padding; broadcasts against the value."""
    inner, block = inner_rows(value, cut), cut.block(op.num_ranks)
    node = op.emit(aten.lt.Scalar, _positions_in_atom(op, value, cut), cut.atom)
    if not (same_size(cut.outer, 1) and same_size(inner, 1)):
        node = op.emit(aten.reshape.default, node, [1, block, 1])
        node = op.emit(aten.expand.default, node, [cut.outer, block, inner])
    return op.emit(aten.reshape.default, node, _on_dim(value, cut.dim))


def filled_padding(op: Operation, value: Value, cut: Shard, fill: Any) -> Node:
    """The local rows, with ``fill`` in place of padding."""
    if not cut.is_padded:
        return value.node
    return op.emit(aten.where.ScalarOther, row_mask(op, value, cut), value, fill)


def per_rank(op: Operation, local: Node, dim: int, reason: str) -> Value:
    """``[..., k, ...]`` of every rank side by side: ``[..., P * k, ...]`` on all ranks.

    For what is small: results of a reduction of the rank's own rows.
    """
    shape = list(local.meta["val"].shape)
    shape[dim] *= op.num_ranks
    cut = Shard(dim, shape[dim])
    return op.replicate(Value(local, cut, tuple(shape)), reason)


def _positions_in_atom(op: Operation, value: Value, cut: Shard) -> Node:
    pieces = [
        _range(op, value, first, end) for first, end in cut.bounds(op.builder.rank, op.num_ranks)
    ]
    return pieces[0] if len(pieces) == 1 else op.emit(aten.cat.default, pieces)


def _range(op: Operation, value: Value, start: int, end: int) -> Node:
    return op.emit(aten.arange.start, start, end, dtype=torch.int64, device=value.local.device)


def _on_dim(value: Value, dim: int) -> list[int]:
    shape = [1] * len(value.shape)
    shape[dim] = -1
    return shape
