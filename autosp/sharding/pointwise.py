"""Pointwise operators: found by their tag, aligned with the sharded operand.

Partial inputs pass through operators that are linear in them; anything else sums first.
"""

from __future__ import annotations

from typing import Any

import torch

from autosp.placement import PARTIAL_SUM, REPLICATE, Partial, Shard
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation, RuleTable
from autosp.sizes import same_size

aten = torch.ops.aten

SCALES_FIRST = frozenset(
    {
        aten.mul.Tensor,
        aten.mul.Scalar,
        aten.div.Tensor,
        aten.div.Scalar,
        aten.neg.default,
        aten.alias.default,
        aten.clone.default,
        aten.contiguous.default,
        aten.detach.default,
    }
)
"""Linear in the first argument when the others are replicated."""

ADDS = frozenset({aten.add.Tensor, aten.sub.Tensor})
CASTS = frozenset({aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten._to_copy.default})


def is_pointwise(target: Any) -> bool:
    """Whether the operator acts element by element (with broadcasting) and returns one tensor."""
    return target in RULES or (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.pointwise in target.tags
        and len(target._schema.returns) == 1
    )


def pointwise(op: Operation) -> Value:
    if any(isinstance(v.placement, Partial) for v in op.values()):
        return _with_partial_input(op)
    return _aligned(op)


def _with_partial_input(op: Operation) -> Value:
    values = list(op.values())
    if op.target is aten.mul.Tensor:  # linear in each
        values.sort(key=lambda value: value.placement != PARTIAL_SUM)
    first, rest = values[0], values[1:]
    others_replicated = all(v.placement == REPLICATE for v in rest)
    scales = op.target in SCALES_FIRST or (op.target in CASTS and _widens(op))
    if scales and first.placement == PARTIAL_SUM and others_replicated:
        return op.result(op.same(), PARTIAL_SUM)
    if op.target in ADDS and len(values) == 2 and all(v.placement == PARTIAL_SUM for v in values):
        return op.result(op.same(), PARTIAL_SUM)
    reason = f"{op.target} is not linear in its partial input"
    summed = op.with_values(
        lambda v: op.replicate(v, reason) if isinstance(v.placement, Partial) else v
    )
    if all(v.placement == REPLICATE for v in summed.values()):
        return op.result(summed.same(), REPLICATE)
    return _aligned(summed)


def _widens(op: Operation) -> bool:
    source: Value = next(op.values())
    return op.output.dtype.itemsize >= source.dtype.itemsize and op.output.is_floating_point()


def _aligned(op: Operation) -> Value:
    num_dims = len(op.shape)
    lead, cut, dim = _lead(op)

    def align(value: Value) -> Value:
        own_dim = dim - (num_dims - len(value.shape))
        if own_dim < 0 or not same_size(value.shape[own_dim], op.shape[dim]):
            if isinstance(value.placement, Shard):
                return op.replicate(value, "sharded on a dim that is broadcast here")
            return value
        reason = f"aligned with the sharded operand {lead.node.name}"
        return op.redistribute(value, cut.on_dim(own_dim), reason)

    aligned = op.with_values(align)
    return op.result(aligned.same(), cut.on_dim(dim))


def _lead(op: Operation) -> tuple[Value, Shard, int]:
    """The first sharded operand whose cut dim is not broadcast, and that dim of the result."""
    for value in op.values():
        cut = value.placement
        if isinstance(cut, Shard):
            dim = cut.dim + len(op.shape) - len(value.shape)
            if same_size(value.shape[cut.dim], op.shape[dim]):
                return value, cut, dim
    raise NoRule("broadcast of the sharded dim")


def type_as(op: Operation) -> Value:
    """A cast: of the second operand only the dtype counts, not how it is placed."""
    source: Value = op.args[0]
    if isinstance(source.placement, Partial):
        source = op.replicate(source, "a cast may round: the sum comes first")
    return op.result(op.emit(aten.to.dtype, source, op.output.dtype), source.placement)


RULES: RuleTable = {aten.type_as.default: type_as} | dict.fromkeys(
    (
        *CASTS,
        aten.contiguous.default,
        aten.alias.default,
        aten.detach.default,
        aten.clone.default,
        aten.lift_fresh_copy.default,
        aten.dropout.default,
        aten.gelu.default,
        aten.silu.default,
        aten.where.self,
        aten.where.ScalarOther,
        aten.where.ScalarSelf,
        aten.where.Scalar,
        aten.masked_fill.Scalar,
        aten.masked_fill.Tensor,
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
        aten.fill.Scalar,
        aten.fill.Tensor,
        aten.__and__.Tensor,
        aten.__or__.Tensor,
        aten.__xor__.Tensor,
    ),
    pointwise,
)
"""Pointwise operators that do not carry the tag (composites, and factories like another tensor)."""
