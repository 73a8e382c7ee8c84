"""Attention written as two matrix products around a softmax.

``softmax(q @ k.T) @ v`` with ``q``, ``k`` and ``v`` cut along their tokens: both operands of
the first product go from sequence shards to head shards, everything up to the second
product follows on head shards, and its result returns to sequence shards at once. What lies
between (masks, biases, soft caps, sinks) needs no knowledge of attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from autosp.errors import ShardingError
from autosp.graph import is_operator, shape_of, source_location, tensor_of
from autosp.placement import Placement, Shard, shard_dim
from autosp.sharding import linear_algebra
from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula, RuleOrFormula
from autosp.sharding.operation import Operation, normalise_dim
from autosp.sharding.pointwise import is_pointwise
from autosp.sizes import same_size

aten = torch.ops.aten

PRODUCTS = (aten.matmul.default, aten.bmm.default)
SOFTMAXES = (aten.softmax.int, aten._softmax.default)
KEEPS_THE_LAST_DIMS = (
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.cat.default,
    aten.slice.Tensor,
)
"""Of these only the inputs that have the same query dim count."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The product of queries and keys before a softmax."""

    node: Node
    query: Node
    query_dim: int


def handwritten_scores(graph: Graph) -> list[Scores]:
    """Products of two batched tensors that reach a softmax over the keys."""
    found: dict[Node, Scores] = {}
    for node in graph.nodes:
        if is_operator(node, *SOFTMAXES) and _over_last_dim(node):
            for product, left in _products_behind(node):
                found[product] = Scores(product, left, len(shape_of(left)) - 2)
    return list(found.values())


def _over_last_dim(softmax: Node) -> bool:
    num_dims = len(shape_of(softmax))
    dim = softmax.args[1]
    return isinstance(dim, int) and num_dims >= 3 and normalise_dim(dim, num_dims) == num_dims - 1


def _products_behind(softmax: Node) -> Iterator[tuple[Node, Node]]:
    frontier, seen = list(softmax.all_input_nodes), set()
    length = shape_of(softmax)[-2]
    while frontier:
        node = frontier.pop()
        if node in seen or tensor_of(node) is None or len(shape_of(node)) < 3:
            continue
        seen.add(node)
        operands = _operands(node)
        if operands is not None:
            yield node, operands[0]
        elif is_pointwise(node.target) or is_operator(node, *KEEPS_THE_LAST_DIMS):
            frontier.extend(n for n in node.all_input_nodes if _has_rows(n, length))


def _has_rows(node: Node, length: int) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.dim() >= 3 and same_size(tensor.shape[-2], length)


def _operands(node: Node) -> tuple[Node, Node] | None:
    """Both batched operands of a product, or None."""
    if is_operator(node, *PRODUCTS):
        left, right = node.args[:2]
    elif is_operator(node, aten.baddbmm.default):
        left, right = node.args[1:3]
    else:
        return None
    assert isinstance(left, Node) and isinstance(right, Node)
    if len(shape_of(left)) < 3 or len(shape_of(right)) != len(shape_of(left)):
        return None
    return left, right


# ---------------------------------------------------------------------- rules


def matmul(op: Operation) -> Value:
    """Queries with keys, or probabilities with values; any other product as ever."""
    left, right = op.args[:2]
    if _is_scores(left, right):
        _refuse_ring(op)
        heads = _head_cut(op, left, right, op.node.args[0])
        return linear_algebra.matmul(op) if heads is None else _scores(op, left, right, heads)
    if _is_mixing(left, right):
        return _mixed(op, left, right)
    return linear_algebra.matmul(op)


