"""Reading rows by index from a cut dim: each rank answers for the rows it holds.

Rows that a rank does not hold are zero, so that the answers are partial: their sum is the
result on every rank. This serves a single row (``x[:, 0]``), a few (``x[:, -k:]``), pooling
at given positions (``x[arange, lengths]``) and permutations alike.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from autosp.placement import PARTIAL_SUM, Shard
from autosp.sharding.builder import Value
from autosp.sharding.operation import Operation
from autosp.sharding.rows import cut_of, inner_rows

aten = torch.ops.aten


def local_rows(op: Operation, source: Value, indices: Node) -> tuple[Node, Node]:
    """Where the rows ``indices`` (of the whole cut dim) lie on this rank, and whether they do.

    Rows of others get some valid number.
    """
    cut = cut_of(source)
    size, block, inner = source.shape[cut.dim], cut.block(op.num_ranks), inner_rows(source, cut)
    indices = op.emit(aten.remainder.Scalar, indices, size)
    in_atom = indices
    if cut.outer != 1 or inner != 1:
        row = _quotient(op, indices, inner)
        in_atom = op.emit(aten.remainder.Scalar, row, cut.atom)
    local, inside = _on_rank(op, cut, in_atom)
    if cut.outer != 1:
        outer = _quotient(op, indices, cut.atom * inner)
        local = op.emit(aten.add.Tensor, local, op.emit(aten.mul.Tensor, outer, block))
    if inner != 1:
        rest = op.emit(aten.remainder.Scalar, indices, inner)
        local = op.emit(aten.add.Tensor, op.emit(aten.mul.Tensor, local, inner), rest)
    return local, inside


def _on_rank(op: Operation, cut: Shard, in_atom: Node) -> tuple[Node, Node]:
    """Place of rows of the atom among those this rank holds, and whether it holds them."""
    found: tuple[Node, Node] | None = None
    before = 0
    for first, end in cut.bounds(op.builder.rank, op.num_ranks):
        moved = op.emit(aten.sub.Scalar, in_atom, first)
        local = op.emit(aten.clamp.default, moved, 0, end - first - 1)
        inside = op.emit(aten.eq.Tensor, moved, local)
        if found is not None:
            local = op.emit(aten.add.Scalar, local, before)
            local = op.emit(aten.where.self, inside, local, found[0])
            inside = op.emit(aten.logical_or.default, inside, found[1])
        found = (local, inside)
        before += end - first
    assert found is not None
    return found


def _quotient(op: Operation, node: Node, divisor: int) -> Node:
    return op.emit(aten.div.Tensor_mode, node, divisor, rounding_mode="floor")


def only_where(op: Operation, inside: Node, rows: Node) -> Node:
    """Zero where another rank answers."""
    return op.emit(aten.where.ScalarOther, inside, rows, 0)


def row_range(op: Operation, source: Value, start: int, count: int) -> Value:
    """Rows ``start`` to ``start + count`` of the cut dim, as a partial value."""
    cut = cut_of(source)
    indices = op.emit(
        aten.arange.start, start, start + count, dtype=torch.int64, device=source.local.device
    )
    return rows_at(op, source, indices, cut)


def rows_at(op: Operation, source: Value, indices: Node, cut: Shard) -> Value:
    """The rows of the cut dim that a vector of indices names, as a partial value."""
    local, inside = local_rows(op, source, indices)
    taken = op.emit(aten.index_select.default, source, cut.dim, local)
    shape = [1] * len(source.shape)
    shape[cut.dim] = -1
    rows = only_where(op, op.emit(aten.reshape.default, inside, shape), taken)
    sizes = list(source.shape)
    sizes[cut.dim] = int(indices.meta["val"].shape[0])
    return Value(rows, PARTIAL_SUM, tuple(sizes))
