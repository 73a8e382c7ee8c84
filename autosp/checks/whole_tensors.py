"""Tensors of the whole sequence on every rank, and those that grow with its square."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from autosp.capture import GraphInput
from autosp.checks.subject import Subject, counted, layer_pattern, size_text
from autosp.events import Finding
from autosp.graph import collective_kind, is_view, local_tag, node_bytes, tensor_of
from autosp.placement import Replicate
from autosp.records import dtype_name, tag_of
from autosp.sizes import examples

LONG_SEQUENCE = 16_384
"""From this length on an S x S tensor is an error: 256 MiB of booleans and more."""

SHORT_SEQUENCE = 1024
"""Below this length an S x S tensor is too small to be worth a word."""

LARGE_BYTES = 64 * 2**20
"""Replicated activations below this are not worth a word."""

MOST_PLACES = 3
"""So many modules with whole tensors are named."""


# ---------------------------------------------------------------------- S x S


def check_square_tensors(subject: Subject) -> Iterator[Finding]:
    """Tensors with two dims of at least the sequence length, outside of weights."""
    length = subject.sequence_length
    if length < SHORT_SEQUENCE:
        return
    weights = _weight_shapes(subject)
    widths = _feature_sizes(subject, weights)
    seen = {site.name for site in subject.attention_with_dropout}  # they have a finding
    for _, graph in subject.derived():
        for node in graph.graph.nodes:
            tensor = tensor_of(node)
            if tensor is None or sum(size >= length for size in examples(tensor.shape)) < 2:
                continue
            if node.op == "placeholder":
                continue  # weights; what was saved is seen where it is made
            if _is_weight(subject, node, tensor, weights):
                continue
            if _is_rows_of_features(subject, node, tensor, widths):
                continue
            finding = _square(subject, node, tensor, length)
            if finding.node not in seen:
                seen.add(finding.node)
                yield finding


def _weight_shapes(subject: Subject) -> dict[str, frozenset[int]]:
    """User nodes that are computed from parameters alone -> the sizes of their tensor."""
    sizes: dict[str, frozenset[int]] = {}
    for node in subject.user_graph.nodes:
        tensor, sources = tensor_of(node), node.all_input_nodes
        given = node.meta.get("autosp_input")
        is_parameter = isinstance(given, GraphInput) and given.kind != "input"
        derived = bool(sources) and all(source.name in sizes for source in sources)
        if tensor is not None and (is_parameter or derived):
            sizes[node.name] = frozenset(examples(tensor.shape))
    return sizes


def _is_weight(
    subject: Subject, node: Node, tensor: torch.Tensor, weights: Mapping[str, frozenset[int]]
) -> bool:
    """A weight, its transpose or its gradient: wide models have long dims too."""
    view = subject.compilation.view
    tag = tag_of(node, view)
    if tag is None or tensor.dim() != 2:
        return False
    names = (tag.origin, *view.inputs.get(tag.origin, ()))
    return frozenset(examples(tensor.shape)) in [weights[name] for name in names if name in weights]


def _feature_sizes(subject: Subject, weights: Mapping[str, frozenset[int]]) -> dict[str, int]:
    """User nodes whose last dim is the width of a weight (logits: the vocabulary) -> its size."""
    sizes: dict[str, int] = {}
    for node in subject.user_graph.nodes:
        tensor = tensor_of(node)
        if tensor is None or not tensor.dim() or node.name in weights:
            continue
        size = tensor.shape[-1]
        sources = [source.name for source in node.all_input_nodes]
        of_weight = any(size in weights.get(name, ()) for name in sources)
        if of_weight or any(sizes.get(name) == size for name in sources):
            sizes[node.name] = size
    return sizes


def _is_rows_of_features(
    subject: Subject, node: Node, tensor: torch.Tensor, widths: Mapping[str, int]
) -> bool:
    """``[S, V]`` with a vocabulary longer than the sequence, or a gradient of it."""
    view = subject.compilation.view
    tag = tag_of(node, view)
    names = () if tag is None else (tag.origin, *view.inputs.get(tag.origin, ()))
    known = {widths[name] for name in names if name in widths}
    others = list(tensor.shape)
    features = next(iter(known.intersection(others)), None)
    if features is None:
        return False
    others.remove(features)
    return sum(size >= subject.sequence_length for size in others) < 2


def _square(subject: Subject, node: Node, tensor: torch.Tensor, length: int) -> Finding:
    return subject.finding(
        node,
        "square-tensor",
        "error" if length >= LONG_SEQUENCE else "warning",
        f"{dtype_name(tensor.dtype)}{list(examples(tensor.shape))} grows with the square of the "
        f"sequence length ({size_text(node_bytes(node))} on every rank)",
        "A mask that vectors do not say (`autosp-inspect decisions --topic mask` tells why), or "
        "attention written out by hand: use scaled_dot_product_attention",
        cost_bytes=node_bytes(node),
    )


# ---------------------------------------------------------------------- S x features


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why a value is whole; ``gathered`` if it was sharded before."""

    text: str
    gathered: bool = False


