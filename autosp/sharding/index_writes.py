"""Writes by index: each rank writes the rows that it holds.

Along the cut dim, what concerns rows of other ranks goes to a scratch row behind the rank's
own, which is dropped. Sums into a tensor that every rank holds stay sums: each rank adds its
own rows, and the results are partial.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from autosp.graph import is_operator
from autosp.placement import PARTIAL_SUM, REPLICATE, Shard
from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula, RuleOrFormula
from autosp.sharding.indexing import WHOLE_INDICES, cut_off
from autosp.sharding.lookups import local_rows
from autosp.sharding.operation import NoRule, Operation, normalise_dim
from autosp.sharding.rows import filled_padding, row_mask

aten = torch.ops.aten

WHOLE_VALUES = "written to rows of any rank"

ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
SUMS = ("sum", "add")
"""``reduce`` arguments whose result is a sum."""


def index_put(op: Operation) -> Value | Formula:
    """``x[i, :, j] = value`` and, accumulating, ``x[i, :, j] += value``."""
    target, indices, value = op.args[:3]
    known = [item for item in indices if item is not None]
    if any(item.dtype in (torch.bool, torch.uint8) for item in known):
        return _put_by_mask(op)
    if not isinstance(target.placement, Shard):
        raise NoRule("assignment to rows of a whole tensor by sharded indices or values")
    cut, accumulates = target.placement, bool(op.argument(3, "accumulate", False))
    places = [item and op.replicate(item, WHOLE_INDICES) for item in indices]
    if cut.dim >= len(indices) or indices[cut.dim] is None:
        value = _follow_cut(op, value, _cut_of_indexed(target, indices, cut))
        return op.result(op.emit(op.target, target, places, value, accumulates), cut)
    value = op.replicate(value, WHOLE_VALUES)

    def write(rows: Node, index: Node) -> Node:
        own = [*places]
        own[cut.dim] = index
        return op.emit(op.target, rows, own, value, accumulates)

    index = places[cut.dim].node
    return op.result(_written(op, target, cut, index, write, overwrites=not accumulates), cut)


def _cut_of_indexed(target: Value, indices: list[Value | None], cut: Shard) -> tuple[Shard, int]:
    """Where the cut dim, which is not indexed, lies in ``target[indices]``; its dims."""
    dims = [dim for dim, item in enumerate(indices) if item is not None]
    width = max(len(item.shape) for item in indices if item is not None)
    together = dims == list(range(dims[0], dims[-1] + 1))
    before = width if not together or dims[0] < cut.dim else 0
    moved = cut.dim - sum(dim < cut.dim for dim in dims) + before
    return cut.on_dim(moved), len(target.shape) - len(dims) + width


def _follow_cut(op: Operation, value: Value, placed: tuple[Shard, int]) -> Value:
    """The part of a value, which may be broadcast, that a rank writes."""
    cut, num_dims = placed
    own = cut.dim - (num_dims - len(value.shape))
    if own < 0 or value.shape[own] == 1:
        return op.replicate(value, "the same for every row")
    return op.redistribute(value, cut.on_dim(own), "written to a sharded tensor")


def _put_by_mask(op: Operation) -> Formula:
    """``x[:, mask] = value``: a choice per element; values that are many follow in order."""
    target, indices, value = op.args[:3]
    if sum(item is not None for item in indices) != 1:
        raise NoRule("assignment by a mask and an index at once")
    position = next(dim for dim, item in enumerate(indices) if item is not None)
    accumulates = bool(op.argument(3, "accumulate", False))
    behind_mask = len(target.shape) - position - len(indices[position].shape)
    if len(value.shape) <= behind_mask or value.shape[-1 - behind_mask] == 1:
        value = op.replicate(value, "the same for every row")

    def function(x: Any, mask: Any, value: Any) -> Any:
        mask = mask.to(torch.bool)
        behind = x.dim() - position - mask.dim()
        num_dims = position + 1 + behind
        value = value.reshape([*[1] * (num_dims - value.dim()), *value.shape])
        if value.shape[position] != 1:
            order = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(
                0, value.shape[position] - 1
            )
            value = value.index_select(position, order)
            middle = list(mask.shape)
        else:
            middle = [1] * mask.dim()
        value = value.reshape([*value.shape[:position], *middle, *value.shape[position + 1 :]])
        chosen = mask.reshape([*[1] * position, *mask.shape, *[1] * behind])
        return torch.where(chosen, x + value if accumulates else value, x)

    return Formula(function, (target, indices[position], value))


def index_fill(op: Operation) -> Value | Formula:
    """index_fill and index_copy: an assignment to rows."""
    target, dim, index, value = op.args[:4]
    dim = normalise_dim(dim, len(target.shape))
    cut = target.placement
    if isinstance(cut, Shard) and cut.dim != dim:
        index = op.replicate(index, WHOLE_INDICES)
        if op.target is aten.index_copy.default:
            value = op.redistribute(value, cut, "written to a sharded tensor")
        return op.result(op.emit(op.target, target, dim, index, value), cut)

    def function(x: Any, index: Any, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            value = x.new_full([], value)
        return aten.index_put.default(x, [*[None] * dim, index.reshape(-1)], value)

    return Formula(function, (target, index, value))


def index_add(op: Operation) -> Value | Formula:
    """Rows of ``source`` are added to those of ``target`` that ``index`` names."""
    target, dim, index, source = op.args[:4]
    alpha, dim = op.argument(4, "alpha", 1), normalise_dim(dim, len(target.shape))
    cut = cut_off(dim, target, source)
    if cut is not None:
        reason = "rows of a sharded tensor are added to another"
        target, source = (op.redistribute(v, cut, reason) for v in (target, source))
        index = op.replicate(index, WHOLE_INDICES)
        return op.result(op.emit(op.target, target, dim, index, source, alpha=alpha), cut)
    if target.placement == REPLICATE:
        own = _cut_along(dim, source) or _cut_along(0, index)
        if own is None or len(source.shape) != len(target.shape):
            raise NoRule("index_add of partial rows")
        source = op.redistribute(source, own.on_dim(dim), "each rank adds its own rows")
        index = op.redistribute(index, own.on_dim(0), "each rank adds its own rows")
        rows = filled_padding(op, source, own.on_dim(dim), 0)
        return _contributed(
            op, target, lambda zeros: op.emit(op.target, zeros, dim, index, rows, alpha=alpha)
        )

    def function(x: Any, index: Any, source: Any) -> Any:
        places = [*[None] * dim, index.reshape(-1)]
        rows = source if alpha == 1 else source * alpha
        return aten.index_put.default(x, places, rows, True)

    return Formula(function, (target, index, source))


def scatter(op: Operation) -> Value:
    """scatter, scatter_add ...: an index an element."""
    target, dim, index, source, *more = op.args
    dim = normalise_dim(dim, len(target.shape))
    values = [v for v in (target, index, source) if isinstance(v, Value)]
    cut = cut_off(dim, *values)
    if cut is not None:
        return _scatter_elsewhere(op, dim, cut)
    if isinstance(target.placement, Shard):
        return _scatter_along_cut(op, dim, target.placement)
    if target.placement != REPLICATE or not _is_sum(op) or not isinstance(source, Value):
        raise NoRule(f"{op.target} of sharded rows to a tensor that is whole")
    own = _cut_along(dim, index) or _cut_along(dim, source)
    if own is None or source.shape[dim] != index.shape[dim]:
        raise NoRule(f"{op.target} of partial rows, or of a part of them")
    index, source = (
        op.redistribute(v, own, "each rank adds its own rows") for v in (index, source)
    )
    rows = filled_padding(op, source, own, 0)
    return _contributed(
        op, target, lambda zeros: op.emit(op.target, zeros, dim, index, rows, *more, **op.kwargs)
    )


def _scatter_elsewhere(op: Operation, dim: int, cut: Shard) -> Value:
    """Along a dim that is not cut: all tensors are cut alike."""
    target, _, index, source, *more = op.args
    values = [v for v in (target, index, source) if isinstance(v, Value)]
    if len({v.shape[cut.dim] for v in values}) != 1:
        raise NoRule(f"{op.target} of a part of the sharded dim")

    def aligned(value: Any) -> Any:
        if not isinstance(value, Value):
            return value
        return op.redistribute(value, cut, "an index and a value an element")

    node = op.emit(
        op.target, aligned(target), dim, aligned(index), aligned(source), *more, **op.kwargs
    )
    return op.result(node, cut)


def _scatter_along_cut(op: Operation, dim: int, cut: Shard) -> Value:
    target, _, index, source, *more = op.args
    index = op.replicate(index, WHOLE_INDICES)
    if isinstance(source, Value):
        source = op.replicate(source, WHOLE_VALUES)

    def write(rows: Node, local: Node) -> Node:
        return op.emit(op.target, rows, dim, local, source, *more, **op.kwargs)

    overwrites = op.target in (aten.scatter.src, aten.scatter.value)
    return op.result(_written(op, target, cut, index.node, write, overwrites=overwrites), cut)


def _is_sum(op: Operation) -> bool:
    if op.target is aten.scatter_add.default:
        return True
    reduce = op.argument(4, "reduce")
    return op.target in (aten.scatter_reduce.two, aten.scatter.reduce) and reduce in SUMS


def _cut_along(dim: int, value: Value) -> Shard | None:
    cut = value.placement
    return cut if isinstance(cut, Shard) and cut.dim == dim else None


def _written(
    op: Operation,
    target: Value,
    cut: Shard,
    index: Node,
    write: Callable[[Node, Node], Node],
    *,
    overwrites: bool,
) -> Node:
    """The local rows after ``write(rows, index)``.

    Padding rows take what is written somewhere, where ``write`` overwrites: what they held may
    be what the user overwrites.
    """
    local, inside = local_rows(op, target, index)
    dim, count = cut.dim, target.local.shape[cut.dim]
    with op.builder.role("slice", "a row for what is written to other ranks"):
        scratch = op.emit(aten.slice.Tensor, target, dim, 0, 1)
        rows = op.emit(aten.cat.default, [target, scratch], dim)
    own_rows = op.emit(aten.where.ScalarOther, inside, local, count)
    rows = write(rows, own_rows)
    own = op.emit(aten.slice.Tensor, rows, dim, 0, count)
    op.decide(
        "applied", "assignment", "each rank writes the rows of its own block",
        f"{op.target} along the sharded dim {dim}", rule="index_writes",
    )  # fmt: skip
    if not (cut.is_padded and overwrites):
        return own
    anywhere = write(rows, op.emit(aten.full_like.default, local, count))
    row = op.emit(aten.slice.Tensor, anywhere, dim, count, count + 1)
    return op.emit(aten.where.self, row_mask(op, target, cut), own, row)


def _contributed(op: Operation, target: Value, add_to: Callable[[Node], Node]) -> Value:
    """What the ranks add to a tensor that each of them holds whole."""
    zeros = op.emit(aten.zeros_like.default, target)
    added = op.result(add_to(zeros), PARTIAL_SUM)
    given = op.node.args[0]
    if isinstance(given, Node) and is_operator(given, *ZEROS):
        return added
    summed = op.replicate(added, "added to a tensor that every rank holds")
    return op.result(op.emit(aten.add.Tensor, target, summed), REPLICATE)


RULES: dict[Any, RuleOrFormula] = {
    aten.index_put.default: index_put,
    aten.index_fill.int_Scalar: index_fill,
    aten.index_fill.int_Tensor: index_fill,
    aten.index_copy.default: index_fill,
    aten.index_add.default: index_add,
    aten.scatter.src: scatter,
    aten.scatter.value: scatter,
    aten.scatter.reduce: scatter,
    aten.scatter.value_reduce: scatter,
    aten.scatter_add.default: scatter,
    aten.scatter_reduce.two: scatter,
}
