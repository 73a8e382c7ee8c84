"""Did sequence parallelism happen, and is anything suspicious: findings of a compilation.

==========================  ========  ==================================================
code                        severity  meaning
==========================  ========  ==================================================
``attention-not-sharded``   error     an attention site has no collectives around it
``square-tensor``           error     a tensor with two dims of at least the sequence
                                      length, at 16k tokens or more (warning below)
``unclassified-collective`` warning   a communication operator that is not understood
``nothing-to-train``        error     no parameter needs a gradient: there is no backward
``gathered-operator``       warning   an operator ran replicated for want of a rule
``graph-break``             warning   dynamo ended a piece of the program here (allowed)
``replicated-sequence``     info      large tensors of the whole sequence are on every rank
``recomputed-collectives``  info      checkpointed regions communicate again in the backward
``does-not-fit``            error     the estimated peak exceeds the device's memory
==========================  ========  ==================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch.fx import GraphModule, Node

from autosp.capture import GraphInput
from autosp.checkpoint_report import SAVING_HINT, find_recomputed_collectives
from autosp.compilation import RankCompilation, recomputed_nodes
from autosp.errors import ShardingError
from autosp.estimate import StepEstimate
from autosp.events import Finding
from autosp.graph import (
    collective_kind,
    is_unclassified_collective,
    local_tag,
    tensor_of,
)
from autosp.placement import Replicate
from autosp.records import dtype_name, tag_of
from autosp.sharding.seeds import attention_sites, find_seeds

LONG_SEQUENCE = 16_384
"""From this length on an S x S tensor is an error: 256 MiB of booleans and more."""

SHORT_SEQUENCE = 1024
"""Below this length an S x S tensor is too small to be worth a word."""

LARGE_BYTES = 64 * 2**20
"""Replicated activations below this are not worth a word."""


def check_compilation(
    compilation: RankCompilation, estimate: StepEstimate | None
) -> Iterator[Finding]:
    """All findings of the checks; those of the passes were recorded as they arose."""
    if compilation.context.mesh.sp > 1:
        yield from _attention_without_collectives(compilation)
        yield from _replicated_sequence(compilation)
    yield from _square_tensors(compilation)
    yield from _unclassified(compilation)
    yield from _recomputed_collectives(compilation, estimate)
    if compilation.graphs.backward is None:
        yield _nothing_to_train()
    if estimate is not None and estimate.summary.fits is False:
        yield _does_not_fit(estimate)


def sequence_length(compilation: RankCompilation) -> int:
    """Length of the dim that is sharded, or would be; 0 if the program has none."""
    try:
        seeds = find_seeds(compilation.captured.program.graph)
    except ShardingError:
        return 0
    return max(seed.length for seed in seeds)


def _derived_graphs(compilation: RankCompilation) -> Iterable[GraphModule]:
    graphs = compilation.graphs
    return [g for g in (graphs.forward, graphs.backward) if g is not None]


def _finding(
    compilation: RankCompilation, node: Node, code: str, severity: str, message: str, hint: str
) -> Finding:
    tag = local_tag(node) or tag_of(node, compilation.view)
    origin = tag.origin if tag else node.name
    module, _, source = compilation.view.locations.get(origin, ("", "", None))
    return Finding(
        code=code,
        severity=severity,  # type: ignore[arg-type]
        message=message,
        node=origin,
        module=module,
        source=source,
        hint=hint,
    )


def _attention_without_collectives(compilation: RankCompilation) -> Iterator[Finding]:
    served = {
        tag.origin
        for node in compilation.sharded.program.graph.nodes
        if collective_kind(node) == "all_to_all" and (tag := local_tag(node))
    }
    for site in attention_sites(compilation.captured.program.graph):
        if site.name not in served:
            yield _finding(
                compilation,
                site,
                "attention-not-sharded",
                "error",
                "this attention runs whole on every rank: no all-to-all was inserted around it",
                "See `autosp-inspect explain` of this node for the placement of its query",
            )


def _square_tensors(compilation: RankCompilation) -> Iterator[Finding]:
    length = sequence_length(compilation)
    if length < SHORT_SEQUENCE:
        return
    weights = _weight_shapes(compilation)
    seen: set[str] = set()
    for graph in _derived_graphs(compilation):
        for node in graph.graph.nodes:
            tensor = tensor_of(node)
            if tensor is None or sum(size >= length for size in tensor.shape) < 2:
                continue
            if node.op == "placeholder":
                continue  # weights; what was saved is seen where it is made
            if _is_weight(compilation, node, tensor, weights):
                continue
            finding = _square(compilation, node, tensor, length)
            if finding.node not in seen:
                seen.add(finding.node)
                yield finding


def _weight_shapes(compilation: RankCompilation) -> dict[str, frozenset[int]]:
    """User nodes that are computed from parameters alone -> the sizes of their tensor."""
    sizes: dict[str, frozenset[int]] = {}
    for node in compilation.captured.program.graph.nodes:
        tensor, sources = tensor_of(node), node.all_input_nodes
        given = node.meta.get("autosp_input")
        is_parameter = isinstance(given, GraphInput) and given.kind != "input"
        derived = bool(sources) and all(source.name in sizes for source in sources)
        if tensor is not None and (is_parameter or derived):
            sizes[node.name] = frozenset(tensor.shape)
    return sizes


def _is_weight(
    compilation: RankCompilation,
    node: Node,
    tensor: torch.Tensor,
    weights: Mapping[str, frozenset[int]],
) -> bool:
    """A weight, its transpose or its gradient: wide models have long dims too."""
    tag = tag_of(node, compilation.view)
    if tag is None or tensor.dim() != 2:
        return False
    names = (tag.origin, *compilation.view.inputs.get(tag.origin, ()))
    return frozenset(tensor.shape) in [weights[name] for name in names if name in weights]


def _square(compilation: RankCompilation, node: Node, tensor: torch.Tensor, length: int) -> Finding:
    size = _num_bytes(tensor)
    return _finding(
        compilation,
        node,
        "square-tensor",
        "error" if length >= LONG_SEQUENCE else "warning",
        f"{dtype_name(tensor.dtype)}{list(tensor.shape)} grows with the square of the sequence "
        f"length ({size / 2**30:.2f} GiB on every rank)",
        "A mask that could not be proved causal, or attention written out by hand: use "
        "scaled_dot_product_attention with is_causal=True",
    )


def _unclassified(compilation: RankCompilation) -> Iterator[Finding]:
    for graph in _derived_graphs(compilation):
        for node in graph.graph.nodes:
            if is_unclassified_collective(node):
                yield _finding(
                    compilation,
                    node,
                    "unclassified-collective",
                    "warning",
                    f"{node.target} communicates, but the compiler does not know how: it is in no "
                    "count of collectives and has no price",
                    "Report it with the model that uses it",
                )


def _replicated_sequence(compilation: RankCompilation) -> Iterator[Finding]:
    """Large floating activations of full sequence length, outside attention: one finding."""
    length = sequence_length(compilation)
    whole = [
        (node, tensor)
        for node in compilation.sharded.program.graph.nodes
        if (tensor := tensor_of(node)) is not None and _is_whole(node, tensor, length)
    ]
    if not whole:
        return
    largest, tensor = max(whole, key=lambda pair: _num_bytes(pair[1]))
    total = sum(_num_bytes(tensor) for _, tensor in whole)
    yield _finding(
        compilation,
        largest,
        "replicated-sequence",
        "info",
        f"{len(whole)} tensors of the whole sequence ({total / 2**20:.0f} MiB if all were alive) "
        f"are computed on every rank; the largest is {dtype_name(tensor.dtype)}"
        f"{list(tensor.shape)} ({_num_bytes(tensor) / 2**20:.0f} MiB)",
        "They are read whole, or made by an operator that cannot be computed block by block, "
        "and are cut where they meet sharded data",
    )


def _is_whole(node: Node, tensor: torch.Tensor, length: int) -> bool:
    tag = local_tag(node)
    return (
        tag is not None
        and tag.role == "compute"
        and tag.is_value
        and isinstance(tag.placement, Replicate)
        and tensor.is_floating_point()
        and length in tensor.shape
        and _num_bytes(tensor) >= LARGE_BYTES
    )


def _num_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel()) * tensor.element_size()


def _nothing_to_train() -> Finding:
    return Finding(
        code="nothing-to-train",
        severity="error",
        message="the loss depends on no parameter that needs a gradient: there is no backward",
        hint="Look for torch.no_grad() or requires_grad_(False) around the whole model",
    )


def _recomputed_collectives(
    compilation: RankCompilation, estimate: StepEstimate | None
) -> Iterator[Finding]:
    forward, backward = compilation.graphs.forward, compilation.graphs.backward
    if forward is None or backward is None:
        return
    found = find_recomputed_collectives(backward, recomputed_nodes(forward, backward), estimate)
    if found is not None:
        yield _finding(
            compilation,
            found.node,
            "recomputed-collectives",
            "info",
            found.message,
            SAVING_HINT,
        )


def _does_not_fit(estimate: StepEstimate) -> Finding:
    summary = estimate.summary
    capacity = summary.capacity_bytes or 0
    parts = summary.peak_categories
    states = sum(parts.get(name, 0) for name in ("parameters", "gradients", "optimizer"))
    tokens = summary.peak_live_bytes - states
    return Finding(
        code="does-not-fit",
        severity="error",
        message=f"the estimated live peak of {summary.peak_live_bytes / 2**30:.1f} GiB exceeds "
        f"the device's {capacity / 2**30:.1f} GiB",
        node=summary.peak_node,
        module=summary.peak_module,
        source=summary.peak_source,
        hint=f"{tokens / 2**30:.1f} GiB of it grow with the tokens of a rank (raise --sp, "
        f"shorten --seq); {states / 2**30:.1f} GiB are model states (shard them with --zero "
        "up to 3)",
    )
