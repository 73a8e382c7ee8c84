"""Losses: normalised by the counts of the whole batch of the SP group, never by a rank's own.

Cross entropy over sharded rows: each rank sums its rows, the sum is divided by the number
of valid targets in the *global* labels, and the results are partial. Labels are replicated
until here, so a shift inside the model and ignored targets at shard edges are right by
construction; padding rows get the ignore index.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from autosp.placement import PARTIAL_SUM, REPLICATE, Shard
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation, RuleTable

aten = torch.ops.aten

REDUCTION_NONE, REDUCTION_MEAN, REDUCTION_SUM = 0, 1, 2
"""``at::Reduction``: the integers that the operator's schema uses."""

WIDE_ENOUGH_TO_SUM = (torch.float32, torch.float64)
"""A sum of thousands of per-token losses overflows or loses all precision in 16 bits."""


def cross_entropy(op: Operation) -> Value:
    """``cross_entropy_loss(logits[N, C], target[N])`` with ``N`` sharded."""
    logits, target = op.args[:2]
    weight = op.argument(2, "weight")
    reduction = op.argument(3, "reduction", REDUCTION_MEAN)
    ignore_index = op.argument(4, "ignore_index", -100)
    smoothing = op.argument(5, "label_smoothing", 0.0)
    cut = logits.placement
    if not isinstance(cut, Shard) or cut.dim != 0 or len(logits.shape) != 2:
        raise NoRule("cross entropy whose rows are not the sharded dim")
    if target.node.meta["val"].is_floating_point():
        raise NoRule("cross entropy with class probabilities")
    if weight is not None and reduction == REDUCTION_MEAN:
        raise NoRule("weighted mean cross entropy")

    if target.placement != REPLICATE:
        target = op.replicate(target, "padding rows of the labels must become ignored ones")
    rows = op.redistribute(
        target,
        Shard(0, cut.atom, cut.outer, cut.pad, cut.order, cut.label),
        "labels follow the logits; they were shifted while whole",
        fill=ignore_index,
    )
    with op.builder.role("loss", "local sum over the tokens of this rank"):
        if reduction == REDUCTION_NONE:
            local = op.emit(
                op.target, logits, rows, weight, REDUCTION_NONE, ignore_index, smoothing
            )
            return op.result(local, cut)
        local = _sum(op, logits, rows, weight, ignore_index, smoothing)
    if reduction == REDUCTION_SUM:
        _explain(op, "local sum, summed over the ranks")
        return op.result(_cast(op, local), PARTIAL_SUM)
    with op.builder.role("loss", "divided by the number of valid targets of all ranks"):
        count = _global_count(op, target, ignore_index, local)
        share = op.emit(aten.div.Tensor, local, count)
    _explain(op, "local sum / number of valid targets in the whole sequence, summed over the ranks")
    return op.result(_cast(op, share), PARTIAL_SUM)


def _sum(
    op: Operation, logits: Value, rows: Value, weight: Value | None, ignore: int, smoothing: float
) -> Node:
    if logits.dtype in WIDE_ENOUGH_TO_SUM:
        return op.emit(op.target, logits, rows, weight, REDUCTION_SUM, ignore, smoothing)
    per_token = op.emit(op.target, logits, rows, weight, REDUCTION_NONE, ignore, smoothing)
    return op.emit(aten.sum.default, per_token, dtype=torch.float32)


def _global_count(op: Operation, target: Value, ignore_index: int, like: Node) -> Node:
    """Valid targets over the whole sequence, from the replicated labels."""
    valid = op.emit(aten.ne.Scalar, target, ignore_index)
    count = op.emit(aten.sum.default, valid)
    return op.emit(aten.to.dtype, count, like.meta["val"].dtype)


def _cast(op: Operation, node: Node) -> Node:
    if node.meta["val"].dtype == op.output.dtype:
        return node
    return op.emit(aten.to.dtype, node, op.output.dtype)


def _explain(op: Operation, chosen: str) -> None:
    op.decide(
        "applied",
        "loss",
        chosen,
        "the mean over all tokens is not the mean of the ranks' means when the numbers of "
        "valid targets differ",
        rule="loss.cross_entropy",
    )


RULES: RuleTable = {aten.cross_entropy_loss.default: cross_entropy}
