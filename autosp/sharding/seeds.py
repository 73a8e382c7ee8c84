"""Where sharding begins: traced back from the attention sites, never guessed from sizes.

From the sequence dim of every query, the dim is followed backwards through the program to
the first floating tensors that carry it: outputs of embeddings (token and position), or
floating inputs of the model (``inputs_embeds``, image patches). Those are cut.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Graph, Node

from autosp.capture import GraphInput
from autosp.errors import ShardingError
from autosp.graph import is_operator, shape_of, tensor_of
from autosp.sharding.attention import ATTENTION, SEQUENCE_DIM
from autosp.sharding.operation import normalise_dim
from autosp.sharding.pointwise import is_pointwise

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Seed:
    """``node``'s dim ``dim`` is the sequence; it is cut there."""

    node: Node
    dim: int


def attention_sites(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if is_operator(node, *ATTENTION)]


def find_seeds(graph: Graph) -> tuple[Seed, ...]:
    """All places where the sequence dim of an attention query comes into being.

    Raises:
        ShardingError: no attention, or its sequence dim cannot be traced to an input.
    """
    sites = attention_sites(graph)
    if not sites:
        raise ShardingError(
            "found no attention to shard around (no scaled_dot_product_attention)",
            hint="Use torch.nn.functional.scaled_dot_product_attention, or in transformers "
            'attn_implementation="sdpa"',
        )
    if all(_is_batched(site) and shape_of(_query(site))[SEQUENCE_DIM] == 1 for site in sites):
        raise ShardingError(
            "the sequence has one token: there is nothing to shard",
            hint="Sequence parallelism needs at least two tokens",
        )
    found: dict[Node, int] = {}
    visited: set[tuple[Node, int]] = set()
    frontier = [(site.args[0], SEQUENCE_DIM) for site in sites if _is_batched(site)]
    while frontier:
        node, dim = frontier.pop()
        if not isinstance(node, Node) or (node, dim) in visited:
            continue
        visited.add((node, dim))
        if _begins_here(node, dim):
            found[node] = dim
            continue
        frontier.extend(sources_of_dim(node, dim))
    if not found:
        raise ShardingError(
            "the sequence dim of the attention could not be traced to an embedding or to a "
            "floating-point input",
            hint="Check that the queries are computed from the model's inputs",
        )
    order = {node: index for index, node in enumerate(graph.nodes)}
    return tuple(Seed(node, found[node]) for node in sorted(found, key=order.__getitem__))


def _is_batched(site: Node) -> bool:
    query = site.args[0]
    return isinstance(query, Node) and len(shape_of(query)) == 4


def _query(site: Node) -> Node:
    query = site.args[0]
    assert isinstance(query, Node)
    return query


def _begins_here(node: Node, dim: int) -> bool:
    if is_operator(node, aten.embedding.default):
        indices = node.args[1]
        return isinstance(indices, Node) and dim < len(shape_of(indices))  # not the features
    if node.op != "placeholder":
        return False
    given: GraphInput | None = node.meta.get("autosp_input")
    tensor = tensor_of(node)
    is_user_input = given is not None and given.kind == "input"
    return is_user_input and tensor is not None and tensor.is_floating_point()


def sources_of_dim(node: Node, dim: int) -> Iterable[tuple[Node, int]]:
    """The inputs of ``node``, with the dim of each that becomes output dim ``dim``."""
    tensor = tensor_of(node)
    if node.op != "call_function" or (tensor is not None and not tensor.is_floating_point()):
        return []
    target, args = node.target, node.args
    if target is operator.getitem:
        return _from_multiple_outputs(args[0], dim)
    if is_pointwise(target):
        return list(_broadcast_sources(node, dim))
    source = args[0]
    if not isinstance(source, Node):
        return _from_list(source, node, dim)
    return _single_source(node, source, dim)


def _broadcast_sources(node: Node, dim: int) -> Iterable[tuple[Node, int]]:
    num_dims = len(shape_of(node))
    for source in node.all_input_nodes:
        if tensor_of(source) is None:
            continue
        own = dim - (num_dims - len(shape_of(source)))
        if own >= 0 and shape_of(source)[own] == shape_of(node)[dim]:
            yield source, own


def _from_list(sources: object, node: Node, dim: int) -> list[tuple[Node, int]]:
    if not isinstance(sources, (list, tuple)):
        return []
    if is_operator(node, aten.stack.default):
        stacked = normalise_dim(_int(node, 1, 0), len(shape_of(node)))
        if dim == stacked:
            return []
        dim -= dim > stacked
    return [(source, dim) for source in sources if isinstance(source, Node)]


def _from_multiple_outputs(producer: object, dim: int) -> list[tuple[Node, int]]:
    """Through ``split``/``chunk`` (same dims) and ``unbind`` (one dim fewer)."""
    if not isinstance(producer, Node) or not isinstance(producer.args[0], Node):
        return []
    source = producer.args[0]
    if is_operator(producer, aten.unbind.int):
        removed = normalise_dim(_int(producer, 1, 0), len(shape_of(source)))
        return [(source, dim + (dim >= removed))]
    return [(source, dim)]


def _single_source(node: Node, source: Node, dim: int) -> list[tuple[Node, int]]:
    if tensor_of(source) is None:
        return []
    own, num_dims = shape_of(source), len(shape_of(source))
    if is_operator(
        node,
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,
        aten.flatten.using_ints,
        aten.unflatten.int,
    ):
        traced = _before_reshape(own, shape_of(node), dim)
        return [] if traced is None else [(source, traced)]
    if is_operator(node, aten.transpose.int):
        first = normalise_dim(_int(node, 1, 0), num_dims)
        second = normalise_dim(_int(node, 2, 0), num_dims)
        return [(source, {first: second, second: first}.get(dim, dim))]
    if is_operator(node, aten.t.default, aten.mT.default):
        return [(source, {num_dims - 1: num_dims - 2, num_dims - 2: num_dims - 1}.get(dim, dim))]
    if is_operator(node, aten.permute.default):
        order = node.args[1]
        assert isinstance(order, (list, tuple))
        return [(source, normalise_dim(_as_int(order[dim]), num_dims))]
    if is_operator(node, aten.unsqueeze.default):
        added = normalise_dim(_int(node, 1, 0), num_dims + 1)
        return [] if dim == added else [(source, dim - (dim > added))]
    if is_operator(node, aten.select.int):
        removed = normalise_dim(_int(node, 1, 0), num_dims)
        return [(source, dim + (dim >= removed))]
    if is_operator(node, aten.squeeze.dim):
        removed = normalise_dim(_int(node, 1, 0), num_dims)
        return [(source, dim + (dim >= removed and own[removed] == 1))]
    offset = len(shape_of(node)) - num_dims
    dim -= offset if is_operator(node, aten.expand.default) else 0
    return [(source, dim)] if 0 <= dim < num_dims else []


def _before_reshape(old: tuple[int, ...], new: tuple[int, ...], dim: int) -> int | None:
    """The dim of ``old`` in which a dim of ``new`` begins, by position in the flat index."""
    before = prod(new[:dim])
    passed = 1
    for position, size in enumerate(old):
        if size == 1:
            continue
        if passed == before:
            return position
        if passed > before or before % passed:
            return None
        if (before // passed) < size and size % (before // passed) == 0:
            return position  # the dim begins inside this one: [.., B*S, ..] -> [.., B, S, ..]
        passed *= size
    return None


def _int(node: Node, index: int, default: int) -> int:
    return _as_int(node.args[index]) if len(node.args) > index else default


def _as_int(value: object) -> int:
    assert isinstance(value, int)
    return value
