"""Reductions. Over a cut dim the ranks reduce their own rows and exchange results; padding never counts.

========================  =======================================================
sum, mean                 local sum, partial
max, min, argmax, ...     local result and its position, all-gathered, reduced
prod, norm                local result, all-gathered, reduced
amax, amin, var, std,     formulas of these: differentiable as torch's are
logsumexp, any, all, ...
========================  =======================================================

Over other dims every reduction is local.
"""  # noqa: E501

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.fx import Node

from autosp.placement import PARTIAL_SUM, REPLICATE
from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula
from autosp.sharding.operation import NoRule, Operation, normalise_dim
from autosp.sharding.rows import cut_of, filled_padding, per_rank, row_positions, rows_to_sum

aten = torch.ops.aten

EXCHANGE = "results of the ranks' own rows are compared"

Reducer = Callable[[Operation], "Value | list[Value] | Formula"]


def named_argument(op: Operation, name: str, default: Any = None) -> Any:
    """An argument by the name it has in the operator's schema."""
    names = [argument.name for argument in op.target._schema.arguments]
    return op.argument(names.index(name), name, default) if name in names else default


def reduced_dims(op: Operation) -> list[int]:
    """The dims that are reduced, ascending; all where none is named."""
    source: Value = op.args[0]
    num_dims = len(source.shape)
    dims = named_argument(op, "dim")
    if dims is None or dims == []:
        return list(range(num_dims))
    chosen = [dims] if isinstance(dims, int) else dims
    return sorted({normalise_dim(dim, num_dims) for dim in chosen})


def keeps_dims(op: Operation) -> bool:
    return bool(named_argument(op, "keepdim", False))


def off_the_cut(along: Reducer) -> Reducer:
    """Local where the cut dim stays; ``along`` says what to do where it goes."""

    def rule(op: Operation) -> Value | list[Value] | Formula:
        source: Value = op.args[0]
        cut, dims = cut_of(source), reduced_dims(op)
        if cut.dim in dims:
            return along(op)
        removed = 0 if keeps_dims(op) else sum(dim < cut.dim for dim in dims)
        placement = cut.on_dim(cut.dim - removed)
        if isinstance(op.node.meta["val"], (tuple, list)):
            return op.results(op.same(), [placement] * len(op.outputs))
        return op.result(op.same(), placement)

    return rule


def total(op: Operation) -> Value:
    """sum and mean over the cut dim: partial; padding is left out."""
    source: Value = op.args[0]
    cut, dims, keep = cut_of(source), reduced_dims(op), keeps_dims(op)
    with op.builder.role("loss", "padding rows are left out of the reduction"):
        rows = rows_to_sum(op, source, cut)
    if op.target in (aten.mean.default, aten.mean.dim):
        local = _share_of_mean(op, rows, dims, keep, prod(source.shape[d] for d in dims))
    else:
        local = op.emit(aten.sum.dim_IntList, rows, dims, keep, dtype=op.kwargs.get("dtype"))
    op.decide(
        "applied",
        "reduction",
        "local sum, summed over the ranks where it is used",
        f"reduces over the sharded dim {cut.dim}"
        + ("; padding rows are left out" if cut.is_padded else ""),
        rule="reductions.total",
    )
    return op.result(local, PARTIAL_SUM)


def _share_of_mean(op: Operation, rows: Node, dims: list[int], keep: bool, count: int) -> Node:
    """The rows' sum over the global ``count``, in float32 at least: float16 would overflow."""
    wide = torch.promote_types(op.output.dtype, torch.float32)
    summed = op.emit(aten.sum.dim_IntList, rows, dims, keep, dtype=wide)
    share = op.emit(aten.div.Scalar, summed, count)
    return share if wide == op.output.dtype else op.emit(aten.to.dtype, share, op.output.dtype)


def extremum(op: Operation) -> Value | Formula:
    """amax, amin, max and min without a dim: equal maxima share the gradient."""
    source: Value = op.args[0]
    dims, keep, largest = reduced_dims(op), keeps_dims(op), op.target in LARGEST
    if source.dtype.is_floating_point and not _is_detached(op):
        return Formula(_with_even_gradient, (source, dims, keep, largest))
    reduce = aten.amax.default if largest else aten.amin.default
    rows = filled_padding(op, source, cut_of(source), _least(source.dtype, largest))
    local = op.emit(reduce, rows, dims, True)
    return _reduced_again(op, local, lambda gathered, dim: op.emit(reduce, gathered, [dim], True))


def _with_even_gradient(x: torch.Tensor, dims: list[int], keep: bool, largest: bool) -> Any:
    """The extremum of a constant, and a zero that brings the gradient to all that equal it."""
    constant = x.detach()
    top = constant.amax(dims, keepdim=True) if largest else constant.amin(dims, keepdim=True)
    chosen = constant == top
    count = chosen.sum(dims, keepdim=True, dtype=x.dtype)
    zero = torch.where(chosen & constant.isfinite(), x - constant, 0.0)
    result = top + (zero / count).sum(dims, keepdim=True)
    return result if keep else result.squeeze(dims)


