"""One element of a mask as an expression of its indices: batch, head, query and key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from autosp.sharding.mask import Affine

BATCH, HEAD, QUERY, KEY = range(4)
"""The indices of an element of a mask, in order."""


class Unfactored(Exception):
    """The mask is no expression of vectors; the message says what is in the way."""


@dataclass(frozen=True, slots=True)
class Index:
    """An integer that is affine in the indices."""

    affine: Affine
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True, slots=True)
class Number:
    """The same in every element. ``is_scalar``: of a tensor without dims."""

    value: bool | int | float
    dtype: torch.dtype
    is_scalar: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """The element of ``node`` at ``indices``."""

    node: Node
    indices: tuple[Expression, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Apply:
    """An element-wise operator; arguments that are no expressions are its own."""

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    dtype: torch.dtype


Expression = Index | Number | Read | Apply


def variable(dim: int) -> Index:
    """The index of a query, of a key, ..."""
    return Index(Affine.of(0, {dim: 1}))


def fixed(value: int) -> Index:
    return Index(Affine(value))


def along(size: int, at: Expression) -> Expression:
    """Along a dim of size 1 everything is broadcast."""
    return fixed(0) if size == 1 else at


def dtype_of(element: Any) -> torch.dtype:
    """Of an expression, or of a number among an operator's arguments."""
    if isinstance(element, bool):
        return torch.bool
    if isinstance(element, int):
        return torch.int64
    if isinstance(element, float):
        return torch.float64
    dtype: torch.dtype = element.dtype
    return dtype


def variables(expression: Any) -> frozenset[int]:
    """The indices on which the value depends."""
    match expression:
        case Index(affine):
            return frozenset(dim for dim, _ in affine.coefficients)
        case Read(indices=indices):
            return frozenset().union(*map(variables, indices))
        case Apply(args=args):
            return frozenset().union(*map(variables, args))
        case _:
            return frozenset()


def with_query_for_key(expression: Any) -> Any:
    """What the expression is on the diagonal, where the key is the query."""
    match expression:
        case Index(affine, dtype):
            slopes = affine.slopes
            of_key = slopes.pop(KEY, 0)
            slopes[QUERY] = slopes.get(QUERY, 0) + of_key
            return Index(Affine.of(affine.constant, slopes), dtype)
        case Read(node, indices, dtype):
            return Read(node, tuple(map(with_query_for_key, indices)), dtype)
        case Apply(target, args, kwargs, dtype):
            return Apply(target, tuple(map(with_query_for_key, args)), kwargs, dtype)
        case _:
            return expression


def constant_tensor(number: Number) -> torch.Tensor:
    """A real tensor of the number, of one element or without dims, as its original had."""
    with unset_fake_temporarily():
        return torch.full(() if number.is_scalar else (1,), number.value, dtype=number.dtype)


def reads(expression: Any) -> Iterator[Read]:
    """The tensors that an expression reads."""
    if isinstance(expression, Read):
        yield expression
    if isinstance(expression, (Read, Apply)):
        inner = expression.indices if isinstance(expression, Read) else expression.args
        for part in inner:
            yield from reads(part)
