"""Tensors made like others: constant, so that every rank makes the part it needs."""

from __future__ import annotations

from typing import Any

import torch

from autosp.placement import REPLICATE, Partial, local_shape
from autosp.sharding.builder import Value
from autosp.sharding.formula import RuleOrFormula
from autosp.sharding.operation import Operation
from autosp.sharding.rows import cut_of

aten = torch.ops.aten


def like(op: Operation) -> Value:
    """``empty_like``: of the same shape, so cut alike."""
    source: Value = op.args[0]
    placement = REPLICATE if isinstance(source.placement, Partial) else source.placement
    return op.result(op.same(), placement)


def new(op: Operation) -> Value:
    """``x.new_zeros(size)``: cut like ``x`` where the size at its cut dim is the same."""
    source, _, *more = op.args
    if isinstance(source.placement, Partial):
        return op.result(op.same(), REPLICATE)
    cut, shape = cut_of(source), op.shape
    is_like = len(shape) == len(source.shape) and shape[cut.dim] == source.shape[cut.dim]
    placement = cut if is_like else REPLICATE
    sizes = list(local_shape(shape, placement, op.num_ranks))
    return op.result(op.emit(op.target, source, sizes, *more, **op.kwargs), placement)


RULES: dict[Any, RuleOrFormula] = {
    aten.empty_like.default: like,
    aten.new_zeros.default: new,
    aten.new_ones.default: new,
    aten.new_full.default: new,
    aten.new_empty.default: new,
}