def _is_detached(op: Operation) -> bool:
    source = op.node.args[0]
    return isinstance(source, Node) and source.target is aten.detach.default


def _least(dtype: torch.dtype, largest: bool) -> Any:
    """What no other value is worse than."""
    if dtype == torch.bool:
        return not largest
    if dtype.is_floating_point:
        return float("-inf") if largest else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if largest else limits.max


def _reduced_again(op: Operation, local: Node, reduce: Callable[[Node, int], Node]) -> Value:
    """Results of the ranks (all dims kept) -> their reduction over the cut dim."""
    source: Value = op.args[0]
    dim = cut_of(source).dim
    gathered = per_rank(op, local, dim, EXCHANGE)
    _explain(op)
    return _dropped(op, reduce(gathered.node, dim))


def _dropped(op: Operation, node: Node) -> Value:
    """Without the reduced dims, unless they are kept."""
    if not keeps_dims(op):
        node = op.emit(aten.squeeze.dims, node, reduced_dims(op))
    return op.result(node, REPLICATE)


def _explain(op: Operation) -> None:
    op.decide(
        "applied",
        "reduction",
        "each rank reduces its rows, the results are all-gathered and reduced",
        "reduces over the sharded dim",
        rule="reductions",
    )


def position_of_extremum(op: Operation) -> Value | list[Value] | Formula:
    """max, min, argmax and argmin along a dim: the first of equals, as torch has it."""
    source: Value = op.args[0]
    if named_argument(op, "dim") is None:
        return Formula(_position_in_flattened, (op.target, source, keeps_dims(op)))
    cut, largest = cut_of(source), op.target in LARGEST
    pick = aten.max.dim if largest else aten.min.dim
    rows = filled_padding(op, source, cut, _least(source.dtype, largest))
    best = op.emit(pick, rows, cut.dim, True)
    local, index = (op.emit(operator.getitem, best, i) for i in range(2))
    position = op.emit(aten.take.default, row_positions(op, source, cut), index)
    values = per_rank(op, local, cut.dim, EXCHANGE).node
    positions = per_rank(op, position, cut.dim, EXCHANGE).node
    owner = _first_owner(op, values, positions, cut.dim, largest)
    _explain(op)
    drop = [] if keeps_dims(op) else [cut.dim]
    chosen = [
        op.emit(aten.squeeze.dims, op.emit(aten.gather.default, node, cut.dim, owner), drop)
        for node in (values, positions)
    ]
    if not isinstance(op.node.meta["val"], (tuple, list)):
        return op.result(chosen[1], REPLICATE)
    shape = tuple(op.outputs[0].shape)
    return [Value(node, REPLICATE, shape) for node in chosen]


def _first_owner(op: Operation, values: Node, positions: Node, dim: int, largest: bool) -> Node:
    """Which rank has the extremum: of several, the one where it comes first. NaN wins."""
    reduce = aten.amax.default if largest else aten.amin.default
    top = op.emit(reduce, op.emit(aten.detach.default, values), [dim], True)
    worse = op.emit(aten.lt.Tensor if largest else aten.gt.Tensor, values, top)
    if values.meta["val"].dtype.is_floating_point:
        top_is_nan, is_nan = op.emit(aten.isnan.default, top), op.emit(aten.isnan.default, values)
        number = op.emit(
            aten.logical_and.default, top_is_nan, op.emit(aten.logical_not.default, is_nan)
        )
        worse = op.emit(aten.logical_or.default, worse, number)
    last = torch.iinfo(torch.int64).max
    return op.emit(
        aten.argmin.default, op.emit(aten.masked_fill.Scalar, positions, worse, last), dim, True
    )


def _position_in_flattened(target: Any, x: torch.Tensor, keep: bool) -> Any:
    position = target(x.reshape(-1), 0)
    return position.reshape([1] * x.dim()) if keep else position


def product(op: Operation) -> Value | Formula:
    source: Value = op.args[0]
    dtype = op.kwargs.get("dtype")
    if op.target is aten.prod.default:
        return Formula(lambda x: x.reshape(-1).prod(0, dtype=dtype), (source,))
    rows = filled_padding(op, source, cut_of(source), 1)
    local = op.emit(aten.prod.dim_int, rows, cut_of(source).dim, True, dtype=dtype)
    return _reduced_again(op, local, lambda node, dim: op.emit(aten.prod.dim_int, node, dim, True))


def norm(op: Operation) -> Value | Formula:
    """``linalg_vector_norm``: the norm of the ranks' norms."""
    source: Value = op.args[0]
    order = named_argument(op, "ord", 2)
    dims, dtype = reduced_dims(op), op.kwargs.get("dtype")
    if order in (float("inf"), float("-inf"), 0):
        return Formula(_limit_norm, (source, order, dims, keeps_dims(op), op.output.dtype))
    if order < 0:
        raise NoRule(f"norm of order {order} over the sharded dim")
    rows = filled_padding(op, source, cut_of(source), 0)
    local = op.emit(op.target, rows, order, dims, True, dtype=dtype)
    return _reduced_again(op, local, lambda node, dim: op.emit(op.target, node, order, [dim], True))


