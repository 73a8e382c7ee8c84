"""Matrix products with the sharded dim as a row (or batch) dim: local, weights replicated."""

from __future__ import annotations

import torch

from autosp.placement import REPLICATE, Shard
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation, RuleTable

aten = torch.ops.aten


def linear(op: Operation) -> Value:
    """``x[..., k] @ w[n, k].T + b``: any cut of ``x`` but one of ``k``."""
    source: Value = op.args[0]
    _, *weights = op.values()
    cut = source.placement
    if not isinstance(cut, Shard) or any(w.placement != REPLICATE for w in weights):
        raise NoRule("linear with a partial input or a sharded weight")
    if cut.dim == len(source.shape) - 1:
        raise NoRule("contraction over the sharded dim")
    return op.result(op.same(), cut)


def addmm(op: Operation) -> Value:
    bias, rows, weight = op.args[:3]
    cut = rows.placement
    plain = bias.placement == REPLICATE and weight.placement == REPLICATE and len(bias.shape) == 1
    if not isinstance(cut, Shard) or cut.dim != 0 or not plain:
        raise NoRule("addmm other than rows-sharded with replicated weight and bias")
    return op.result(op.same(), cut)


def matmul(op: Operation) -> Value:
    """Rows of the left operand, columns of the right one, or a batch dim of both."""
    left, right = op.args[:2]
    if isinstance(left.placement, Shard) and right.placement == REPLICATE:
        cut = left.placement
        if len(left.shape) >= 2 and cut.dim == len(left.shape) - 2:
            columns = len(right.shape) >= 2
            return op.result(op.same(), cut.on_dim(len(op.shape) - 1 - columns))
        if cut.dim < len(left.shape) - 2 and len(right.shape) <= 2:
            return op.result(op.same(), cut)
    if isinstance(right.placement, Shard) and left.placement == REPLICATE:
        cut = right.placement
        if len(right.shape) >= 2 and len(left.shape) >= 2 and cut.dim == len(right.shape) - 1:
            return op.result(op.same(), cut.on_dim(len(op.shape) - 1))
    if isinstance(left.placement, Shard) and left.placement == right.placement:
        cut = left.placement
        if len(left.shape) == len(right.shape) > 2 and cut.dim < len(left.shape) - 2:
            return op.result(op.same(), cut)
    raise NoRule("matrix product that contracts over, or mixes, sharded dims")


RULES: RuleTable = {
    aten.linear.default: linear,
    aten.addmm.default: addmm,
    aten.mm.default: matmul,
    aten.bmm.default: matmul,
    aten.matmul.default: matmul,
}
