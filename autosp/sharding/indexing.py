"""Lookups by index: what follows the indices, and what follows the indexed rows."""

from __future__ import annotations

from typing import Any

import torch

from autosp.placement import PARTIAL_SUM, REPLICATE, Shard
from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula, RuleOrFormula
from autosp.sharding.lookups import local_rows, only_where, rows_at
from autosp.sharding.operation import NoRule, Operation, normalise_dim
from autosp.sharding.rows import cut_of

aten = torch.ops.aten

WHOLE_INDICES = "indices into a sharded dim concern the rows of every rank"


def embedding(op: Operation) -> Value:
    """``table[indices]``: the result is cut like the indices; the table stays whole.

    This is where sharding usually begins: the walk hands sharded indices to the lookups
    that it found behind the attention sites. Of a table with a column per head (a learned bias
    of relative positions) a rank may read its own columns.
    """
    table, indices = op.args[:2]
    columns = table.placement
    if isinstance(columns, Shard) and columns.dim == 1 and indices.placement == REPLICATE:
        return op.result(op.same(), columns.on_dim(len(op.shape) - 1))
    if not isinstance(indices.placement, Shard):
        raise NoRule("lookup in a sharded table, or of indices that are not sharded")
    if table.placement != REPLICATE:
        raise NoRule("lookup in a sharded table")
    if op.argument(3, "scale_grad_by_freq", False):
        raise NoRule("scale_grad_by_freq counts how often an index occurs in the whole sequence")
    return op.result(op.same(), indices.placement)


def index_select(op: Operation) -> Value:
    source, dim, indices = op.args[:3]
    dim = normalise_dim(dim, len(source.shape))
    if not isinstance(source.placement, Shard):
        cut = cut_of(indices)
        source = op.replicate(source, "read at sharded indices")
        return op.result(op.emit(op.target, source, dim, indices), cut.on_dim(dim))
    cut = source.placement
    indices = op.replicate(indices, WHOLE_INDICES)
    if dim != cut.dim:
        return op.result(op.emit(op.target, source, dim, indices), cut)
    found = rows_at(op, source, indices.node, cut)
    return op.result(found.node, PARTIAL_SUM)


def gather(op: Operation) -> Value:
    """``source.gather(dim, index)``: an index per element, so both are cut alike off ``dim``."""
    source, dim, index = op.args[:3]
    dim = normalise_dim(dim, len(source.shape))
    cut = cut_off(dim, source, index)
    if cut is not None:
        if source.shape[cut.dim] != index.shape[cut.dim]:
            raise NoRule("gather by an index that covers a part of the sharded dim")
        source, index = (op.redistribute(v, cut, "one index an element") for v in (source, index))
        return op.result(op.emit(op.target, source, dim, index), cut)
    if not isinstance(source.placement, Shard):
        source = op.replicate(source, "read at sharded indices")
        return op.result(op.emit(op.target, source, dim, index), cut_of(index))
    index = op.replicate(index, WHOLE_INDICES)
    local, inside = local_rows(op, source, index.node)
    taken = op.emit(op.target, source, dim, local)
    return op.result(only_where(op, inside, taken), PARTIAL_SUM)


def cut_off(dim: int, *values: Value) -> Shard | None:
    """The first cut of a dim other than ``dim``."""
    for value in values:
        if isinstance(value.placement, Shard) and value.placement.dim != dim:
            return value.placement
    return None


def index(op: Operation) -> Value | Formula:
    """``source[i, :, j]`` with integer tensors."""
    source, given = op.args[:2]
    indices: list[Value | None] = [*given, *[None] * (len(source.shape) - len(given))]
    known = [item for item in indices if item is not None]
    if any(item.dtype in (torch.bool, torch.uint8) for item in known):
        raise NoRule("selection by a mask")
    dims = [dim for dim, item in enumerate(indices) if item is not None]
    width = max(len(item.shape) for item in known)
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    if not isinstance(source.placement, Shard):
        return _by_sharded_indices(op, source, indices, first, width)
    cut = source.placement
    whole = [item and op.replicate(item, WHOLE_INDICES) for item in indices]
    if cut.dim not in dims:
        removed, added = sum(dim < cut.dim for dim in dims), width if first < cut.dim else 0
        moved = cut.on_dim(cut.dim - removed + added)
        return op.result(op.emit(op.target, source, whole), moved)
    own = whole[cut.dim]
    assert own is not None
    local, inside = local_rows(op, source, own.node)
    places: list[Any] = [*whole]
    places[cut.dim] = local
    taken = op.emit(op.target, source, places)
    after = len(op.shape) - first - width
    shape = [*([1] * (width - len(own.shape))), *own.shape, *[1] * after]
    return op.result(
        only_where(op, op.emit(aten.reshape.default, inside, shape), taken), PARTIAL_SUM
    )


