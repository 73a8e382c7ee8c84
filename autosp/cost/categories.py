"""To which memory category a storage belongs. Exactly one, for its whole life.

First match: parameters and buffers (``parameters``), user inputs, constants (``other``),
gradients, the loss region (``logits_loss``), values kept for the backward (``saved``),
buffers of collectives, and the rest, which is ``activations`` (in the backward: their
cotangents).

The loss region is found by data flow: from a log-softmax (or the node it was decomposed
from) up through element-wise operators and copies to the matmul that made the logits,
and down from the derivative to the matmul that consumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.fx
from torch._ops import OpOverload

from autosp.cost.liveness import StepLiveness
from autosp.cost.step import CompiledStep
from autosp.cost.storage import GraphStorages
from autosp.graph import collective_kind, is_operator, is_wait, local_tag

aten = torch.ops.aten

_LOSS_OPERATORS: frozenset[object] = frozenset(
    {
        aten._log_softmax,
        aten._log_softmax_backward_data,
        aten.nll_loss_forward,
        aten.nll_loss_backward,
        aten.cross_entropy_loss,
        aten.log_softmax,
    }
)
_COPIES: frozenset[OpOverload] = frozenset(
    {
        aten.clone.default,
        aten._to_copy.default,
        aten._unsafe_view.default,
        aten.constant_pad_nd.default,
        aten.slice_backward.default,
        aten.cat.default,
    }
)
_CATEGORY_OF_COLLECTIVE = {
    "all_to_all": "all_to_all",
    "send_recv": "ring_kv",
    "all_gather": "gather_reduce_buckets",
    "reduce_scatter": "gather_reduce_buckets",
    "all_reduce": "gather_reduce_buckets",
    "broadcast": "gather_reduce_buckets",
}


def storage_categories(step: CompiledStep, liveness: StepLiveness) -> list[str]:
    """The category of each storage, by storage index."""
    result = ["activations"] * len(liveness.table.storages)

    def assign(indices: Iterable[int], category: str) -> None:
        for index in indices:
            result[index] = category

    graphs = [(step.forward.graph, liveness.forward)]
    if step.backward is not None and liveness.backward is not None:
        graphs.append((step.backward.graph, liveness.backward))
    for graph, storages in graphs:
        for node in graph.nodes:
            kind = collective_kind(node)
            if kind is not None:
                indices = [*storages.of(node), *_pack_buffers(node, storages)]
                assign(indices, _CATEGORY_OF_COLLECTIVE[kind])
    assign(liveness.saved, "saved")
    for graph, storages in graphs:
        for node in _loss_region(graph):
            assign(storages.of(node), "logits_loss")
    assign(liveness.gradients, "gradients")
    for graph, storages in graphs:
        for node in graph.find_nodes(op="get_attr"):
            assign(storages.of(node), "other")
    for node, kind_of_input in zip(
        step.forward.graph.find_nodes(op="placeholder"), step.input_kinds, strict=True
    ):
        category = "inputs" if kind_of_input == "input" else "parameters"
        assign(liveness.forward.of(node), category)
    return result


def _pack_buffers(node: torch.fx.Node, storages: GraphStorages) -> Iterator[int]:
    """Storages that exist only to be sent by this collective."""
    for source in node.all_input_nodes:
        tag = local_tag(source)
        if tag is not None and tag.role == "pack":
            yield from storages.of(source)
        else:
            yield from _sole_use(source, storages)


def _sole_use(node: torch.fx.Node, storages: GraphStorages) -> Iterator[int]:
    """The storage of ``node`` if, through views, nothing but one user reads it."""
    while len(node.users) == 1 and node.op == "call_function":
        if not _is_view(node):
            yield from storages.of(node)
            return
        node = node.all_input_nodes[0]


def _is_view(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    returns = target._schema.returns
    return bool(returns) and returns[0].alias_info is not None


def _loss_region(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    seeds = [node for node in graph.nodes if _is_loss_operator(node)]
    yield from seeds
    yield from _closure(seeds, lambda node: node.all_input_nodes, include_last=True)
    yield from _closure(seeds, lambda node: node.users, include_last=False)


def _is_loss_operator(node: torch.fx.Node) -> bool:
    if node.op != "call_function":
        return False
    original = node.meta.get("original_aten")
    return any(
        getattr(target, "overloadpacket", target) in _LOSS_OPERATORS
        for target in (node.target, original)
        if target is not None
    )


def _closure(
    seeds: list[torch.fx.Node],
    neighbours: Callable[[torch.fx.Node], Iterable[torch.fx.Node]],
    *,
    include_last: bool,
) -> Iterator[torch.fx.Node]:
    """Nodes reached over element-wise operators, views and copies.

    ``include_last`` adds the first node of another kind on each way: going up, the matmul
    whose result is the logits.
    """
    seen = set(seeds)
    pending = list(seeds)
    while pending:
        for node in neighbours(pending.pop()):
            if node in seen or node.op != "call_function":
                continue
            seen.add(node)
            keeps_shape = _is_elementwise(node)
            if keeps_shape or include_last:
                yield node
            if keeps_shape:
                pending.append(node)


def _is_elementwise(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    return (
        torch.Tag.pointwise in target.tags
        or _is_view(node)
        or is_operator(node, *_COPIES)
        or is_wait(node)
        or collective_kind(node) is not None
    )
