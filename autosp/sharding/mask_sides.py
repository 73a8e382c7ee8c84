"""Integers of a query and a key, sorted by side: ``q - k + 3`` is ``q + 3`` and ``- k``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autosp.sharding.mask import EXACT_TYPES, Affine
from autosp.sharding.mask_expression import (
    KEY,
    QUERY,
    Apply,
    Expression,
    Index,
    Number,
    fixed,
    variables,
)

aten = torch.ops.aten

Sides = tuple[Expression, Expression]


def separated(element: Any) -> Sides | None:
    """``of the query + of the key``, or None; integers only."""
    if isinstance(element, (bool, float)) or (
        isinstance(element, Number) and not isinstance(element.value, int)
    ):
        return None
    if isinstance(element, int):
        return fixed(element), fixed(0)
    if isinstance(element, Number):
        return fixed(int(element.value)), fixed(0)
    if element.dtype not in EXACT_TYPES or element.dtype == torch.bool:
        return None
    if isinstance(element, Index):
        rest = element.affine.slopes
        of_key = Affine.of(0, {KEY: rest.pop(KEY, 0)})
        return Index(Affine.of(element.affine.constant, rest)), Index(of_key)
    if KEY not in variables(element):
        return element, fixed(0)
    if QUERY not in variables(element):
        return fixed(0), element
    return _separated_sum(element) if isinstance(element, Apply) else None


def _separated_sum(element: Apply) -> Sides | None:
    combine = _SUMS.get(element.target)
    if combine is None or dict(element.kwargs).get("alpha", 1) != 1:
        return None
    sides = [separated(argument) for argument in element.args[:2]]
    parts = [side for side in sides if side is not None]
    if len(parts) != len(sides):
        return None
    if len(parts) == 1:
        parts.insert(0, (fixed(0), fixed(0)))
    (left_query, left_key), (right_query, right_key) = parts
    return combine(left_query, right_query), combine(left_key, right_key)


def plus(left: Expression, right: Expression) -> Expression:
    if isinstance(left, Index) and isinstance(right, Index):
        return Index(left.affine.plus(right.affine))
    if left == fixed(0):
        return right
    if right == fixed(0):
        return left
    return Apply(aten.add.Tensor, (left, right), (), torch.int64)


def minus(left: Expression, right: Expression) -> Expression:
    if isinstance(left, Index) and isinstance(right, Index):
        return Index(left.affine.plus(right.affine, -1))
    if right == fixed(0):
        return left
    return Apply(aten.sub.Tensor, (left, right), (), torch.int64)


_SUMS: dict[Any, Callable[[Expression, Expression], Expression]] = {
    aten.add.Tensor: plus,
    aten.add.Scalar: plus,
    aten.sub.Tensor: minus,
    aten.sub.Scalar: minus,
    aten.rsub.Scalar: lambda left, right: minus(right, left),
    aten.rsub.Tensor: lambda left, right: minus(right, left),
    aten.neg.default: minus,
}


def without_offset(query: Index, key: Index) -> tuple[Index, Index]:
    """Constants on the query's side, so that different conditions share the key's vector."""
    offset = Affine(key.affine.constant)
    return Index(query.affine.plus(offset, -1)), Index(key.affine.plus(offset, -1))