def _limit_norm(
    x: torch.Tensor, order: float, dims: list[int], keep: bool, dtype: torch.dtype
) -> Any:
    x = x.to(dtype)
    if order == 0:
        return (x != 0).sum(dims, keepdim=keep).to(dtype)
    size = x.abs()
    return size.amax(dims, keepdim=keep) if order > 0 else size.amin(dims, keepdim=keep)


def old_norm(op: Operation) -> Formula:
    """``aten.norm``, which ``Tensor.norm`` calls."""
    order = named_argument(op, "p", 2)
    function = torch.linalg.vector_norm
    return Formula(
        lambda x: function(
            x,
            2 if order is None else order,
            reduced_dims(op),
            keeps_dims(op),
            dtype=op.output.dtype,
        ),
        (op.args[0],),
    )


def spread(op: Operation) -> Formula:
    """var, std and both with the mean: squared deviations from the global mean."""
    source: Value = op.args[0]
    if source.dtype.is_complex:
        raise NoRule("variance of complex numbers over the sharded dim")
    correction = named_argument(op, "correction")
    if named_argument(op, "unbiased") is False:
        correction = 0
    dims = reduced_dims(op)
    degrees = max(
        prod(source.shape[d] for d in dims) - (1 if correction is None else correction), 0
    )
    name = op.target._schema.name

    def function(x: torch.Tensor) -> Any:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = wide.mean(dims, keepdim=True)
        result = (wide - mean).square().sum(dims, keepdim=True) / degrees
        if "std" in name:
            # The derivative of a root of 0 is infinite: torch's is 0 there.
            result = torch.where(result == 0, 0.0, torch.where(result == 0, 1.0, result).sqrt())
        results = [
            (part if keeps_dims(op) else part.squeeze(dims)).to(x.dtype) for part in (result, mean)
        ]
        return results if "mean" in name else results[0]

    return Formula(function, (source,))


def log_sum_exp(op: Operation) -> Formula:
    dims, keep = reduced_dims(op), keeps_dims(op)

    def function(x: torch.Tensor) -> Any:
        top = x.detach().amax(dims, keepdim=True)
        top = torch.where(top.isfinite(), top, 0.0)
        result = (x - top).exp().sum(dims, keepdim=True).log() + top
        return result if keep else result.squeeze(dims)

    return Formula(function, (op.args[0],))


def counted(op: Operation) -> Formula:
    """any, all and count_nonzero, by counting."""
    dims, keep, name = reduced_dims(op), keeps_dims(op), op.target._schema.name

    def function(x: torch.Tensor) -> Any:
        if name == "aten::count_nonzero":
            return (x != 0).sum(dims)
        if name == "aten::any":
            return (x != 0).sum(dims, keepdim=keep) > 0
        return (x == 0).sum(dims, keepdim=keep) == 0

    return Formula(function, (op.args[0],))


def least_and_largest(op: Operation) -> Formula:
    dims, keep = reduced_dims(op), keeps_dims(op)
    return Formula(
        lambda x: [x.amin(dims, keepdim=keep), x.amax(dims, keepdim=keep)], (op.args[0],)
    )


def total_of_numbers(op: Operation) -> Formula:
    dims, keep, dtype = reduced_dims(op), keeps_dims(op), op.kwargs.get("dtype")
    return Formula(
        lambda x: torch.where(x.isnan(), 0.0, x).sum(dims, keepdim=keep, dtype=dtype),
        (op.args[0],),
    )


LARGEST = frozenset({aten.amax.default, aten.max.default, aten.max.dim, aten.argmax.default})

RULES: dict[Any, Reducer] = {
    target: off_the_cut(along)
    for along, targets in {
        total: (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim),
        extremum: (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default),
        position_of_extremum: (
            aten.max.dim,
            aten.min.dim,
            aten.argmax.default,
            aten.argmin.default,
        ),
        product: (aten.prod.default, aten.prod.dim_int),
        norm: (aten.linalg_vector_norm.default,),
        old_norm: (
            aten.norm.Scalar,
            aten.norm.ScalarOpt_dim,
            aten.norm.ScalarOpt_dtype,
            aten.norm.ScalarOpt_dim_dtype,
        ),
        spread: (
            aten.var.default,
            aten.var.dim,
            aten.var.correction,
            aten.std.default,
            aten.std.dim,
            aten.std.correction,
            aten.var_mean.default,
            aten.var_mean.dim,
            aten.var_mean.correction,
            aten.std_mean.default,
            aten.std_mean.dim,
            aten.std_mean.correction,
        ),
        log_sum_exp: (aten.logsumexp.default,),
        counted: (
            aten.any.default,
            aten.any.dim,
            aten.any.dims,
            aten.all.default,
            aten.all.dim,
            aten.all.dims,
            aten.count_nonzero.default,
            aten.count_nonzero.dim_IntList,
        ),
        least_and_largest: (aten.aminmax.default,),
        total_of_numbers: (aten.nansum.default,),
    }.items()
    for target in targets
}
