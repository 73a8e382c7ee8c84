"""Scans along the sequence: each rank scans its rows and adds what the ranks before it hold.

Only one row of totals a rank is exchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from autosp.sharding.builder import Value
from autosp.sharding.formula import RuleOrFormula
from autosp.sharding.operation import Operation, normalise_dim
from autosp.sharding.rows import cut_of, filled_padding, per_rank
from autosp.sharding.shifts import check_plain

aten = torch.ops.aten

NEUTRAL: dict[Any, Any] = {
    aten.cumsum.default: 0,
    aten.cumprod.default: 1,
    aten.logcumsumexp.default: float("-inf"),
}
"""What changes no total."""


def scan(op: Operation) -> Value:
    source: Value = op.args[0]
    cut, dim = cut_of(source), normalise_dim(op.args[1], len(op.shape))
    if dim != cut.dim:
        return op.result(op.same(), cut)
    check_plain(source)
    local = op.same()
    rows = filled_padding(op, source, cut, NEUTRAL[op.target])
    totals = per_rank(op, _total(op, rows, dim), dim, "totals of the ranks before").node
    before = _total(op, _of_lower_ranks(op, totals, dim), dim)
    combine = {
        aten.cumsum.default: aten.add.Tensor,
        aten.cumprod.default: aten.mul.Tensor,
        aten.logcumsumexp.default: aten.logaddexp.default,
    }[op.target]
    op.decide(
        "applied",
        "scan",
        "local scan, then the totals of the ranks before",
        f"{op.target} along the sharded dim",
        rule="scans.scan",
    )
    return op.result(op.emit(combine, local, before), cut)


def _of_lower_ranks(op: Operation, totals: Node, dim: int) -> Node:
    """The totals, those of this rank and of higher ones neutral."""
    device = totals.meta["val"].device
    ranks = op.emit(aten.arange.start, 0, op.num_ranks, dtype=torch.int64, device=device)
    shape = [1] * len(op.shape)
    shape[dim] = -1
    lower = op.emit(aten.lt.Scalar, op.emit(aten.reshape.default, ranks, shape), op.builder.rank)
    return op.emit(aten.where.ScalarOther, lower, totals, NEUTRAL[op.target])


def _total(op: Operation, rows: Node, dim: int) -> Node:
    """The rows' reduction, with the dim kept; in the type of the result."""
    if op.target is aten.cumsum.default:
        return op.emit(aten.sum.dim_IntList, rows, [dim], True, dtype=op.output.dtype)
    if op.target is aten.cumprod.default:
        return op.emit(aten.prod.dim_int, rows, dim, True, dtype=op.output.dtype)
    return op.emit(aten.logsumexp.default, rows, [dim], True)


RULES: dict[Any, RuleOrFormula] = dict.fromkeys(NEUTRAL, scan)
