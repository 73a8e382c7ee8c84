"""Scans along the sequence: each rank scans its rows and adds what the ranks before it hold.

Only one row of totals a rank is exchanged.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from autosp.sharding.builder import Value
from autosp.sharding.formula import RuleOrFormula
from autosp.sharding.operation import NoRule, Operation, normalise_dim
from autosp.sharding.rows import cut_of, filled_padding, per_rank, row_positions
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
    before = _total(op, _of_lower_ranks(op, totals, dim, NEUTRAL[op.target]), dim)
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


def _of_lower_ranks(op: Operation, totals: Node, dim: int, neutral: float) -> Node:
    """The totals, those of this rank and of higher ones ``neutral``."""
    device = totals.meta["val"].device
    ranks = op.emit(aten.arange.start, 0, op.num_ranks, dtype=torch.int64, device=device)
    shape = [1] * totals.meta["val"].dim()
    shape[dim] = -1
    lower = op.emit(aten.lt.Scalar, op.emit(aten.reshape.default, ranks, shape), op.builder.rank)
    return op.emit(aten.where.ScalarOther, lower, totals, neutral)


def _total(op: Operation, rows: Node, dim: int) -> Node:
    """The rows' reduction, with the dim kept; in the type of the result."""
    if op.target is aten.cumsum.default:
        return op.emit(aten.sum.dim_IntList, rows, [dim], True, dtype=op.output.dtype)
    if op.target is aten.cumprod.default:
        return op.emit(aten.prod.dim_int, rows, dim, True, dtype=op.output.dtype)
    return op.emit(aten.logsumexp.default, rows, [dim], True)


def _worst(dtype: torch.dtype, *, largest: bool) -> float | int:
    """What no row loses against when the largest, or the smallest, is looked for."""
    if dtype.is_floating_point:
        return float("-inf") if largest else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if largest else limits.max


def running_extreme(op: Operation) -> list[Value]:
    """cummax and cummin with their positions: of equal values the last counts."""
    source: Value = op.args[0]
    cut, dim = cut_of(source), normalise_dim(op.args[1], len(source.shape))
    if dim != cut.dim:
        return op.results(op.same(), [cut] * 2)
    check_plain(source)
    if source.dtype == torch.bool:
        raise NoRule(f"{op.target} of truths along the sharded dim")
    fill = _worst(source.dtype, largest=op.target is aten.cummax.default)
    rows = filled_padding(op, source, cut, fill)
    values, order = _extremes(op, rows, dim)
    positions = op.emit(aten.index.Tensor, row_positions(op, source, cut), [order])
    before, place = _extreme_of_lower_ranks(op, values, positions, dim, fill)
    compare = aten.ge.Tensor if op.target is aten.cummax.default else aten.le.Tensor
    own = op.emit(compare, values, before)
    if source.dtype.is_floating_point:  # the last of what is not a number, and nothing after it
        known = op.emit(aten.logical_not.default, op.emit(aten.isnan.default, before))
        own = op.emit(aten.logical_and.default, own, known)
        own = op.emit(aten.logical_or.default, own, op.emit(aten.isnan.default, values))
    op.decide(
        "applied", "scan", "local scan, then the extremes of the ranks before",
        f"{op.target} along the sharded dim", rule="scans.running_extreme",
    )  # fmt: skip
    results = ((values, before), (positions, place))
    return [Value(op.emit(aten.where.self, own, *pair), cut, source.shape) for pair in results]


def _extremes(op: Operation, rows: Node, dim: int) -> tuple[Node, Node]:
    both = op.emit(op.target, rows, dim)
    return op.emit(operator.getitem, both, 0), op.emit(operator.getitem, both, 1)


def _extreme_of_lower_ranks(
    op: Operation, values: Node, positions: Node, dim: int, fill: float
) -> tuple[Node, Node]:
    """The extreme of all rows before this rank's, and its position, the dim kept."""

    def last(node: Node) -> Node:
        return op.emit(aten.slice.Tensor, node, dim, -1, 2**63 - 1)

    totals = per_rank(op, last(values), dim, "extremes of the ranks before").node
    places = per_rank(op, last(positions), dim, "extremes of the ranks before").node
    running, order = _extremes(op, _of_lower_ranks(op, totals, dim, fill), dim)
    return last(running), op.emit(aten.gather.default, places, dim, last(order))


RULES: dict[Any, RuleOrFormula] = {
    **dict.fromkeys(NEUTRAL, scan),
    aten.cummax.default: running_extreme,
    aten.cummin.default: running_extreme,
}
