"""Repetition, triangles, channels: what depends on positions in dims that may be cut."""

from __future__ import annotations

from typing import Any

import torch

from autosp.placement import Shard
from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula, RuleOrFormula
from autosp.sharding.operation import NoRule, Operation
from autosp.sharding.rows import cut_of
from autosp.sharding.shifts import check_plain

aten = torch.ops.aten


def repeat(op: Operation) -> Value | Formula:
    """``x.repeat(...)``: local but for the cut dim, whose copies follow each other."""
    source, repeats = op.args[:2]
    cut, new = cut_of(source), len(repeats) - len(source.shape)
    times = repeats[new + cut.dim]
    if times == 1:
        return op.result(op.same(), cut.on_dim(cut.dim + new))
    others = [1 if dim == new + cut.dim else count for dim, count in enumerate(repeats)]
    return Formula(lambda x: torch.cat([x.repeat(others)] * times, new + cut.dim), (source,))


def triangle(op: Operation) -> Value:
    """tril and triu: in a cut dim the diagonal begins at the rank's first row."""
    source: Value = op.args[0]
    cut, num_dims = cut_of(source), len(source.shape)
    diagonal = op.argument(1, "diagonal", 0)
    if cut.dim >= num_dims - 2:
        check_plain(source)
        first = op.builder.rank * cut.block(op.num_ranks)
        diagonal += first if cut.dim == num_dims - 2 else -first
    return op.result(op.emit(op.target, source, diagonal), cut)


def gated_linear_unit(op: Operation) -> Value:
    source: Value = op.args[0]
    cut = cut_of(source)
    if op.argument(1, "dim", -1) % len(source.shape) == cut.dim:
        raise NoRule("halves of the sharded dim")
    return op.result(op.same(), cut)


def leaky_by_channel(op: Operation) -> Formula:
    """``prelu``: one slope, or one a channel (dim 1)."""
    source, slopes = op.args

    def function(x: Any, slopes: Any) -> Any:
        if slopes.numel() != 1:
            slopes = slopes.reshape([-1, *[1] * (x.dim() - 2)])
        return torch.where(x > 0, x, slopes * x)

    return Formula(function, (source, slopes))


def diagonal(op: Operation) -> Value:
    """The diagonal of two dims that are not cut."""
    source: Value = op.args[0]
    cut, num_dims = cut_of(source), len(source.shape)
    dims = {op.argument(2, "dim1", 0) % num_dims, op.argument(3, "dim2", 1) % num_dims}
    if cut.dim in dims:
        raise NoRule("the diagonal of a sharded dim")
    removed = sum(dim < cut.dim for dim in dims)
    moved: Shard = cut.on_dim(cut.dim - removed)
    return op.result(op.same(), moved)


RULES: dict[Any, RuleOrFormula] = {
    aten.repeat.default: repeat,
    aten.tril.default: triangle,
    aten.triu.default: triangle,
    aten.prelu.default: leaky_by_channel,
    aten.glu.default: gated_linear_unit,
    aten.diagonal.default: diagonal,
}
