"""Undoes ``repeat_kv``: grouped-query attention reads each KV head where it is.

Sent through an all-to-all, repeated KV heads cost ``H / Hkv`` times the bytes. The repeat
(``unsqueeze, expand, reshape`` or ``repeat_interleave``) is dropped and the attention told
to share heads (``enable_gqa=True``), which means the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from autosp.events import Alternative
from autosp.graph import is_operator, num_bytes, shape_of, tensor_of
from autosp.pipeline import PassContext
from autosp.sharding.attention_plan import ATTENTION, HEAD_DIM
from autosp.sharding.seeds import attention_sites
from autosp.sizes import same_shape

aten = torch.ops.aten

MERGES = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
COPIES = (aten.clone.default, aten.contiguous.default, aten.alias.default)


@dataclass(frozen=True)
class ShareKvHeads:
    name: str = "share-kv-heads"
    description: str = "move the repetition of KV heads below the all-to-all"

    def run(self, program: GraphModule, context: PassContext) -> GraphModule:
        for site in attention_sites(program.graph):
            key, value = site.args[1], site.args[2]
            assert isinstance(key, Node) and isinstance(value, Node)
            shared = [before_repeat(tensor) for tensor in (key, value)]
            if shared[0] is None or shared[1] is None or not _same_heads(shared[0], shared[1]):
                context.decide(
                    "analysis",
                    "kv-heads",
                    site.name,
                    f"keys and values keep their {shape_of(key)[HEAD_DIM]} heads",
                    "no repetition of heads before this attention",
                    rule="share_kv_heads",
                )
                continue
            site.update_arg(1, shared[0])
            site.update_arg(2, shared[1])
            if is_operator(site, *ATTENTION):  # flex_attention has been told, or need not be
                site.kwargs = {**site.kwargs, "enable_gqa": True}
            _explain(site, key, shared[0], context)
        program.graph.eliminate_dead_code()
        return program


def _same_heads(key: Node, value: Node) -> bool:
    return shape_of(key)[HEAD_DIM] == shape_of(value)[HEAD_DIM]


def before_repeat(tensor: Node) -> Node | None:
    """The ``[B, Hkv, S, D]`` tensor of which ``tensor`` repeats each head in a row, or None."""
    node = _skip_copies(tensor)
    if is_operator(node, aten.repeat_interleave.self_int):
        dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim")
        source = node.args[0]
        return source if dim in (HEAD_DIM, HEAD_DIM - 4) and isinstance(source, Node) else None
    if not is_operator(node, *MERGES):
        return None
    expanded = _skip_copies(_input(node))
    if not is_operator(expanded, aten.expand.default):
        return None
    grouped = _skip_copies(_input(expanded))
    if not is_operator(grouped, aten.unsqueeze.default):
        return None
    source = _input(grouped)
    return source if _repeats_heads(source, grouped, expanded, node) else None


def _repeats_heads(source: Node, grouped: Node, expanded: Node, merged: Node) -> bool:
    """``[B, Hkv, S, D] -> [B, Hkv, 1, S, D] -> [B, Hkv, r, S, D] -> [B, Hkv*r, S, D]``."""
    shape, wide = shape_of(source), shape_of(expanded)
    if len(shape) != 4 or len(wide) != 5:
        return False
    batch, heads, length, size = shape
    return (
        same_shape(shape_of(grouped), (batch, heads, 1, length, size))
        and same_shape(wide, (batch, heads, wide[2], length, size))
        and same_shape(shape_of(merged), (batch, heads * wide[2], length, size))
    )


def _skip_copies(node: Node) -> Node:
    while is_operator(node, *COPIES):
        node = _input(node)
    return node


def _input(node: Node) -> Node:
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def _explain(site: Node, repeated: Node, shared: Node, context: PassContext) -> None:
    heads, kv_heads = shape_of(repeated)[HEAD_DIM], shape_of(shared)[HEAD_DIM]
    tensor = tensor_of(repeated)
    assert tensor is not None
    size = 2 * num_bytes(tensor) / 2**20
    context.decide(
        "applied",
        "kv-heads",
        site.name,
        f"keys and values keep {kv_heads} heads; the attention shares them",
        f"repeating them to {heads} heads before the all-to-all would send "
        f"{heads // kv_heads} times the bytes",
        rule="share_kv_heads",
        alternatives=(
            Alternative(
                "send the repeated heads",
                "same result",
                f"{size:.1f} MiB instead of {size * kv_heads / heads:.1f} MiB per attention",
            ),
        ),
    )