def baddbmm(op: Operation) -> Value | Formula:
    """``beta * bias + alpha * q @ k.T``, as matmul."""
    bias, left, right = op.args[:3]
    heads = None
    if _is_scores(left, right):
        _refuse_ring(op)
        heads = _head_cut(op, left, right, op.node.args[1])
    if heads is None:
        return linear_algebra.baddbmm(op)
    left, right = (_on_heads(op, tensor, heads) for tensor in (left, right))
    if bias.shape[heads.dim] == op.shape[heads.dim]:
        bias = op.redistribute(bias, heads, "a bias per head follows the heads")
    else:
        bias = op.replicate(bias, "a bias of all heads")
    return op.result(op.emit(op.target, bias, left, right, *op.args[3:], **op.kwargs), heads)


def _refuse_ring(op: Operation) -> None:
    choice = op.builder.attention.choice
    if choice in ("ring", "hybrid"):
        where = source_location(op.node)
        raise ShardingError(
            f"--attention {choice}: attention written as matrix products does not run in a ring",
            where=f"{where.file}:{where.line}" if where else "",
            hint="Use torch.nn.functional.scaled_dot_product_attention, or --attention auto",
        )


def _is_scores(left: Value, right: Value) -> bool:
    num_dims = len(left.shape)
    return (
        len(right.shape) == num_dims >= 3
        and _is_cut_along(left.placement, num_dims - 2)
        and _is_cut_along(right.placement, num_dims - 1)
    )


def _is_mixing(left: Value, right: Value) -> bool:
    """Probabilities on head shards, values on sequence shards."""
    num_dims = len(left.shape)
    return (
        len(right.shape) == num_dims >= 3
        and isinstance(left.placement, Shard)
        and left.placement.dim < num_dims - 2
        and _is_cut_along(right.placement, num_dims - 2)
    )


def _is_cut_along(placement: Placement, dim: int) -> bool:
    return isinstance(placement, Shard) and placement.dim == dim


def _scores(op: Operation, left: Value, right: Value, heads: Shard) -> Value:
    left, right = (_on_heads(op, tensor, heads) for tensor in (left, right))
    op.decide(
        "applied",
        "scores",
        f"heads dealt out to the ranks: {heads}",
        "every query meets every key: sequence shards -> head shards",
        rule="handwritten.matmul",
    )
    return op.result(op.emit(op.target, left, right), heads)


def _mixed(op: Operation, left: Value, right: Value) -> Value:
    heads = left.placement
    assert isinstance(heads, Shard)
    right = _on_heads(op, right, heads)
    node = op.emit(op.target, left, right)
    op.builder.amend(node, placement=heads, global_shape=op.shape)
    rows = len(op.shape) - 2
    back = shard_dim(rows, op.shape[rows], op.num_ranks, label="seq")
    output = Value(node, heads, op.shape)
    return op.redistribute(output, back, "attention output back: head shards -> sequence shards")


def _on_heads(op: Operation, tensor: Value, heads: Shard) -> Value:
    if tensor.shape[heads.dim] == 1:
        return op.replicate(tensor, "all heads share it")
    return op.redistribute(tensor, heads, "attention: sequence shards -> head shards")


def _head_cut(op: Operation, left: Value, right: Value, query: object) -> Shard | None:
    """The batch dim that is dealt out, heads before batch rows; None if none can be."""
    for dim in range(len(left.shape) - 3, -1, -1):
        size = left.shape[dim]
        outer = _num_batches(query, size) if len(left.shape) == 3 else 1
        if right.shape[dim] in (1, size) and size // outer % op.num_ranks == 0:
            return Shard(dim, size // outer, outer, label="head")
    return None


def _num_batches(query: object, size: int) -> int:
    """``B`` of a first dim that is ``B * H`` flattened, from where it was flattened; else 1."""
    while isinstance(query, Node) and tensor_of(query) is not None:
        shape = shape_of(query)
        if len(shape) >= 4 and prod(shape[:2]) == size:
            return shape[0]
        if not query.args or (len(shape) >= 3 and shape[0] != size):
            return 1
        query = query.args[0]
    return 1


RULES: dict[Any, RuleOrFormula] = {
    aten.matmul.default: matmul,
    aten.bmm.default: matmul,
    aten.baddbmm.default: baddbmm,
}
