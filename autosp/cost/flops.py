"""Floating-point operations of an ATen node: matrix products and attention.

Matrix products and convolutions are counted by ``torch.utils.flop_counter``. Attention is
counted here: torch has no formula for the CPU kernels and does not halve causal attention.
Forward: two products, ``4 b h s_q s_k d`` operations. Backward: five (the scores are
computed again), 2.5 times as many. A causal mask leaves half of both (Dao 2023,
FlashAttention-2, section 4.1), another mask what its operator says.
"""

from __future__ import annotations

import torch
import torch.fx
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from autosp.runtime.blockwise_attention import BLOCKWISE_ATTENTION, BLOCKWISE_ATTENTION_BACKWARD

aten = torch.ops.aten

OPERATIONS_PER_PRODUCT = 2
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
CAUSAL_PART = 2

_ATTENTION_FORWARD: frozenset[object] = frozenset(
    {
        aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_efficient_attention,
        aten._scaled_dot_product_cudnn_attention,
        aten.scaled_dot_product_attention,
        BLOCKWISE_ATTENTION.overloadpacket,
        flex_attention,
    }
)
_ATTENTION_BACKWARD: frozenset[object] = frozenset(
    {
        aten._scaled_dot_product_flash_attention_backward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
        aten._scaled_dot_product_efficient_attention_backward,
        aten._scaled_dot_product_cudnn_attention_backward,
        BLOCKWISE_ATTENTION_BACKWARD.overloadpacket,
        flex_attention_backward,
    }
)


def is_attention(node: torch.fx.Node) -> bool:
    """A fused attention kernel, forward or backward."""
    kernel = getattr(node.target, "overloadpacket", node.target)
    return kernel in _ATTENTION_FORWARD or kernel in _ATTENTION_BACKWARD


def node_flops(node: torch.fx.Node) -> int | None:
    """Operations of matrix products and attention; None for everything else."""
    target = node.target
    if is_attention(node):
        return _attention_flops(node)
    if not isinstance(target, OpOverload):
        return None
    formula = flop_registry.get(target.overloadpacket)
    if formula is None:
        return None
    arguments = torch.fx.node.map_arg(node.args, lambda item: item.meta["val"])
    keywords = torch.fx.node.map_arg(node.kwargs, lambda item: item.meta["val"])
    return int(formula(*arguments, **keywords, out_val=node.meta["val"]))


def _attention_flops(node: torch.fx.Node) -> int:
    """Of all pairs, or half of them where the kernel is told of a causal mask."""
    target = node.target
    kernel = target.overloadpacket if isinstance(target, OpOverload) else target
    if isinstance(target, OpOverload):
        query, key = (_tensor(argument(node, target, name)) for name in ("query", "key"))
        is_causal = argument(node, target, "is_causal") is True
    else:
        query, key, is_causal = _tensor(node.args[0]), _tensor(node.args[1]), False
    batch, heads, query_length, head_size = query.shape
    products = BACKWARD_PRODUCTS if kernel in _ATTENTION_BACKWARD else FORWARD_PRODUCTS
    total = (
        OPERATIONS_PER_PRODUCT
        * products
        * int(batch)
        * int(heads)
        * int(query_length)
        * int(key.shape[2])
        * int(head_size)
    )
    density = argument(node, target, "density") if isinstance(target, OpOverload) else None
    if isinstance(density, float):
        return round(total * density)
    return total // CAUSAL_PART if is_causal else total


def _tensor(value: object) -> torch.Tensor:
    assert isinstance(value, torch.fx.Node), "an attention has a query and a key"
    tensor = value.meta["val"]
    assert isinstance(tensor, torch.Tensor)
    return tensor


def argument(node: torch.fx.Node, target: OpOverload, name: str) -> object:
    """The value given for an operator's argument, or its default."""
    for position, declared in enumerate(target._schema.arguments):
        if declared.name == name:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(name, declared.default_value)
    return None
