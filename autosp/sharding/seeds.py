"""Where sharding begins: traced back from the attention sites, never guessed from sizes.

From the sequence dim of every query, the dim is followed backwards through the program to
the first floating tensors that carry it whole: outputs of embeddings (token and position),
floating inputs of the model (``inputs_embeds``), or what an operator composes of shorter
pieces (image patches after a class token, text with images merged in). Those are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from autosp.capture import GraphInput
from autosp.errors import ShardingError
from autosp.graph import is_operator, shape_of
from autosp.placement import BlockOrder, Shard, padding_of
from autosp.sharding.attention_plan import is_attention
from autosp.sharding.handwritten import handwritten_scores
from autosp.sharding.operation import normalise_dim
from autosp.sharding.trace_dim import TracedDim, sources_of_dim

aten = torch.ops.aten

SEQUENCE_LABEL = "seq"


@dataclass(frozen=True, slots=True)
class Seed:
    """``node`` is cut along ``along``: the sequence."""

    node: Node
    along: TracedDim

    @property
    def dim(self) -> int:
        return self.along.dim

    @property
    def length(self) -> int:
        return self.along.size


def sequence_cut(along: TracedDim, num_ranks: int, order: BlockOrder) -> Shard:
    """The sequence dim in equal blocks, padded at its end where it must be."""
    pad = padding_of(along.size, num_ranks, order)
    return Shard(along.dim, along.size, along.outer, pad, order, SEQUENCE_LABEL)


@dataclass(slots=True)
class _Origins:
    """What following the sequence backwards has found."""

    seeds: dict[Node, TracedDim] = field(default_factory=dict)
    conversions: dict[Node, TracedDim] = field(default_factory=dict)
    """Floating tensors made of integers: seeds only where there are no others."""
    carriers: dict[Node, TracedDim] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SequenceOrigins:
    """Where the sequence begins, and the tensors on its way from there to the queries."""

    seeds: tuple[Seed, ...]
    carriers: dict[Node, TracedDim]


def attention_sites(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if is_attention(node)]


def has_attention(graph: Graph) -> bool:
    """Whether there is anything to shard around."""
    return bool(attention_sites(graph) or handwritten_scores(graph))


def find_seeds(graph: Graph) -> tuple[Seed, ...]:
    """All places where the sequence dim of an attention query comes into being.

    Raises:
        ShardingError: no attention, or its sequence dim cannot be traced to an input.
    """
    return find_origins(graph).seeds


def find_origins(graph: Graph) -> SequenceOrigins:
    """Follow the sequence dim of every query backwards.

    Raises:
        ShardingError: no attention, or its sequence dim cannot be traced to an input.
    """
    starts = _query_dims(graph)
    if all(along.size == 1 for _, along in starts):
        raise ShardingError(
            "the sequence has one token: there is nothing to shard",
            hint="Sequence parallelism needs at least two tokens",
        )
    found = _Origins()
    fed = _fed_by_the_user(graph)
    visited: set[tuple[Node, TracedDim]] = set()
    frontier = [start for start in starts if start[1].size > 1]
    while frontier:
        node, along = frontier.pop()
        if (node, along) in visited or node not in fed:
            continue
        visited.add((node, along))
        frontier.extend(_step_back(node, along, found))
    seeds = found.seeds or found.conversions
    if not seeds:
        raise ShardingError(
            "the sequence dim of the attention could not be traced to an embedding or to a "
            "floating-point input",
            hint="Check that the queries are computed from the model's inputs",
        )
    order = {node: index for index, node in enumerate(graph.nodes)}
    ordered = sorted(seeds, key=order.__getitem__)
    return SequenceOrigins(tuple(Seed(node, seeds[node]) for node in ordered), found.carriers)


def _query_dims(graph: Graph) -> list[tuple[Node, TracedDim]]:
    """Queries of all attention sites, with the dim that is the sequence."""
    queries = [(site.args[0], -2) for site in attention_sites(graph)]
    queries += [(scores.query, scores.query_dim) for scores in handwritten_scores(graph)]
    if not queries:
        raise ShardingError(
            "found no attention to shard around (no scaled_dot_product_attention, and no "
            "softmax of a product of queries and keys)",
            hint="Use torch.nn.functional.scaled_dot_product_attention, or in transformers "
            'attn_implementation="sdpa"',
        )
    found = []
    for query, dim in queries:
        assert isinstance(query, Node)
        shape = shape_of(query)
        if len(shape) > dim:
            dim = normalise_dim(dim, len(shape))
            found.append((query, TracedDim(dim, shape[dim])))
    return found


def _step_back(node: Node, along: TracedDim, found: _Origins) -> list[tuple[Node, TracedDim]]:
    """What to follow next; records ``node`` if the sequence begins there."""
    if _begins_here(node, along):
        found.seeds[node] = along
        return []
    if node.op != "call_function":
        return []
    sources = sources_of_dim(node, along)
    if sources is None:
        found.seeds[node] = along
        return []
    floating = [source for source in sources if _is_floating(source[0])]
    if sources and not floating:
        found.conversions[node] = along
    found.carriers[node] = along
    return floating


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (tuple, list)) and value else value
    return isinstance(first, torch.Tensor) and first.is_floating_point()


def _begins_here(node: Node, along: TracedDim) -> bool:
    if is_operator(node, aten.embedding.default):
        indices = node.args[1]
        return isinstance(indices, Node) and along.dim < len(shape_of(indices))  # not the features
    return node.op == "placeholder" and _is_user_input(node) and _is_floating(node)


def _is_user_input(node: Node) -> bool:
    given: GraphInput | None = node.meta.get("autosp_input")
    return given is not None and given.kind == "input"


def _fed_by_the_user(graph: Graph) -> set[Node]:
    """Nodes computed from inputs of the forward, or lookups: not from parameters alone."""
    fed: set[Node] = set()
    for node in graph.nodes:
        is_source = _is_user_input(node) or is_operator(node, aten.embedding.default)
        if is_source or any(source in fed for source in node.all_input_nodes):
            fed.add(node)
    return fed


def announce(seed: Seed, cut: Shard, decide: Callable[..., None]) -> None:
    """Record where the sequence begins to be cut, and why there."""
    padding = f"; padding rows: {cut.pad_text}" if cut.is_padded else ""
    decide(
        "applied", "seed", seed.node.name, f"cut on dim {seed.dim}: {cut}",
        "first floating tensor that carries the sequence dim of the attention queries" + padding,
        rule="seeds.find_seeds",
    )  # fmt: skip
