"""Operators that work along some dims and leave the others alone: norms, softmax, reductions."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.fx import Node

from autosp.placement import PARTIAL_SUM, Shard
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation, RuleTable, normalise_dim

aten = torch.ops.aten


def normalisation(op: Operation) -> Value:
    """layer_norm and rms_norm over the last dims."""
    source: Value = op.args[0]
    cut = _cut(source)
    if cut.dim >= len(source.shape) - len(op.args[1]):
        raise NoRule("normalisation over the sharded dim")
    return op.result(op.same(), cut)


def along_one_dim(op: Operation) -> Value:
    """softmax, cumsum ... along a dim that is not sharded."""
    source: Value = op.args[0]
    cut = _cut(source)
    if normalise_dim(op.argument(1, "dim"), len(source.shape)) == cut.dim:
        raise NoRule(f"{op.target} along the sharded dim")
    return op.result(op.same(), cut)


def reduction(op: Operation) -> Value:
    """sum and mean; over the sharded dim the result is partial and padding is left out."""
    source: Value = op.args[0]
    cut = _cut(source)
    dims, keep = _reduced_dims(op, source)
    if cut.dim not in dims:
        removed = 0 if keep else sum(dim < cut.dim for dim in dims)
        return op.result(op.same(), cut.on_dim(cut.dim - removed))
    is_mean = op.target in (aten.mean.default, aten.mean.dim)
    with op.builder.role("loss", "padding rows are left out of the reduction"):
        rows = _valid_rows(op, source, cut)
    dtype = op.kwargs.get("dtype")
    if is_mean:
        local = _share_of_mean(op, rows, dims, keep, prod(source.shape[d] for d in dims))
    else:
        local = op.emit(aten.sum.dim_IntList, rows, sorted(dims), keep, dtype=dtype)
    op.decide(
        "applied",
        "reduction",
        "local sum, summed over the ranks where it is used",
        f"reduces over the sharded dim {cut.dim}"
        + (f"; {cut.pad} padding rows are left out" if cut.pad else ""),
        rule="along_dim.reduction",
    )
    return op.result(local, PARTIAL_SUM)


def along_given_dims(op: Operation) -> Value | list[Value]:
    """Reductions and orderings (norm, var, amax, sort ...) along dims that are not sharded."""
    source: Value = op.args[0]
    cut = _cut(source)
    index, default = DIM_ARGUMENTS[op.target]
    dims = op.argument(index, "dim", default)
    if dims is None or dims == []:
        raise NoRule(f"{op.target} over all dims")
    num_dims = len(source.shape)
    chosen = {normalise_dim(d, num_dims) for d in ([dims] if isinstance(dims, int) else dims)}
    if cut.dim in chosen:
        raise NoRule(f"{op.target} along the sharded dim")
    several = isinstance(op.node.meta["val"], (tuple, list))
    keeps = len(op.outputs[0].shape if several else op.shape) == num_dims
    placement = cut if keeps else cut.on_dim(cut.dim - sum(d < cut.dim for d in chosen))
    if several:
        return op.results(op.same(), [placement] * len(op.outputs))
    return op.result(op.same(), placement)


def _cut(source: Value) -> Shard:
    if not isinstance(source.placement, Shard):
        raise NoRule("no rule for a partial input")
    return source.placement


def _reduced_dims(op: Operation, source: Value) -> tuple[set[int], bool]:
    num_dims = len(source.shape)
    if op.target in (aten.sum.default, aten.mean.default):
        return set(range(num_dims)), False
    dims = op.argument(1, "dim")
    chosen = list(range(num_dims)) if dims is None else dims
    chosen = [chosen] if isinstance(chosen, int) else list(chosen) or list(range(num_dims))
    keep = bool(op.argument(2, "keepdim", False))
    return {normalise_dim(d, num_dims) for d in chosen}, keep


def _share_of_mean(op: Operation, rows: Node, dims: set[int], keep: bool, count: int) -> Node:
    """The rows' sum over the global ``count``, in float32 at least: float16 would overflow."""
    wide = torch.promote_types(op.output.dtype, torch.float32)
    total = op.emit(aten.sum.dim_IntList, rows, sorted(dims), keep, dtype=wide)
    share = op.emit(aten.div.Scalar, total, count)
    return share if wide == op.output.dtype else op.emit(aten.to.dtype, share, op.output.dtype)


def _valid_rows(op: Operation, source: Value, cut: Shard) -> Node:
    """The rows of this rank that are not padding, with the number of dims unchanged."""
    if not cut.pad:
        return source.node
    if cut.outer != 1 or source.shape[cut.dim] != cut.atom:
        raise NoRule("reduction over a strided cut with padding")
    block = cut.block(op.num_ranks)
    valid = min(max(cut.atom - op.builder.rank * block, 0), block)
    return op.emit(aten.slice.Tensor, source, cut.dim, 0, valid)


DIM_ARGUMENTS: dict[Any, tuple[int, int | None]] = {
    **dict.fromkeys(
        (
            aten.amax.default,
            aten.amin.default,
            aten.argmax.default,
            aten.argmin.default,
            aten.logsumexp.default,
            aten.var.dim,
            aten.var.correction,
            aten.std.dim,
            aten.std.correction,
            aten.var_mean.correction,
            aten.var_mean.dim,
            aten.any.dim,
            aten.all.dim,
            aten.prod.dim_int,
            aten.max.dim,
            aten.min.dim,
            aten.flip.default,
        ),
        (1, None),
    ),
    **dict.fromkeys((aten.sort.default, aten.argsort.default), (1, -1)),
    **dict.fromkeys((aten.topk.default,), (2, -1)),
    **dict.fromkeys((aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim), (2, None)),
}
"""Operator -> position and default of its ``dim`` argument."""

RULES: RuleTable = {
    **dict.fromkeys(DIM_ARGUMENTS, along_given_dims),
    aten.layer_norm.default: normalisation,
    aten.rms_norm.default: normalisation,
    aten.softmax.int: along_one_dim,
    aten._softmax.default: along_one_dim,
    aten.log_softmax.int: along_one_dim,
    aten._log_softmax.default: along_one_dim,
    aten.cumsum.default: along_one_dim,
    aten.sum.default: reduction,
    aten.sum.dim_IntList: reduction,
    aten.mean.default: reduction,
    aten.mean.dim: reduction,
}
