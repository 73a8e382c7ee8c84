"""Time of one ATen node on a device: a roofline.

    time = launch + max(operations / (peak x fraction), bytes / (bandwidth x fraction))

Bytes are those of the distinct inputs, read once, and of the outputs, written once. Views
and waits cost nothing. A lookup (``embedding``, ``index``, ``gather``) reads as much of
its table as it returns.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
import torch.fx
from torch._ops import OpOverload

from autosp.cost.flops import is_attention, node_flops
from autosp.events import GraphName, NodeCost
from autosp.graph import is_wait
from autosp.hardware import Device

aten = torch.ops.aten
NANOSECONDS = 1e9

_LOOKUPS: frozenset[object] = frozenset(
    {aten.embedding.default, aten.index.Tensor, aten.gather.default, aten.index_select.default}
)
_ALLOCATIONS: frozenset[object] = frozenset(
    {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default}
)


def is_free(node: torch.fx.Node) -> bool:
    """No kernel runs: a view, an element of a tuple, a wait, an allocation."""
    target = node.target
    if target is operator.getitem or is_wait(node):
        return True
    if not isinstance(target, OpOverload):
        return False
    if target is aten._unsafe_view.default or target in _ALLOCATIONS:
        return True
    returns = target._schema.returns
    return bool(returns) and all(
        item.alias_info is not None and not item.alias_info.is_write for item in returns
    )


def compute_cost(node: torch.fx.Node, *, graph: GraphName, device: Device | None) -> NodeCost:
    """Operations, bytes and, with a device, the time of a node that is no collective.

    Raises:
        HardwareError: the device lacks a constant.
    """
    if is_free(node):
        return NodeCost(graph, node.name, None, 0, 0, "no kernel: a view, a wait or an allocation")
    flops, memory_bytes = node_flops(node), node_bytes(node)
    if device is None:
        return NodeCost(graph, node.name, flops, memory_bytes, None, "no device chosen")
    duration_ns, source = _roofline(node, flops, memory_bytes, device)
    return NodeCost(graph, node.name, flops, memory_bytes, duration_ns, source)


def _roofline(
    node: torch.fx.Node, flops: int | None, memory_bytes: int, device: Device
) -> tuple[int, str]:
    bytes_per_s = device.require("memory_bytes_per_s") * device.require("memory_fraction")
    launch_ns = device.require("launch_ns")
    moving = memory_bytes / bytes_per_s
    if flops:
        dtype = _dtype(node)
        fraction = device.require("attention_fraction" if is_attention(node) else "matmul_fraction")
        flops_per_s = device.peak(dtype) * fraction
        if flops / flops_per_s >= moving:
            text = f"compute bound, {dtype} {flops_per_s:.3g} FLOP/s ({fraction:.0%} of peak)"
            return _total(launch_ns, flops / flops_per_s), f"roofline: {text}, {device.name}"
    text = f"roofline: memory bound, {bytes_per_s:.3g} B/s, {device.name}"
    return _total(launch_ns, moving), text


def _total(launch_ns: float, seconds: float) -> int:
    return round(launch_ns + seconds * NANOSECONDS)


def node_bytes(node: torch.fx.Node) -> int:
    """Bytes read plus bytes written by one execution of the node."""
    written = sum(_extent(item) for item in _tensors(node.meta.get("val")))
    if node.target in _LOOKUPS:
        table, *rest = node.all_input_nodes
        del table
        return 2 * written + _read(rest)
    return written + _read(node.all_input_nodes)


def _read(nodes: list[torch.fx.Node]) -> int:
    return sum(_extent(item) for node in nodes for item in _tensors(node.meta.get("val")))


def _extent(value: torch.Tensor) -> int:
    """Bytes that a pass over the tensor touches: an expanded one is read from less."""
    return min(value.numel() * value.element_size(), int(value.untyped_storage().nbytes()))


def _dtype(node: torch.fx.Node) -> str:
    """The type whose matrix units run the node: that of its first floating input."""
    for source in node.all_input_nodes:
        for value in _tensors(source.meta.get("val")):
            if value.is_floating_point():
                return str(value.dtype).removeprefix("torch.")
    return "float32"


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
