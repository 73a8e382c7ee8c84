"""Follows a dim of a tensor backwards: which dims of an operator's inputs become it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.fx import Node

from autosp.custom_gradients import is_custom_gradient
from autosp.graph import is_operator, shape_of, tensor_of
from autosp.sharding.operation import normalise_dim
from autosp.sharding.pointwise import is_pointwise
from autosp.sizes import key_of, same_size

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class TracedDim:
    """Dim ``dim`` of a tensor, seen as ``(outer, size, inner)``: ``size`` is followed."""

    dim: int
    size: int
    outer: int = 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TracedDim) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return (self.dim, key_of(self.size), key_of(self.outer))

    def on_dim(self, dim: int) -> TracedDim:
        return TracedDim(dim, self.size, self.outer)


Sources = list[tuple[Node, TracedDim]]

RESHAPES = (
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.view_as.default,
)
TRANSPOSES = (aten.transpose.int, aten.swapaxes.default, aten.swapdims.default)
SPLITS = (
    aten.split.Tensor,
    aten.split.sizes,
    aten.split_with_sizes.default,
    aten.chunk.default,
)
PRODUCTS = (aten.matmul.default, aten.mm.default, aten.bmm.default)
MERGES = (
    aten.masked_scatter.default,
    aten.index_put.default,
    aten.index.Tensor,
    aten.index_select.default,
    aten.scatter.src,
    aten.slice_scatter.default,
    aten.index_copy.default,
)
"""They put other rows between those of their first input, or take rows from all over it."""


def sources_of_dim(node: Node, along: TracedDim) -> Sources | None:
    """The inputs of ``node`` that carry the dim, or None where it comes into being.

    It comes into being where a dim of another size becomes it, or rows of several tensors.
    """
    if node.target is operator.getitem:
        sources = _from_multiple_outputs(node, along)
    elif is_pointwise(node.target):
        return list(_broadcast_sources(node, along))
    elif is_operator(node, *MERGES):
        return None
    elif is_operator(node, aten.stack.default, aten.cat.default, aten.concat.default):
        sources = _from_list(node, along)
    elif is_operator(node, *PRODUCTS):
        sources = _from_product(node, along)
    elif is_operator(node, aten.addmm.default, aten.baddbmm.default):
        sources = _from_product(node, along, first=1)
    else:
        sources = _from_first_input(node, along)
    if sources is None or not all(_carries(*source) for source in sources):
        return None
    return sources


def _carries(source: Node, along: TracedDim) -> bool:
    value = source.meta.get("val")
    tensor = value[0] if isinstance(value, (tuple, list)) and value else value
    if not isinstance(tensor, torch.Tensor) or not 0 <= along.dim < tensor.dim():
        return False
    return bool(tensor.shape[along.dim] % (along.outer * along.size) == 0)


def _broadcast_sources(node: Node, along: TracedDim) -> Sources:
    num_dims, found = len(shape_of(node)), []
    for source in node.all_input_nodes:
        if tensor_of(source) is None:
            continue
        own = along.dim - (num_dims - len(shape_of(source)))
        if own >= 0 and same_size(shape_of(source)[own], shape_of(node)[along.dim]):
            found.append((source, along.on_dim(own)))
    return found


def _from_list(node: Node, along: TracedDim) -> Sources | None:
    """Through ``stack`` and ``cat`` along another dim."""
    parts = node.args[0]
    assert isinstance(parts, (list, tuple))
    joined = normalise_dim(_int(node, 1, 0), len(shape_of(node)))
    if joined == along.dim:
        return None
    stacked = is_operator(node, aten.stack.default)
    own = along.on_dim(along.dim - (stacked and along.dim > joined))
    return [(part, own) for part in parts if isinstance(part, Node)]


def _from_multiple_outputs(node: Node, along: TracedDim) -> Sources | None:
    """Through ``split``/``chunk`` (same dims) and ``unbind`` (one dim fewer)."""
    producer, position = node.args
    if isinstance(producer, Node) and is_custom_gradient(producer.target):
        values: Any = producer.args[0]
        return [(values[position], along)]
    if not isinstance(producer, Node) or not producer.args:
        return None
    source = producer.args[0]
    if not isinstance(source, Node) or tensor_of(source) is None:
        return None
    dim = along.dim
    if is_operator(producer, aten.unbind.int):
        removed = normalise_dim(_int(producer, 1, 0), len(shape_of(source)))
        return [(source, along.on_dim(dim + (dim >= removed)))]
    if is_operator(producer, *SPLITS):
        split = normalise_dim(_int(producer, 2, 0), len(shape_of(source)))
        return None if split == dim else [(source, along)]
    return [(source, along)]


def _from_product(node: Node, along: TracedDim, *, first: int = 0) -> Sources | None:
    """Rows come from the left operand, columns from the right one, batch dims from both."""
    left, right = node.args[first : first + 2]
    assert isinstance(left, Node) and isinstance(right, Node)
    num_dims = len(shape_of(node))
    from_end = num_dims - along.dim
    if from_end == 1 and len(shape_of(right)) > 1:
        return [(right, along.on_dim(len(shape_of(right)) - 1))]
    own = along.dim - (num_dims - len(shape_of(left)))
    return [(left, along.on_dim(own))] if own >= 0 else None


def _from_first_input(node: Node, along: TracedDim) -> Sources | None:
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or tensor_of(source) is None:
        return []
    own = _dim_before(node, shape_of(source), along)
    return None if own is None else [(source, own)]


def _dim_before(node: Node, own: tuple[int, ...], along: TracedDim) -> TracedDim | None:
    num_dims, dim = len(own), along.dim
    if is_operator(node, *RESHAPES):
        return before_reshape(own, shape_of(node), along)
    if is_operator(node, *TRANSPOSES):
        first = normalise_dim(_int(node, 1, 0), num_dims)
        second = normalise_dim(_int(node, 2, 0), num_dims)
        return along.on_dim({first: second, second: first}.get(dim, dim))
    if is_operator(node, aten.t.default, aten.mT.default):
        return along.on_dim({num_dims - 1: num_dims - 2, num_dims - 2: num_dims - 1}.get(dim, dim))
    if is_operator(node, aten.permute.default):
        order = node.args[1]
        assert isinstance(order, (list, tuple))
        return along.on_dim(normalise_dim(_as_int(order[dim]), num_dims))
    if is_operator(node, aten.unsqueeze.default):
        added = normalise_dim(_int(node, 1, 0), num_dims + 1)
        return None if dim == added else along.on_dim(dim - (dim > added))
    if is_operator(node, aten.select.int):
        removed = normalise_dim(_int(node, 1, 0), num_dims)
        return along.on_dim(dim + (dim >= removed))
    if is_operator(node, aten.squeeze.dim):
        removed = normalise_dim(_int(node, 1, 0), num_dims)
        return along.on_dim(dim + (dim >= removed and own[removed] == 1))
    if is_operator(node, aten.expand.default):
        return along.on_dim(dim - (len(shape_of(node)) - num_dims))
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or dim >= num_dims:
        return None
    return along if same_size(own[dim], value.shape[dim]) else None


def before_reshape(old: Sequence[int], new: Sequence[int], along: TracedDim) -> TracedDim | None:
    """Where a dim of ``new`` lies in ``old``, by position in the flat index."""
    before = prod(new[: along.dim]) * along.outer
    passed = 1
    for position, size in enumerate(old):
        if passed > before or before % passed:
            return None
        outer = before // passed
        if size > 1 and outer < size and size % (outer * along.size) == 0:
            return TracedDim(position, along.size, outer)
        passed *= size
    return None


def _int(node: Node, index: int, default: int) -> int:
    return _as_int(node.args[index]) if len(node.args) > index else default


def _as_int(value: object) -> int:
    assert isinstance(value, int)
    return value