def _by_sharded_indices(
    op: Operation, source: Value, indices: list[Value | None], first: int, width: int
) -> Value:
    """A table read at sharded indices: the result is cut like them."""
    known = [item for item in indices if item is not None]
    lead = next((item for item in known if isinstance(item.placement, Shard)), None)
    if lead is None:
        raise NoRule("lookup in a partial table")
    cut = cut_of(lead)
    dim = cut.dim + width - len(lead.shape)

    def aligned(item: Value | None) -> Value | None:
        if item is None:
            return None
        own = dim - (width - len(item.shape))
        if own < 0 or item.shape[own] != lead.shape[cut.dim]:
            return op.replicate(item, "an index that is broadcast")
        return op.redistribute(item, cut.on_dim(own), "indices are read together")

    source = op.replicate(source, "read at sharded indices")
    node = op.emit(op.target, source, [aligned(item) for item in indices])
    return op.result(node, cut.on_dim(first + dim))


def masked_scatter(op: Operation) -> Formula:
    """``x`` with the n-th element of ``values`` where the mask is true for the n-th time."""
    target, mask, values = op.args[:3]

    def function(x: Any, mask: Any, values: Any) -> Any:
        size = mask.shape[-1] if mask.dim() else 1
        spread_over_rows = size == 1 or _same_along_last_dim(op)
        if spread_over_rows and values.numel() % x.shape[-1] == 0 and mask.dim() == x.dim():
            chosen = mask[..., 0].reshape(-1)
            order = (chosen.cumsum(0) - 1).clamp(0, values.numel() // x.shape[-1] - 1)
            rows = values.reshape(-1, x.shape[-1])[order]
        else:
            order = (mask.expand(x.shape).reshape(-1).cumsum(0) - 1).clamp(0, values.numel() - 1)
            rows = values.reshape(-1)[order]
        return torch.where(mask, rows.reshape(x.shape), x)

    return Formula(function, (target, mask, values))


def _same_along_last_dim(op: Operation) -> bool:
    """Whether the mask was expanded from one truth a row."""
    node = op.node.args[1]
    while isinstance(node, torch.fx.Node) and node.target in MASK_VIEWS:
        source = node.args[0]
        if node.target in EXPANSIONS and isinstance(source, torch.fx.Node):
            return bool(source.meta["val"].shape[-1:] == (1,))
        node = source
    return False


EXPANSIONS = (aten.expand.default, aten.expand_as.default)
MASK_VIEWS = (*EXPANSIONS, aten.to.device, aten.to.dtype, aten.alias.default)


def one_hot(op: Operation) -> Formula:
    indices, classes = op.args[0], op.shape[-1]

    def function(indices: Any) -> Any:
        numbers = torch.arange(classes, device=indices.device)
        return (indices.unsqueeze(-1) == numbers).to(torch.int64)

    return Formula(function, (indices,))


def buckets(op: Operation) -> Value:
    """bucketize and searchsorted by bounds that every rank holds: where each element belongs."""
    first, second = op.args[:2]
    source, bounds = (first, second) if op.target is aten.bucketize.Tensor else (second, first)
    if (
        not isinstance(bounds, Value)
        or len(bounds.shape) != 1
        or op.kwargs.get("sorter") is not None
    ):
        raise NoRule("bounds that differ between rows")
    cut = cut_of(source)
    whole = op.replicate(bounds, "bounds of buckets")
    args = (source, whole) if source is first else (whole, source)
    return op.result(op.emit(op.target, *args, *op.args[2:], **op.kwargs), cut)


RULES: dict[Any, RuleOrFormula] = {
    aten.embedding.default: embedding,
    aten.index_select.default: index_select,
    aten.gather.default: gather,
    aten.index.Tensor: index,
    aten.masked_scatter.default: masked_scatter,
    aten.one_hot.default: one_hot,
    aten.bucketize.Tensor: buckets,
    aten.searchsorted.Tensor: buckets,
}
