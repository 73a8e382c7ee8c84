"""The rows that padding appends: constants, or copies of a valid row."""

from __future__ import annotations

import torch
from torch.fx import Node

from autosp.placement import Shard
from autosp.sharding.builder import ProgramBuilder
from autosp.sharding.operation import CannotRedistribute
from autosp.sizes import is_symbolic, most_rows

aten = torch.ops.aten

NUM_VALID_ROWS_KEY = "autosp_num_valid_rows"
"""Key in ``node.meta`` of the row that padding repeats: how many rows there were to choose from."""


def split_dim(shape: tuple[int, ...], dim: int, sizes: tuple[int, ...]) -> list[int]:
    """``shape`` with ``sizes`` in place of a dim."""
    return [*shape[:dim], *sizes, *shape[dim + 1 :]]


def local_sizes(node: Node) -> tuple[int, ...]:
    """What one rank holds of a node's value."""
    return tuple(node.meta["val"].shape)


def pad_rows(builder: ProgramBuilder, node: Node, dim: int, cut: Shard, fill: int | None) -> Node:
    """Append the padding rows of ``cut`` on ``dim``: a constant, or a repeated valid row.

    Where the length decides how many there are, append more than there can be: no tensor then
    has a size that is zero at some lengths, and the blocks never take all rows.
    """
    if not cut.is_padded:
        return node
    sizes, pad = local_sizes(node), cut.pad
    if is_symbolic(pad):
        try:
            pad = most_rows(pad, builder.num_ranks) + 1
        except ValueError as why:
            raise CannotRedistribute(f"the padding of {cut}: {why}") from None
    rows = split_dim(sizes, dim, (pad,))
    if fill is not None and not is_symbolic(cut.pad):
        widths = [0, 0] * (len(sizes) - 1 - dim) + [0, pad]
        return builder.emit(aten.constant_pad_nd.default, node, widths, fill)
    if fill is not None:
        appended = builder.emit(aten.new_full.default, node, rows, fill)
    else:
        valid_row = _valid_row(builder, node, dim)
        appended = builder.emit(aten.expand.default, valid_row, rows)
    return builder.emit(aten.cat.default, [node, appended], dim)


def _valid_row(builder: ProgramBuilder, node: Node, dim: int) -> Node:
    """The row that padding rows repeat; :func:`fill_padding` may choose another."""
    num_rows = local_sizes(node)[dim]
    if is_symbolic(num_rows):
        row = num_rows - 1 if builder.padding_fill == "last" else 0
        valid_row = builder.emit(aten.slice.Tensor, node, dim, row, row + 1)
    else:
        valid_row = builder.emit(aten.slice.Tensor, node, dim, 0, 1)
    valid_row.meta[NUM_VALID_ROWS_KEY] = num_rows
    if not is_symbolic(num_rows):
        fill_padding(valid_row, builder.padding_fill)
    return valid_row


def fill_padding(valid_row: Node, fill: str) -> None:
    """Choose the row that padding rows repeat: the ``last`` or the ``first`` valid one."""
    node, dim = valid_row.args[:2]
    row = valid_row.meta[NUM_VALID_ROWS_KEY] - 1 if fill == "last" else 0
    valid_row.args = (node, dim, row, row + 1)
