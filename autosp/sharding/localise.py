"""Which blocks of its inputs give a block of a whole value, so that less is computed whole.

A value that every rank computes whole (rotary tables, masks of one sequence dim) and of
which a rank then reads its own block only, is better computed on that block: the slice
moves from the value to the inputs it comes from.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from autosp.graph import shape_of, tensor_of
from autosp.sharding.operation import normalise_dim
from autosp.sharding.pointwise import is_pointwise
from autosp.sharding.randomness import OPERAND_FIRST, POSITIONS
from autosp.sizes import same_size

aten = torch.ops.aten


def block_inputs(node: Node, dim: int) -> dict[Node, int] | None:
    """The inputs to cut, and on which dim, so that ``node`` yields a block of its ``dim``.

    Inputs that are not named stay whole. None when the block needs more than blocks.
    """
    if tensor_of(node) is None or not isinstance(node.target, torch._ops.OpOverload):
        return None
    if is_pointwise(node.target):
        return _broadcast(node, dim) or None
    if node.target in POSITIONS:
        return _random(node, dim)
    if node.target is aten.embedding.default:
        return _looked_up(node, dim)
    source = node.args[0] if node.args else None
    if node.target in (aten.cat.default, aten.concat.default):
        return _concatenated(node, dim)
    if not isinstance(source, Node) or tensor_of(source) is None:
        return None
    own = _before_view(node, source, dim)
    return None if own is None else {source: own}


def _broadcast(node: Node, dim: int) -> dict[Node, int]:
    shape, found = shape_of(node), {}
    for source in node.all_input_nodes:
        if tensor_of(source) is None:
            continue
        own = dim - (len(shape) - len(shape_of(source)))
        if own >= 0 and same_size(shape_of(source)[own], shape[dim]):
            found[source] = own
    return found


def _random(node: Node, dim: int) -> dict[Node, int] | None:
    """The operand, whose block draws its own numbers; without one, the positions."""
    assert isinstance(node.target, torch._ops.OpOverload)
    if node.target in OPERAND_FIRST:
        return {node.args[0]: dim}  # type: ignore[dict-item]
    positions = node.args[POSITIONS[node.target]]
    assert isinstance(positions, (list, tuple))
    return {positions[dim]: 0}  # type: ignore[dict-item]


def _concatenated(node: Node, dim: int) -> dict[Node, int] | None:
    joined = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    if not isinstance(joined, int) or normalise_dim(joined, len(shape_of(node))) == dim:
        return None
    return dict.fromkeys(node.all_input_nodes, dim)


def _looked_up(node: Node, dim: int) -> dict[Node, int] | None:
    """Some rows come from some indices, some columns from columns of the table."""
    table, indices, *options = node.args
    assert isinstance(table, Node) and isinstance(indices, Node)
    if any(options[1:]) or node.kwargs.get("scale_grad_by_freq") or node.kwargs.get("sparse"):
        return None
    return {table: 1} if dim == len(shape_of(indices)) else {indices: dim}


def _before_view(node: Node, source: Node, dim: int) -> int | None:
    """The dim of the only input that is dim ``dim`` of a view; None if it is not one dim."""
    num_dims, arguments = len(shape_of(source)), node.args[1:]
    match node.target:
        case aten.unsqueeze.default:
            added = normalise_dim(_number(arguments[0]), num_dims + 1)
            return None if dim == added else dim - (dim > added)
        case aten.transpose.int:
            first, second = (normalise_dim(_number(d), num_dims) for d in arguments[:2])
            return {first: second, second: first}.get(dim, dim)
        case aten.permute.default:
            order = arguments[0]
            assert isinstance(order, (list, tuple))
            return normalise_dim(_number(order[dim]), num_dims)
        case aten.expand.default:
            own = dim - (len(shape_of(node)) - num_dims)
            is_same = own >= 0 and same_size(shape_of(source)[own], shape_of(node)[dim])
            return own if is_same else None
        case aten.slice.Tensor:
            along = _number(arguments[0] if arguments else node.kwargs.get("dim", 0))
            return None if normalise_dim(along, num_dims) == dim else dim
        case _:
            return None


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