def check_whole_tensors(subject: Subject) -> Iterator[Finding]:
    """Large floating activations of full sequence length: one finding for each cause."""
    user_nodes = {node.name: node for node in subject.user_graph.nodes}
    by_cause: dict[_Cause, list[Node]] = {}
    for node in subject.rank_graph.nodes:
        tag = local_tag(node)
        if tag is not None and _is_whole(subject, node):
            by_cause.setdefault(_cause(subject, user_nodes[tag.origin]), []).append(node)
    for cause, nodes in by_cause.items():
        yield _whole(subject, cause, nodes)


def _is_whole(subject: Subject, node: Node) -> bool:
    tag, tensor = local_tag(node), tensor_of(node)
    return (
        tag is not None
        and tensor is not None
        and tag.role == "compute"
        and tag.is_value
        and isinstance(tag.placement, Replicate)
        and tensor.is_floating_point()
        and subject.sequence_length in examples(tensor.shape)
        and node_bytes(node) >= LARGE_BYTES
        and not is_view(node)
    )


def _whole(subject: Subject, cause: _Cause, nodes: list[Node]) -> Finding:
    largest = max(nodes, key=node_bytes)
    tensor, total = tensor_of(largest), sum(map(node_bytes, nodes))
    assert tensor is not None
    readers = _whole_readers(largest)
    return subject.finding(
        largest,
        "replicated-sequence",
        "warning" if cause.gathered else "info",
        f"{counted(len(nodes), 'tensor')} of the whole sequence on every rank, "
        f"{size_text(total)} if all were alive, {cause.text}. They are in "
        f"{_places(subject, nodes)}; the largest is {dtype_name(tensor.dtype)}"
        f"{list(examples(tensor.shape))}" + (f", read whole by {readers}" if readers else ""),
        "Give the operator that gathers a sharded form, or do without it inside the layers"
        if cause.gathered
        else "Harmless while small: they are cut where they meet sharded data",
        cost_bytes=total,
    )


def _places(subject: Subject, nodes: list[Node]) -> str:
    """Modules that hold most of the bytes, the largest first."""
    sizes: Counter[str] = Counter()
    for node in nodes:
        sizes[layer_pattern(subject.module_of(node)) or "the root module"] += node_bytes(node)
    shown = [place for place, _ in sizes.most_common(MOST_PLACES)]
    rest = len(sizes) - len(shown)
    return ", ".join(shown) + (f" and {counted(rest, 'other')}" if rest else "")


def _whole_readers(node: Node) -> str:
    tags = [local_tag(user) for user in node.users]
    names = dict.fromkeys(tag.origin for tag in tags if tag is not None and tag.role != "slice")
    return ", ".join(list(names)[:2])


def _cause(subject: Subject, node: Node) -> _Cause:
    """Back from a whole value: to where shards were gathered, or to what it is computed from."""
    reasons = _gather_reasons(subject)
    placed = subject.compilation.view.placed
    sources: set[str] = set()
    frontier, visited = [node], {node}
    while frontier:
        current = frontier.pop(0)
        if current.name in reasons:
            return _Cause(f"gathered at {current.name} ({reasons[current.name]})", gathered=True)
        given = current.meta.get("autosp_input")
        if isinstance(given, GraphInput):
            sources.add(f"the input {given.name}" if given.kind == "input" else "parameters")
        for source in current.all_input_nodes:
            known = placed.get(source.name)
            if source not in visited and (known is None or isinstance(known[0], Replicate)):
                visited.add(source)
                frontier.append(source)
    if not sources:
        return _Cause("computed from positions that the program counts itself")
    return _Cause(f"computed whole from {' and '.join(sorted(sources)[:3])}")


def _gather_reasons(subject: Subject) -> dict[str, str]:
    """User's node for whose sake shards were gathered -> why."""
    return {
        tag.origin: tag.reason
        for node in subject.rank_graph.nodes
        if collective_kind(node) == "all_gather" and (tag := local_tag(node)) is not None
    }
