"""Views and layout changes: one principle, *follow the cut through the flattened index*.

A shard of dim ``d`` cuts the flattened tensor after ``L = prod(shape[:d]) * outer`` blocks.
In the new shape the cut sits in the dim ``j`` whose preceding sizes divide ``L``; sizes are
never matched by value.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from autosp.placement import REPLICATE, Placement, Shard, local_shape, rows_dealt_out
from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula, RuleOrFormula
from autosp.sharding.operation import NoRule, Operation, normalise_dim
from autosp.sharding.shifts import join_cut, select_cut, slice_cut, split_cut
from autosp.sizes import first_row, same_size

aten = torch.ops.aten


def reshape(op: Operation) -> Value:
    source: Value = op.args[0]
    placement = source.placement
    if isinstance(placement, Shard):
        placement = reshaped_cut(source.shape, op.shape, placement, op.num_ranks)
    sizes = list(local_shape(op.shape, placement, op.num_ranks))
    return op.result(op.emit(aten.reshape.default, source, sizes), placement)


def reshaped_cut(old: tuple[int, ...], new: tuple[int, ...], cut: Shard, num_ranks: int) -> Shard:
    """Where a cut of ``old`` lies after a reshape to ``new``.

    Raises:
        NoRule: the new shape does not keep the blocks together.
    """
    before = prod(old[: cut.dim]) * cut.outer
    inner = old[cut.dim] // (cut.outer * cut.atom)
    passed = 1
    for dim, size in enumerate(new):
        if before % passed:
            break
        outer = before // passed
        if size % outer == 0 and size // outer > 1:
            rows = size // outer
            if rows % cut.atom == 0:
                return Shard(dim, cut.atom, outer, cut.pad, cut.order, cut.label)
            multiple = rows_dealt_out(num_ranks, cut.order)
            if not cut.is_padded and rows % multiple == 0 and (cut.atom * inner) % rows == 0:
                return Shard(dim, rows, outer, 0, cut.order, cut.label)
            break
        passed *= size
    raise NoRule(f"reshape {list(old)} -> {list(new)} does not keep the blocks of {cut} together")


def unflatten(op: Operation) -> Value:
    return reshape(op)


def transpose(op: Operation) -> Value:
    source, first, second = op.args[:3]
    num_dims = len(source.shape)
    first, second = normalise_dim(first, num_dims), normalise_dim(second, num_dims)
    swapped = {first: second, second: first}
    return op.result(op.same(), _moved(source.placement, lambda dim: swapped.get(dim, dim)))


def matrix_transpose(op: Operation) -> Value:
    source: Value = op.args[0]
    last = len(source.shape) - 1
    swapped = {last: last - 1, last - 1: last}
    return op.result(op.same(), _moved(source.placement, lambda dim: swapped.get(dim, dim)))


def permute(op: Operation) -> Value:
    source: Value = op.args[0]
    order = [normalise_dim(dim, len(source.shape)) for dim in op.args[1]]
    return op.result(op.same(), _moved(source.placement, order.index))


def unsqueeze(op: Operation) -> Value:
    source, dim = op.args[:2]
    dim = normalise_dim(dim, len(source.shape) + 1)
    return op.result(op.same(), _moved(source.placement, lambda d: d + (d >= dim)))


def squeeze(op: Operation) -> Value:
    source: Value = op.args[0]
    chosen = op.args[1] if len(op.args) > 1 else range(len(source.shape))
    chosen = chosen if not isinstance(chosen, int) else (chosen,)
    dims = {normalise_dim(d, len(source.shape)) for d in chosen}
    removed = {d for d in dims if source.shape[d] == 1}
    placement = source.placement
    if isinstance(placement, Shard):
        if placement.dim in removed:
            raise NoRule("squeeze of the sharded dim")
        # A dim may have size 1 on a rank alone: name those of the global tensor.
        node = op.emit(aten.squeeze.dims, source, sorted(removed))
    else:
        node = op.same()
    return op.result(node, _moved(placement, lambda d: d - sum(r < d for r in removed)))


def expand(op: Operation) -> Value:
    source: Value = op.args[0]
    placement = source.placement
    if placement == REPLICATE:  # only the tensor whose shape is taken is sharded
        return op.result(op.emit(aten.expand.default, source, list(op.shape)), REPLICATE)
    if not isinstance(placement, Shard):
        raise NoRule("expand of a partial tensor")
    moved = placement.on_dim(placement.dim + len(op.shape) - len(source.shape))
    if not same_size(op.shape[moved.dim], source.shape[placement.dim]):
        whole = op.replicate(source, "one row, repeated")
        return op.result(op.emit(aten.expand.default, whole, list(op.shape)), REPLICATE)
    sizes = list(local_shape(op.shape, moved, op.num_ranks))
    return op.result(op.emit(aten.expand.default, source, sizes), moved)


def slice_(op: Operation) -> Value:
    """Slices off the cut dim are local; of the cut dim rows move."""
    source: Value = op.args[0]
    placement = source.placement
    dim = normalise_dim(op.argument(1, "dim", 0), len(source.shape))
    if not isinstance(placement, Shard) or dim != placement.dim:
        return op.result(op.same(), placement)
    start = first_row(op.argument(2, "start"), source.shape[dim])
    return slice_cut(op, source, start, op.argument(4, "step", 1))


def narrow(op: Operation) -> Value:
    source, dim, start, length = op.args[:4]
    dim = normalise_dim(dim, len(source.shape))
    placement = source.placement
    start = first_row(start, source.shape[dim])
    if isinstance(placement, Shard) and placement.dim == dim:
        return slice_cut(op, source, start, 1)
    return op.result(op.emit(aten.slice.Tensor, source, dim, start, start + length), placement)


def move_dims(op: Operation) -> Value:
    """``movedim``, of one dim or of several."""
    source: Value = op.args[0]
    num_dims = len(source.shape)
    given = [d if isinstance(d, (list, tuple)) else [d] for d in op.args[1:3]]
    origins, targets = ([normalise_dim(d, num_dims) for d in dims] for dims in given)
    rest = iter(d for d in range(num_dims) if d not in origins)
    order = [origins[targets.index(d)] if d in targets else next(rest) for d in range(num_dims)]
    return op.result(
        op.emit(aten.permute.default, source, order), _moved(source.placement, order.index)
    )


def select(op: Operation) -> Value:
    source, dim = op.args[:2]
    dim = normalise_dim(dim, len(source.shape))
    placement = source.placement
    if isinstance(placement, Shard) and placement.dim == dim:
        return select_cut(op, source, op.args[2])
    return op.result(op.same(), _moved(placement, lambda d: d - (dim < d)))


def split(op: Operation) -> list[Value] | Formula:
    source: Value = op.args[0]
    placement = source.placement
    dim = normalise_dim(op.argument(2, "dim", 0), len(source.shape))
    if isinstance(placement, Shard) and placement.dim == dim:
        return split_cut(op, dim)
    return op.results(op.same(), [placement] * len(op.outputs))


def unbind(op: Operation) -> list[Value]:
    source: Value = op.args[0]
    dim = normalise_dim(op.argument(1, "dim", 0), len(source.shape))
    if isinstance(source.placement, Shard) and source.placement.dim == dim:
        raise NoRule("unbind of the sharded dim")
    placement = _moved(source.placement, lambda d: d - (dim < d))
    return op.results(op.same(), [placement] * len(op.outputs))


def as_complex(op: Operation) -> Value:
    """``[..., 2] -> [...]``: the pairs of the last dim as one number each."""
    source: Value = op.args[0]
    if isinstance(source.placement, Shard) and source.placement.dim == len(source.shape) - 1:
        raise NoRule("pairs of the sharded dim as complex numbers")
    local, node = source.local, source.node
    if local.stride(-1) != 1 or any(step % 2 for step in local.stride()[:-1]):
        node = op.emit(aten.contiguous.default, source)
    return op.result(op.emit(op.target, node), source.placement)


def as_real(op: Operation) -> Value:
    """``[...] -> [..., 2]``: a complex number as a pair."""
    return op.result(op.same(), op.args[0].placement)


def concatenate(op: Operation) -> Value:
    return _join(op, stacked=False)


def stack(op: Operation) -> Value:
    return _join(op, stacked=True)


def _join(op: Operation, *, stacked: bool) -> Value:
    # An empty vector joins anything: caches of keys and values begin as one.
    parts: list[Value] = [part for part in op.args[0] if part.shape != (0,) or len(op.shape) == 1]
    dim = normalise_dim(op.argument(1, "dim", 0), len(op.shape))
    filled = [part for part in parts if 0 not in part.shape]
    if not stacked and len(filled) == 1 and filled[0].dtype == op.output.dtype:
        return op.result(filled[0].node, filled[0].placement)  # an empty cache before it
    if not stacked and any(
        isinstance(p.placement, Shard) and p.placement.dim == dim for p in parts
    ):
        return join_cut(op, parts, dim)
    lead = next((p.placement for p in parts if isinstance(p.placement, Shard)), None)
    if lead is None:
        raise NoRule("concatenation of partial tensors")
    aligned = [op.redistribute(p, lead, "concatenated with a sharded tensor") for p in parts]
    node = op.emit(op.target, aligned, dim)
    return op.result(node, lead.on_dim(lead.dim + (stacked and dim <= lead.dim)))


def _moved(placement: Placement, new_dim: object) -> Placement:
    if not isinstance(placement, Shard):
        return placement
    assert callable(new_dim)
    return placement.on_dim(new_dim(placement.dim))


RULES: dict[Any, RuleOrFormula] = {
    aten.view.default: reshape,
    aten.reshape.default: reshape,
    aten._unsafe_view.default: reshape,
    aten.flatten.using_ints: reshape,
    aten.unflatten.int: unflatten,
    aten.view_as.default: reshape,
    aten.transpose.int: transpose,
    aten.mT.default: matrix_transpose,
    aten.t.default: matrix_transpose,
    aten.permute.default: permute,
    aten.unsqueeze.default: unsqueeze,
    aten.squeeze.default: squeeze,
    aten.squeeze.dim: squeeze,
    aten.squeeze.dims: squeeze,
    aten.expand.default: expand,
    aten.slice.Tensor: slice_,
    aten.select.int: select,
    aten.narrow.default: narrow,
    aten.movedim.int: move_dims,
    aten.movedim.intlist: move_dims,
    aten.swapaxes.default: transpose,
    aten.swapdims.default: transpose,
    aten.expand_as.default: expand,
    aten.split.Tensor: split,
    aten.split.sizes: split,
    aten.split_with_sizes.default: split,
    aten.chunk.default: split,
    aten.unbind.int: unbind,
    aten.view_as_complex.default: as_complex,
    aten.view_as_real.default: as_real,
    aten.cat.default: concatenate,
    aten.stack.default: stack,
}
"""Replicated inputs never reach these rules; a partial input passes through linear views."""
