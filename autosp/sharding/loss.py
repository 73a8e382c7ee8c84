"""Losses of classes: normalised by the counts of the whole batch, never by a rank's own.

Over sharded rows each rank sums its rows, the sum is divided by the number (or the weight)
of valid targets in the *global* labels, and the results are partial. Labels are replicated
until here, so a shift inside the model and ignored targets at shard edges are right by
construction; padding rows get the ignore index.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from autosp.placement import PARTIAL_SUM, REPLICATE
from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula, RuleOrFormula
from autosp.sharding.operation import NoRule, Operation
from autosp.sharding.pointwise import pointwise
from autosp.sharding.reductions import named_argument
from autosp.sharding.rows import cut_of

aten = torch.ops.aten

REDUCTION_NONE, REDUCTION_MEAN, REDUCTION_SUM = 0, 1, 2
"""``at::Reduction``: the integers that the operator's schema uses."""

WIDE_ENOUGH_TO_SUM = (torch.float32, torch.float64)
"""A sum of thousands of per-token losses overflows or loses all precision in 16 bits."""


def class_loss(op: Operation) -> Value | Formula:
    """``cross_entropy_loss`` and ``nll_loss``: scores ``[N, C]`` or ``[N, C, ...]``."""
    scores, target = op.args[:2]
    if target.dtype.is_floating_point:
        return _class_probabilities(op)
    if len(scores.shape) != 2:
        return _classes_last(op)
    cut = cut_of(scores)
    if cut.dim != 0:
        raise NoRule("the classes are sharded, not the rows")
    if target.placement != REPLICATE:
        target = op.replicate(target, "padding rows of the labels must become ignored ones")
    ignore_index, reduction = _ignored(op), _reduction(op)
    rows = op.redistribute(
        target,
        cut,
        "labels follow the logits; they were shifted while whole",
        fill=ignore_index,
    )
    with op.builder.role("loss", "local sum over the tokens of this rank"):
        if reduction == REDUCTION_NONE:
            return op.result(_losses(op, scores, rows, REDUCTION_NONE), cut)
        local = _sum(op, scores, rows)
    if reduction == REDUCTION_SUM:
        _explain(op, "local sum, summed over the ranks")
        return op.result(_cast(op, local), PARTIAL_SUM)
    with op.builder.role("loss", "divided by what all ranks' valid targets count"):
        count = _global_count(op, target, ignore_index, local)
        share = op.emit(aten.div.Tensor, local, count)
    _explain(op, "local sum / number of valid targets in the whole sequence, summed over the ranks")
    return op.result(_cast(op, share), PARTIAL_SUM)


def _ignored(op: Operation) -> int:
    return int(named_argument(op, "ignore_index", -100))


def _reduction(op: Operation) -> int:
    return int(named_argument(op, "reduction", REDUCTION_MEAN))


def _losses(op: Operation, scores: Value, rows: Value, reduction: int) -> Node:
    """The operator on this rank's rows, reduced otherwise."""
    weight = named_argument(op, "weight")
    if weight is not None and weight.placement != REPLICATE:
        weight = op.replicate(weight, "every rank has targets of every class")
    more = [named_argument(op, "label_smoothing", 0.0)] if _smooths(op) else []
    return op.emit(op.target, scores, rows, weight, reduction, _ignored(op), *more)


def _smooths(op: Operation) -> bool:
    return op.target is aten.cross_entropy_loss.default


def _sum(op: Operation, scores: Value, rows: Value) -> Node:
    if scores.dtype in WIDE_ENOUGH_TO_SUM:
        return _losses(op, scores, rows, REDUCTION_SUM)
    per_token = _losses(op, scores, rows, REDUCTION_NONE)
    return op.emit(aten.sum.default, per_token, dtype=torch.float32)


