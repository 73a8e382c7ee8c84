"""Brings every attention to ``[batch, heads, sequence, head size]``, whatever it was written in.

``scaled_dot_product_attention`` takes ``[heads, S, D]``, batch and heads folded into one dim,
several batch dims, and keys whose batch is broadcast. All mean the same attention with other
leading dims, and the views that say so cost nothing. Folded dims count as heads: they may be
dealt out to the ranks like these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from autosp.graph import meta_of, shape_of
from autosp.pipeline import PassContext
from autosp.sizes import same_shape, same_size

aten = torch.ops.aten

NUM_DIMS = 4
NUM_INNER = 3
"""Heads, sequence, head size."""


@dataclass(frozen=True)
class AttentionLayout:
    name: str = "attention-layout"
    description: str = "bring every attention to [batch, heads, sequence, head size]"

    def run(self, program: GraphModule, context: PassContext) -> GraphModule:
        sdpa = aten.scaled_dot_product_attention.default
        for site in program.graph.find_nodes(op="call_function", target=sdpa):
            shapes = [shape_of(operand) for operand in site.args[:3]]
            if _can_be_brought(site, shapes) and not _is_standard(shapes):
                attention = _bring(site, shapes)
                context.decide(
                    "applied",
                    "attention-layout",
                    site.name,
                    f"runs on {list(shape_of(attention))}",
                    f"it is written on {list(shape_of(site))}, which is the same attention",
                    rule="attention_layout",
                )
        program.graph.eliminate_dead_code()
        return program


def _can_be_brought(site: Node, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Not if a mask has more dims than the queries: the result has them, too."""
    num_dims = len(shape_of(site))
    return {len(shape) for shape in shapes} == {num_dims} and num_dims >= 2


def _is_standard(shapes: Sequence[tuple[int, ...]]) -> bool:
    batches = [shape[0] for shape in shapes]
    return len(shapes[0]) == NUM_DIMS and all(same_size(batches[0], size) for size in batches)


def _bring(site: Node, shapes: Sequence[tuple[int, ...]]) -> Node:
    """The attention in its new layout; ``site`` becomes the view of its result."""
    lead = _broadcast([shape[:-NUM_INNER] for shape in shapes])
    kwargs, rest = dict(site.kwargs), list(site.args[3:])
    with site.graph.inserting_before(site):
        operands = [_with_one_batch(site, operand, lead) for operand in site.args[:3]]
        if rest and isinstance(rest[0], Node):
            rest[0] = _mask_of_one_batch(site, rest[0], lead)
        if isinstance(mask := kwargs.get("attn_mask"), Node):
            kwargs["attn_mask"] = _mask_of_one_batch(site, mask, lead)
        attention = _emit(site, site.target, *operands, *rest, **kwargs)
    site.target, site.kwargs = aten.reshape.default, {}
    site.args = (attention, list(shape_of(site)))
    return attention


def _broadcast(leads: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(
        next((size for size in sizes if not same_size(size, 1)), 1)
        for sizes in zip(*leads, strict=True)
    )


def _with_one_batch(site: Node, operand: Any, lead: Sequence[int]) -> Node:
    """``[*lead, H, S, D]`` -> ``[prod(lead), H, S, D]``."""
    shape = shape_of(operand)
    inner = (*[1] * (NUM_INNER - len(shape)), *shape[-NUM_INNER:])
    if not same_shape(shape[:-NUM_INNER], lead):
        operand = _emit(site, aten.expand.default, operand, [*lead, *inner])
    return _emit(site, aten.reshape.default, operand, [prod(lead), *inner])


def _mask_of_one_batch(site: Node, mask: Node, lead: Sequence[int]) -> Node:
    shape = shape_of(mask)
    if len(shape) <= NUM_INNER:
        return mask
    own, inner = shape[:-NUM_INNER], shape[-NUM_INNER:]
    if all(same_size(size, 1) for size in own):
        return _emit(site, aten.reshape.default, mask, [1, *inner])
    whole = _emit(site, aten.expand.default, mask, [*lead, *inner])
    return _emit(site, aten.reshape.default, whole, [prod(lead), *inner])


def _emit(site: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """One more node for the sake of ``site``, at the graph's insertion point."""
    node = site.graph.call_function(target, args, kwargs)
    node.meta.update(meta_of(site))
    fakes, fake_kwargs = map_aggregate(
        (args, kwargs), lambda a: a.meta["val"] if isinstance(a, Node) else a
    )
    with torch._guards.tracing(None), site.meta["val"].fake_mode, torch.no_grad():
        node.meta["val"] = target(*fakes, **fake_kwargs)
    return node
