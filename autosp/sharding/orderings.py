"""Orderings, and other operators that work along one dim and leave the others alone.

Along the cut dim they gather: which of equal values comes first is then decided as on one rank.
"""

from __future__ import annotations

from typing import Any

import torch

from autosp.placement import Shard
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation, RuleTable, normalise_dim
from autosp.sizes import same_shape

aten = torch.ops.aten


def along_one_dim(op: Operation) -> Value | list[Value]:
    """sort, cross ... along dims that are not cut."""
    source, cut = op.sharded()
    index, default = DIM_ARGUMENTS[op.target]
    dims = op.argument(index, "dim", default)
    chosen = [dims] if isinstance(dims, int) else dims
    if cut.dim in {normalise_dim(dim, len(source.shape)) for dim in chosen}:
        raise NoRule(f"{op.target} along the sharded dim")
    op = _aligned(op, source, cut)
    if isinstance(op.node.meta["val"], (tuple, list)):
        return op.results(op.same(), [cut] * len(op.outputs))
    return op.result(op.same(), cut)


def _aligned(op: Operation, source: Value, cut: Shard) -> Operation:
    """With all tensors cut like the first sharded one.

    Raises:
        NoRule: one of them is broadcast.
    """

    def align(value: Value) -> Value:
        if not same_shape(value.shape, source.shape):
            raise NoRule(f"{op.target} of tensors of different shapes")
        return op.redistribute(value, cut, "aligned with a sharded operand")

    return op.with_values(align)


DIM_ARGUMENTS: dict[Any, tuple[int, int | None]] = {
    aten.sort.default: (1, -1),
    aten.sort.stable: (2, -1),
    aten.topk.default: (2, -1),
    aten.argsort.default: (1, -1),
    aten.argsort.stable: (2, -1),
    aten.kthvalue.default: (2, -1),
    aten.median.dim: (1, None),
    aten.nanmedian.dim: (1, None),
    aten.mode.default: (1, -1),
    aten.linalg_cross.default: (2, -1),
    aten.fft_fft.default: (2, -1),
    aten.fft_ifft.default: (2, -1),
    aten.fft_rfft.default: (2, -1),
    aten.fft_irfft.default: (2, -1),
}
"""Operator -> position and default of its ``dim`` argument."""

RULES: RuleTable = dict.fromkeys(DIM_ARGUMENTS, along_one_dim)