def _global_count(op: Operation, target: Value, ignore_index: int, like: Node) -> Node:
    """Valid targets over the whole sequence, or their weight, from the replicated labels."""
    weight, dtype = named_argument(op, "weight"), like.meta["val"].dtype
    valid = op.emit(aten.ne.Scalar, target, ignore_index)
    if weight is None:
        return op.emit(aten.to.dtype, op.emit(aten.sum.default, valid), dtype)
    weight = op.replicate(weight, "every rank has targets of every class")
    known = op.emit(aten.where.ScalarOther, valid, target, 0)
    weights = op.emit(aten.index_select.default, weight, 0, known)
    counted = op.emit(aten.where.ScalarOther, valid, weights, 0.0)
    return op.emit(aten.sum.default, counted, dtype=dtype)


def _classes_last(op: Operation) -> Formula:
    """``[N, C, d1, ...]`` (the classes before the sequence) or ``[C]``, as rows of classes."""
    weight = named_argument(op, "weight")
    reduction = _reduction(op)
    more = [named_argument(op, "label_smoothing", 0.0)] if _smooths(op) else []
    function = aten.cross_entropy_loss.default if _smooths(op) else aten.nll_loss_nd.default

    def whole(scores: Any, target: Any, weight: Any) -> Any:
        classes = scores.shape[0 if scores.dim() == 1 else 1]
        rows = scores if scores.dim() == 1 else scores.movedim(1, -1)
        losses = function(
            rows.reshape(-1, classes),
            target.reshape(-1),
            weight,
            reduction,
            _ignored(op),
            *more,
        )
        return losses.reshape(target.shape) if reduction == REDUCTION_NONE else losses

    return Formula(whole, (*op.args[:2], weight))


def _class_probabilities(op: Operation) -> Formula:
    """Targets that are distributions: every row counts, none is ignored."""
    weight, reduction = named_argument(op, "weight"), _reduction(op)
    smoothing = named_argument(op, "label_smoothing", 0.0)

    def whole(scores: Any, target: Any, weight: Any) -> Any:
        dim = 0 if scores.dim() == 1 else 1
        classes = scores.shape[dim]
        if smoothing:
            target = target * (1 - smoothing) + smoothing / classes
        terms = scores.log_softmax(dim) * target
        if weight is not None:
            terms = terms * weight.reshape([classes, *[1] * (scores.dim() - dim - 1)])
        if reduction == REDUCTION_NONE:
            return -terms.sum(dim)
        wide = torch.promote_types(scores.dtype, torch.float32)
        total = -terms.sum(dtype=wide)
        rows = max(scores.numel() // classes, 1)
        return (total / rows if reduction == REDUCTION_MEAN else total).to(terms.dtype)

    return Formula(whole, (*op.args[:2], weight))


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
        rule="loss.class_loss",
    )


def elementwise_loss(op: Operation) -> Value | Formula:
    """mse, huber, bce ...: a loss per element, then an ordinary mean or sum."""
    if _reduction(op) == REDUCTION_NONE:
        return pointwise(op)
    names = [argument.name for argument in op.target._schema.arguments]
    reduction = _reduction(op)
    position = names.index("reduction")
    kept = {name: named_argument(op, name) for name in names[position + 1 :]}
    given = {name: value for name, value in kept.items() if value is not None}
    inputs = [named_argument(op, name) for name in names[:position]]

    def whole(inputs: Any, given: Any) -> Any:
        losses = op.target(*inputs, REDUCTION_NONE, **given)
        return losses.mean() if reduction == REDUCTION_MEAN else losses.sum()

    return Formula(whole, (tuple(inputs), given))


ELEMENTWISE = (
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.huber_loss.default,
    aten.binary_cross_entropy.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.soft_margin_loss.default,
)

RULES: dict[Any, RuleOrFormula] = {
    aten.cross_entropy_loss.default: class_loss,
    aten.nll_loss_nd.default: class_loss,
    aten.nll_loss.default: class_loss,
    aten.nll_loss2d.default: class_loss,
    **dict.fromkeys(ELEMENTWISE, elementwise_loss),
}
