"""Attention written as ``softmax(Q K^T) V`` becomes an attention operator, which means the same.

Between the products there may be scales, casts, masks (added, filled with minus infinity,
selected) and a soft cap. What has the scores or the probabilities read by something else, adds
to them after the softmax, draws dropout, or takes the softmax in a narrower type than the
scores', stays as it is written.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from autosp.events import Alternative
from autosp.graph import is_operator, meta_of, num_bytes, shape_of, tensor_of
from autosp.passes.factor_masks import MaskRewrite
from autosp.pipeline import PassContext
from autosp.runtime.masked_attention import MASKED_ATTENTION
from autosp.sharding.mask_expression import Unfactored
from autosp.sharding.operation import normalise_dim
from autosp.sizes import same_size

aten = torch.ops.aten

PRODUCTS = (aten.matmul.default, aten.bmm.default)
SOFTMAXES = (aten.softmax.int, aten._softmax.default)
SAME = (
    aten.to.dtype,
    aten._to_copy.default,
    aten.alias.default,
    aten.contiguous.default,
    aten.clone.default,
)
SCALES: dict[Any, Callable[[float, float], float]] = {
    aten.mul.Tensor: operator.mul,
    aten.mul.Scalar: operator.mul,
    aten.div.Tensor: operator.truediv,
    aten.div.Scalar: operator.truediv,
}
NUM_DIMS = 4
"""[batch, heads, sequence, head size]"""


class _Other(Exception):
    """It is not written in a way that is known here."""


@dataclass(slots=True)
class _Written:
    """What was found between the probabilities and the product of queries and keys."""

    scale: float = 1.0
    softcap: float = 0.0
    biases: list[Node] = field(default_factory=list)
    masked: list[tuple[Node, bool]] = field(default_factory=list)
    """Boolean masks, and whether they are true where pairs count."""
    dropouts: list[Node] = field(default_factory=list)
    """Those that drop nothing: torch takes them for random, so that they do not die unread."""
    query: Node | None = None
    transposed_key: Node | None = None


@dataclass(frozen=True)
class RecogniseAttention:
    name: str = "recognise-attention"
    description: str = "see softmax(Q K^T) V as the attention operator that it is"

    def run(self, program: GraphModule, context: PassContext) -> GraphModule:
        masks = MaskRewrite(program.graph)
        for product in list(program.graph.nodes):
            if not is_operator(product, *PRODUCTS):
                continue
            before = product.target, product.args, product.kwargs
            try:
                written = _read(product)
                cost = _bytes_of_scores(product)
                _rewrite(product, written)
                _say_mask(product, written, masks, context.mesh.sp)
            except (_Other, Unfactored):
                product.target, product.args, product.kwargs = before
                continue
            for dropout in written.dropouts:
                dropout.replace_all_uses_with(dropout.args[0])  # type: ignore[arg-type]
                program.graph.erase_node(dropout)
            context.decide(
                "applied",
                "attention-form",
                product.name,
                "one attention operator",
                "a softmax of a product of queries and keys, times values",
                rule="recognise_attention",
                alternatives=(
                    Alternative("matrix products", "scores of all queries and keys", cost),
                ),
            )
        program.graph.eliminate_dead_code()
        return program


def _bytes_of_scores(product: Node) -> str:
    probabilities: Any = product.args[0]
    tensor = tensor_of(probabilities)
    assert tensor is not None
    return f"{num_bytes(tensor) / 2**20:.1f} MiB, several times over"


def _read(product: Node) -> _Written:
    """Follow the left operand of ``product`` back to queries and keys.

    Raises:
        _Other: it does not lead there.
    """
    probabilities, value = product.args[:2]
    assert isinstance(probabilities, Node) and isinstance(value, Node)
    num_dims = len(shape_of(probabilities))
    if num_dims < 3 or len(shape_of(value)) != num_dims:
        raise _Other
    written, is_scaled = _Written(), False
    softmax = _softmax_behind(probabilities, written)
    scores = _softmax_input(softmax)
    while True:
        node = _only_read_once(scores)
        if is_operator(node, *PRODUCTS):
            break
        if is_operator(node, *SAME):
            scores = _floating(node.args[0])
        elif is_operator(node, *SCALES) and isinstance(node.args[1], (int, float)):
            written.scale = SCALES[node.target](written.scale, node.args[1])
            scores, is_scaled = _floating(node.args[0]), True
        elif is_operator(node, aten.tanh.default) and not written.softcap and written.scale > 0:
            # What has been read as a scale so far is the cap: cap * tanh(inner * scores).
            written.softcap, written.scale, is_scaled = written.scale, 1.0, True
            scores = _floating(node.args[0])
        elif not is_scaled:
            scores = _masked(node, written)
        else:
            raise _Other
    if written.softcap:
        written.scale *= written.softcap
    written.query, written.transposed_key = node.args[:2]  # type: ignore[assignment]
    _check_operands(product, node, softmax)
    return written


def _softmax_behind(node: Node, written: _Written) -> Node:
    while is_operator(_only_read_once(node), *SAME, aten.dropout.default):
        if node.target is aten.dropout.default:
            if node.args[1] and node.args[2]:
                raise _Other
            written.dropouts.append(node)
        node = _floating(node.args[0])
    return node


def _only_read_once(node: Node) -> Node:
    if len(node.users) != 1:
        raise _Other
    return node


def _floating(node: Any) -> Node:
    tensor = tensor_of(node) if isinstance(node, Node) else None
    if tensor is None or not tensor.is_floating_point():
        raise _Other
    assert isinstance(node, Node)
    return node


def _softmax_input(softmax: Node) -> Node:
    if not is_operator(softmax, *SOFTMAXES):
        raise _Other
    dim, num_dims = softmax.args[1], len(shape_of(softmax))
    if not isinstance(dim, int) or normalise_dim(dim, num_dims) != num_dims - 1:
        raise _Other
    return _floating(softmax.args[0])


def _masked(node: Node, written: _Written) -> Node:
    """Read one mask; the scores before it."""
    args: Any = node.args
    if is_operator(node, aten.masked_fill.Scalar) and _masks_all(args[2]):
        written.masked.append((args[1], False))
        return _floating(args[0])
    if is_operator(node, aten.where.ScalarOther) and _masks_all(args[2]):
        written.masked.append((args[0], True))
        return _floating(args[1])
    if is_operator(node, aten.add.Tensor) and not node.kwargs:
        scores, bias = args if _is_wider(args[0], args[1]) else args[::-1]
        written.biases.append(_floating(bias))
        return _floating(scores)
    raise _Other


def _masks_all(fill: Any) -> bool:
    """Whether what is filled in is minus infinity: a large number leaves a query without any
    key the mean of all values."""
    return isinstance(fill, float) and fill == -math.inf


def _is_wider(left: Any, right: Any) -> bool:
    """Which summand is the scores: the one whose chain leads to a product."""
    return isinstance(left, Node) and _leads_to_product(left) and isinstance(right, Node)


def _leads_to_product(node: Node) -> bool:
    known = (*SAME, *SCALES, *PRODUCTS, aten.tanh.default, aten.add.Tensor)
    filled = (aten.masked_fill.Scalar, aten.where.ScalarOther)
    while is_operator(node, *known, *filled):
        if is_operator(node, *PRODUCTS):
            return True
        source = node.args[1 if node.target is aten.where.ScalarOther else 0]
        if not isinstance(source, Node):
            return False
        node = source
    return False


def _check_operands(product: Node, scores: Node, softmax: Node) -> None:
    """Types and dims that the operator takes."""
    query, key = (tensor_of(n) for n in scores.args[:2])  # type: ignore[arg-type]
    value = tensor_of(product.args[1])  # type: ignore[arg-type]
    probabilities, raw = tensor_of(softmax), tensor_of(scores)
    assert query is not None and key is not None and value is not None
    assert probabilities is not None and raw is not None
    if len({query.dim(), key.dim(), value.dim()}) != 1 or len({query.dtype, value.dtype}) != 1:
        raise _Other
    if probabilities.dtype.itemsize < raw.dtype.itemsize or key.dtype != query.dtype:
        raise _Other
    if same_size(query.shape[-2], 1):
        raise _Other  # one query for all tokens: sums over the sequence, nothing is exchanged
    if not same_size(query.shape[-2], probabilities.shape[-2]):
        raise _Other


# ---------------------------------------------------------------------- the operator


def _rewrite(product: Node, written: _Written) -> None:
    with product.graph.inserting_before(product):
        key = _transposed(product, written.transposed_key)
        mask = _mask(product, written)
    operands = (written.query, key, product.args[1])
    product.target = aten.scaled_dot_product_attention.default
    product.args = (*operands, mask, 0.0, False)
    product.kwargs = {"scale": written.scale}


def _say_mask(product: Node, written: _Written, masks: MaskRewrite, num_ranks: int) -> None:
    """Say the mask by a predicate where nothing else will do.

    A soft cap is known to no other operator, and heads that cannot be dealt out to the ranks
    need a ring, which takes no mask tensor: else they stay as they are written.

    Raises:
        Unfactored: no predicate says the mask.
        _Other: the operator does not take these dims.
    """
    mask: Any = product.args[3]
    heads = shape_of(product)[-3]
    if not written.softcap and (mask is None or heads % num_ranks == 0):
        return
    if len(shape_of(product)) != NUM_DIMS:
        raise _Other
    if mask is not None:
        masks.replace(product, mask)
    if not written.softcap:
        return
    vectors: dict[str, Any] = {"query_vectors": [], "key_vectors": [], "predicate": "True"}
    if product.target is aten.scaled_dot_product_attention.default:
        is_causal = bool(product.args[5])
        if is_causal:
            with product.graph.inserting_before(product):
                vectors = {
                    "query_vectors": [_positions(product, written.query)],
                    "key_vectors": [_positions(product, product.args[1])],
                    "predicate": "q0 >= k0",
                }
        product.target, product.args = MASKED_ATTENTION, product.args[:3]
        product.kwargs = {"scale": written.scale, "is_causal": is_causal, **vectors}
    product.kwargs = {**product.kwargs, "softcap": written.softcap}


def _positions(product: Node, operand: Any) -> Node:
    """``[1, rows]``: where the rows of ``operand`` stand."""
    rows, device = shape_of(operand)[-2], operand.meta["val"].device
    return _emit(
        product,
        aten.unsqueeze.default,
        _emit(product, aten.arange.default, rows, device=device),
        0,
    )


def _transposed(product: Node, node: Any) -> Node:
    """Keys ``[..., S, D]`` of their transpose, where possible those that it was made of."""
    last = len(shape_of(node)) - 1
    if is_operator(node, aten.mT.default):
        source: Any = node.args[0]
        return source  # type: ignore[no-any-return]
    if is_operator(node, aten.transpose.int):
        dims = {normalise_dim(dim, last + 1) for dim in node.args[1:3]}
        if dims == {last, last - 1}:
            source = node.args[0]
            return source  # type: ignore[no-any-return]
    return _emit(product, aten.transpose.int, node, -2, -1)


def _mask(product: Node, written: _Written) -> Node | None:
    """One mask of all that were found: added, if one of them is."""
    allowed: Node | None = None
    for node, counts in written.masked:
        one = node if counts else _emit(product, aten.logical_not.default, node)
        allowed = one if allowed is None else _emit(product, aten.logical_and.default, allowed, one)
    query: Any = written.query
    bias: Node | None = None
    for node in written.biases:
        one = _emit(product, aten.to.dtype, node, query.meta["val"].dtype)
        bias = one if bias is None else _emit(product, aten.add.Tensor, bias, one)
    if bias is None or allowed is None:
        return bias if allowed is None else allowed
    hidden = _emit(product, aten.logical_not.default, allowed)
    return _emit(product, aten.where.ScalarSelf, hidden, -math.inf, bias)


def _emit(product: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    node = product.graph.call_function(target, args, kwargs)
    node.meta.update(meta_of(product))
    fakes = map_aggregate(args, lambda a: a.meta["val"] if isinstance(a, Node) else a)
    with torch._guards.tracing(None), product.meta["val"].fake_mode, torch.no_grad():
        node.meta["val"] = target(*fakes, **kwargs)
    return node
