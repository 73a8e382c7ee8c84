"""Replaces a mask that is proved to be causal by ``is_causal=True``; the S x S tensor dies.

transformers builds an explicit ``[B, 1, S, S]`` mask under ``torch.compile``: 16 GiB per
batch row at 128k tokens, and no flash kernel accepts it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from autosp.events import Alternative
from autosp.graph import is_operator, num_bytes, shape_of, tensor_of
from autosp.pipeline import PassContext
from autosp.sharding import mask as mask_analysis
from autosp.sharding.attention_plan import ATTENTION
from autosp.sharding.seeds import attention_sites
from autosp.sizes import same_size

aten = torch.ops.aten


@dataclass(frozen=True)
class DropCausalMasks:
    name: str = "drop-causal-masks"
    description: str = "prove which attention masks are causal and remove their S x S tensors"

    def run(self, program: GraphModule, context: PassContext) -> GraphModule:
        proofs: dict[Node, bool] = {}
        for site in filter(_takes_mask, attention_sites(program.graph)):
            mask = site.args[3] if len(site.args) > 3 else site.kwargs.get("attn_mask")
            if not isinstance(mask, Node):
                _already_free(site, context)
                continue
            if mask not in proofs:
                proofs[mask] = _square(site) and mask_analysis.is_causal(mask)
            if proofs[mask]:
                _replace(site)
                _explain(site, mask, context)
        program.graph.eliminate_dead_code()
        return program


def _takes_mask(site: Node) -> bool:
    return is_operator(site, *ATTENTION)


def _square(site: Node) -> bool:
    query, key = site.args[0], site.args[1]
    assert isinstance(query, Node) and isinstance(key, Node)
    return same_size(shape_of(query)[-2], shape_of(key)[-2])


def _replace(site: Node) -> None:
    """attn_mask=None, is_causal=True."""
    dropout = site.args[4] if len(site.args) > 4 else site.kwargs.get("dropout_p", 0.0)
    site.args = (*site.args[:3], None, dropout, True)
    replaced = ("attn_mask", "dropout_p", "is_causal")
    site.kwargs = {key: value for key, value in site.kwargs.items() if key not in replaced}


def _already_free(site: Node, context: PassContext) -> None:
    causal = bool(site.args[5] if len(site.args) > 5 else site.kwargs.get("is_causal", False))
    context.decide(
        "analysis",
        "mask",
        site.name,
        "is_causal" if causal else "no mask",
        "the program passes no mask tensor",
        rule="drop_causal_masks",
    )


def _explain(site: Node, mask: Node, context: PassContext) -> None:
    tensor = tensor_of(mask)
    size = 0 if tensor is None else num_bytes(tensor)
    cost = f"{size / 2**30:.2f} GiB on every rank"
    context.decide(
        "applied",
        "mask",
        site.name,
        "is_causal=True, mask removed",
        f"proved: the mask is {mask_analysis.describe(mask)} over query q and key k",
        rule="drop_causal_masks",
        alternatives=(Alternative("keep the mask tensor", "S x S elements", cost),),
    )
