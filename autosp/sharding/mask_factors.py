"""A mask as a predicate over vectors of the queries and of the keys.

The expression of one element (:mod:`autosp.sharding.mask_reader`) is taken apart: what
depends on the query alone, or on the key alone, is a vector; comparisons of both sides, and
boolean operators between them, make the predicate (:mod:`autosp.sharding.mask_builder`).
Integers that mix both sides are sorted: ``q - k < w`` becomes ``q - w < k``. A floating mask
must add 0, or a number that leaves nothing of a probability, at every place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.fx import Node

from autosp.graph import shape_of, tensor_of
from autosp.mask_predicate import Predicate, some_of
from autosp.sharding.mask_builder import PredicateBuilder
from autosp.sharding.mask_documents import IndexedPositions
from autosp.sharding.mask_expression import (
    BATCH,
    HEAD,
    KEY,
    QUERY,
    Expression,
    Unfactored,
    variable,
)
from autosp.sharding.mask_proofs import MaskProofs
from autosp.sharding.mask_reader import MaskReader
from autosp.sizes import same_size

LARGE_PENALTY = -1e9
"""Added to a score it leaves nothing of the probability, if another score is finite: float32
holds no scores that differ by as much."""


@dataclass(frozen=True, slots=True)
class FactoredMask:
    """``predicate`` over the vectors; a vector is an expression of one side's index."""

    predicate: Predicate
    queries: tuple[Expression, ...]
    keys: tuple[Expression, ...]
    is_causal: bool
    """Whether no key after the query counts, at any length and for any data."""
    is_exactly_causal: bool


def factor(mask: Node, num_queries: int, num_keys: int) -> FactoredMask:
    """The mask of ``scaled_dot_product_attention`` as a predicate.

    Raises:
        Unfactored: it is none, or none with the same meaning.
    """
    shape, tensor = shape_of(mask), tensor_of(mask)
    assert tensor is not None
    at = tuple(map(variable, (BATCH, HEAD, QUERY, KEY)))
    if len(shape) > len(at):
        raise Unfactored(f"a mask of {len(shape)} dims")
    reader = MaskReader((num_queries, num_keys))
    element = reader.broadcast(mask, at)
    square = same_size(num_queries, num_keys)
    builder = PredicateBuilder()
    proofs = MaskProofs(builder.queries, builder.keys)
    if tensor.dtype == torch.bool:
        predicate = builder.truth(element)
    else:
        predicate = _where_zero_is_added(builder.values(element), proofs if square else None)
    predicate = IndexedPositions(reader, builder.queries, builder.keys).rewritten(predicate)
    return FactoredMask(
        predicate,
        tuple(builder.queries),
        tuple(builder.keys),
        square and proofs.is_causal(predicate),
        square and proofs.is_exactly_causal(predicate),
    )


def _where_zero_is_added(
    values: list[tuple[Predicate, bool | int | float]], proofs: MaskProofs | None
) -> Predicate:
    allowed = some_of(*(condition for condition, value in values if value == 0))
    others = [value for _, value in values if value != 0]
    too_small = [value for value in others if value > LARGE_PENALTY or math.isnan(value)]
    if too_small:
        raise Unfactored(f"it adds {too_small[0]:g} to scores")
    finite = [value for value in others if value > -math.inf]
    if finite and not (proofs is not None and proofs.holds_on_diagonal(allowed)):
        raise Unfactored(
            f"it adds {finite[0]:g}, and a query may be left without any key: its probabilities "
            "would be those of all keys; minus infinity, or a boolean mask, has no such case"
        )
    return allowed
