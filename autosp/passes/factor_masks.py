"""Replaces a mask of S x S elements by what it says: a predicate over vectors of S elements.

Padding, packed documents, sliding windows, chunks, a prefix that all may see, and what users
build of them by hand. What cannot be said so stays as it is, and the decision says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.fx import Graph, GraphModule, Node

from autosp.events import Alternative
from autosp.graph import is_operator, num_bytes, shape_of, tensor_of
from autosp.mask_predicate import ALWAYS
from autosp.pipeline import PassContext
from autosp.runtime.masked_attention import MASKED_ATTENTION
from autosp.sharding.mask_density import MaskDensity
from autosp.sharding.mask_expression import KEY, QUERY, Unfactored
from autosp.sharding.mask_factors import FactoredMask, factor
from autosp.sharding.mask_vectors import VectorWriter
from autosp.sharding.seeds import attention_sites
from autosp.sizes import example

aten = torch.ops.aten


@dataclass(frozen=True)
class FactorMasks:
    name: str = "factor-masks"
    description: str = "say masks with vectors of the sequence instead of S x S tensors"

    def run(self, program: GraphModule, context: PassContext) -> GraphModule:
        rewrite = MaskRewrite(program.graph)
        for site in attention_sites(program.graph):
            mask = site.args[3] if len(site.args) > 3 else site.kwargs.get("attn_mask")
            if not isinstance(mask, Node):
                continue
            try:
                chosen = rewrite.replace(site, mask)
            except Unfactored as why:
                _keep(site, mask, str(why), context)
                continue
            _explain(site, mask, chosen, context)
        program.graph.eliminate_dead_code()
        return program


@dataclass(frozen=True, slots=True)
class _Vectors:
    """A mask that is in the program already."""

    mask: FactoredMask
    queries: tuple[Node, ...] = ()
    keys: tuple[Node, ...] = ()
    density: float = 1.0


@dataclass(slots=True)
class MaskRewrite:
    graph: Graph
    _known: dict[Node, _Vectors | str] = field(default_factory=dict)
    """Mask -> its vectors, or why it has none."""

    def replace(self, site: Node, mask: Node) -> str:
        """Rewrite one attention; what it has become.

        Raises:
            Unfactored: it stays.
        """
        _check(site)
        found = self._known.get(mask)
        if found is None:
            try:
                found = self._factor(site, mask)
            except Unfactored as why:
                found = str(why)
            self._known[mask] = found
        if isinstance(found, str):
            raise Unfactored(found)
        if found.mask.is_exactly_causal or found.mask.predicate == ALWAYS:
            return _without_mask(site, is_causal=found.mask.is_exactly_causal)
        site.target = MASKED_ATTENTION
        site.args = site.args[:3]
        site.kwargs = {
            **{key: site.kwargs[key] for key in ("scale", "enable_gqa") if key in site.kwargs},
            "query_vectors": list(found.queries),
            "key_vectors": list(found.keys),
            "predicate": str(found.mask.predicate),
            "is_causal": found.mask.is_causal,
            "density": found.density,
        }
        return f"{found.mask.predicate}"

    def _factor(self, site: Node, mask: Node) -> _Vectors:
        query, key = site.args[0], site.args[1]
        assert isinstance(query, Node) and isinstance(key, Node)
        batch, _, num_queries, _ = shape_of(query)
        num_keys = shape_of(key)[2]
        factored = factor(mask, num_queries, num_keys)
        if factored.is_exactly_causal or factored.predicate == ALWAYS:
            return _Vectors(factored)
        queries = VectorWriter(self.graph, site, QUERY, num_queries, batch)
        keys = VectorWriter(self.graph, site, KEY, num_keys, batch)
        vectors = (
            tuple(map(queries.vector, factored.queries)),
            tuple(map(keys.vector, factored.keys)),
        )
        known = MaskDensity.of(factored.predicate, *vectors)
        positions = ([range(example(length))] for length in (num_queries, num_keys))
        return _Vectors(factored, *vectors, known.among(*positions))


def _check(site: Node) -> None:
    if not is_operator(site, aten.scaled_dot_product_attention.default):
        raise Unfactored("dropout of probabilities is written out")
    for operand in site.args[:3]:
        assert isinstance(operand, Node)
        if len(shape_of(operand)) != 4:
            raise Unfactored("attention that is not [batch, heads, sequence, head size]")
    dropout = site.args[4] if len(site.args) > 4 else site.kwargs.get("dropout_p", 0.0)
    causal = site.args[5] if len(site.args) > 5 else site.kwargs.get("is_causal", False)
    if dropout or causal:
        raise Unfactored("the attention has dropout or is_causal beside its mask")


def _without_mask(site: Node, *, is_causal: bool) -> str:
    site.args = (*site.args[:3], None, 0.0, is_causal)
    replaced = ("attn_mask", "dropout_p", "is_causal")
    site.kwargs = {key: value for key, value in site.kwargs.items() if key not in replaced}
    return "is_causal=True, mask removed" if is_causal else "no mask: it leaves every key"


def _explain(site: Node, mask: Node, chosen: str, context: PassContext) -> None:
    context.decide(
        "applied",
        "mask",
        site.name,
        chosen,
        _how(site),
        rule="factor_masks",
        alternatives=(Alternative("keep the mask tensor", "S x S elements", _cost(mask)),),
    )


def _how(site: Node) -> str:
    if not is_operator(site, MASKED_ATTENTION):
        return "proved of every element of the mask"
    vectors = (*site.kwargs["query_vectors"], *site.kwargs["key_vectors"])  # type: ignore[misc]
    tensors = (tensor_of(node) for node in dict.fromkeys(vectors) if isinstance(node, Node))
    size = sum(num_bytes(tensor) for tensor in tensors if tensor is not None)
    return (
        f"q0, ... are vectors of the queries and k0, ... of the keys ({size / 2**20:.2f} MiB); "
        "blocks that the mask leaves nothing of are skipped when it runs"
    )


def _keep(site: Node, mask: Node, why: str, context: PassContext) -> None:
    context.decide(
        "missed",
        "mask",
        site.name,
        f"the mask {list(shape_of(mask))} stays whole on every rank",
        f"it is no predicate over vectors: {why}",
        rule="factor_masks",
        alternatives=(Alternative("vectors of the sequence", why, _cost(mask)),),
    )


def _cost(mask: Node) -> str:
    tensor = tensor_of(mask)
    size = 0 if tensor is None else num_bytes(tensor)
    return f"{size / 2**30:.2f} GiB on every rank"
