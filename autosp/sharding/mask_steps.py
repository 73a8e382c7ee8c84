"""Operators that move elements: where an element of their result comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.fx import Node

from autosp.graph import shape_of, tensor_of
from autosp.sharding.mask import Affine
from autosp.sharding.mask_expression import (
    Apply,
    Expression,
    Index,
    Number,
    Unfactored,
    along,
    fixed,
    reads,
)
from autosp.sharding.operation import normalise_dim
from autosp.sizes import first_row, is_symbolic, same_shape

aten = torch.ops.aten


class Reader(Protocol):
    """Reads elements of nodes: :class:`autosp.sharding.mask_reader.MaskReader`."""

    def read(self, node: Node, at: tuple[Expression, ...]) -> Expression: ...

    def broadcast(self, node: Node, at: tuple[Expression, ...]) -> Expression: ...

    def gathered(self, node: Node, at: tuple[Expression, ...]) -> Expression: ...


Step = Callable[[Reader, Node, tuple[Expression, ...]], Expression | None]
"""The element that an operator which moves elements has at these indices; None: unknown."""


def _source(node: Node) -> Node:
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def _number(node: Node, position: int, default: int) -> int:
    value = node.args[position] if len(node.args) > position else default
    value = default if value is None else value
    if not isinstance(value, int) or is_symbolic(value):
        raise Unfactored(f"{node.name} ({node.target}) depends on the length")
    return value


def _same(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    return reader.read(_source(node), at)


def _cast(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    tensor, before = tensor_of(node), tensor_of(_source(node))
    assert tensor is not None and before is not None
    inner = reader.read(_source(node), at)
    if before.dtype == tensor.dtype:
        return inner
    options = (("dtype", tensor.dtype),)
    return Apply(aten._to_copy.default, (inner,), options, tensor.dtype)


def _expand(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    return reader.broadcast(_source(node), at)


def _unsqueeze(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    added = normalise_dim(_number(node, 1, 0), len(at))
    return reader.read(_source(node), (*at[:added], *at[added + 1 :]))


def _reshape(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression | None:
    """Dims of size 1 come and go."""
    old, new = shape_of(_source(node)), shape_of(node)
    kept = [size for size in old if size != 1], [size for size in new if size != 1]
    if not same_shape(*kept):
        return None
    remaining = iter([i for size, i in zip(new, at, strict=True) if size != 1])
    own = tuple(fixed(0) if size == 1 else next(remaining) for size in old)
    return reader.read(_source(node), own)


def _permute(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    own: list[Expression] = list(at)
    for position, dim in enumerate(_order(node, len(at))):
        own[dim] = at[position]
    return reader.read(_source(node), tuple(own))


def _order(node: Node, num_dims: int) -> list[int]:
    """Which dim of the source is each dim of the result."""
    if node.target is aten.permute.default:
        given: Any = node.args[1]
        return [normalise_dim(dim, num_dims) for dim in given]
    order = list(range(num_dims))
    swapped = (0, 1) if node.target is aten.t.default else (num_dims - 2, num_dims - 1)
    if len(node.args) > 2:
        swapped = (
            normalise_dim(_number(node, 1, 0), num_dims),
            normalise_dim(_number(node, 2, 1), num_dims),
        )
    first, second = swapped
    order[first], order[second] = order[second], order[first]
    return order if num_dims > 1 else [0]


def _shifted(at: Expression, start: int, step: int) -> Expression:
    if not isinstance(at, Index):
        raise Unfactored("a slice at positions that are data")
    return Index(at.affine.scaled(step).plus(Affine(start)))


def _slice(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    shape = shape_of(_source(node))
    dim = normalise_dim(_number(node, 1, 0), len(shape))
    start = first_row(_number(node, 2, 0), shape[dim])
    if is_symbolic(start):
        raise Unfactored(f"{node.name} ({node.target}) depends on the length")
    own = list(at)
    own[dim] = along(shape[dim], _shifted(at[dim], int(start), _number(node, 4, 1)))
    return reader.read(_source(node), tuple(own))


def _select(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    shape = shape_of(_source(node))
    dim = normalise_dim(_number(node, 1, 0), len(shape))
    chosen = first_row(_number(node, 2, 0), shape[dim])
    if is_symbolic(chosen):
        raise Unfactored(f"{node.name} ({node.target}) depends on the length")
    return reader.read(_source(node), (*at[:dim], fixed(int(chosen)), *at[dim:]))


def _index(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression | None:
    """``x[i, j, ...]`` with indices of the first dims."""
    chosen: Any = node.args[1]
    if not all(isinstance(i, Node) for i in chosen):
        return None
    tensors = [tensor_of(i) for i in chosen]
    if any(t is None or t.dtype not in (torch.int64, torch.int32) for t in tensors):
        return None
    num_dims = len(at) - (len(shape_of(_source(node))) - len(chosen))
    own = tuple(reader.broadcast(i, at[:num_dims]) for i in chosen)
    own = tuple(along(size, i) for size, i in zip(shape_of(_source(node)), own, strict=False))
    return reader.gathered(_source(node), (*own, *at[num_dims:]))


def _triangle(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    """``tril``: elements with ``column - row <= diagonal``, and 0 elsewhere."""
    tensor, diagonal = tensor_of(node), _number(node, 1, 0)
    assert tensor is not None
    row, column = at[-2:]
    if not isinstance(row, Index) or not isinstance(column, Index):
        raise Unfactored(f"{node.name} ({node.target}) at positions that are data")
    difference = Index(column.affine.plus(row.affine, -1))
    kept = aten.le.Scalar if node.target is aten.tril.default else aten.ge.Scalar
    condition = Apply(kept, (difference, diagonal), (), torch.bool)
    zero = Number(0, tensor.dtype)
    return _either(condition, reader.read(_source(node), at), zero, tensor.dtype)


def _filled(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression | None:
    """``fill``: one number everywhere."""
    del at
    tensor, given = tensor_of(node), node.args[1]
    assert tensor is not None
    if isinstance(given, Node):
        number = reader.read(given, ())
        if not isinstance(number, Number):
            return None
        given = number.value
    return Number(given, tensor.dtype) if isinstance(given, (bool, int, float)) else None


def _diagonal(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    """``eye``."""
    del reader
    row, column = at
    tensor = tensor_of(node)
    assert tensor is not None
    if not isinstance(row, Index) or not isinstance(column, Index):
        raise Unfactored(f"{node.name} ({node.target}) at positions that are data")
    difference = Index(column.affine.plus(row.affine, -1))
    condition = Apply(aten.eq.Scalar, (difference, 0), (), torch.bool)
    one, zero = (Number(value, tensor.dtype) for value in (1, 0))
    return _either(condition, one, zero, tensor.dtype)


def _slice_scatter(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    """What was written to a part of a tensor, and the rest of it."""
    shape, source = shape_of(node), node.args[1]
    assert isinstance(source, Node)
    dim = normalise_dim(_number(node, 2, 0), len(shape))
    start, step = first_row(_number(node, 3, 0), shape[dim]), _number(node, 5, 1)
    row = at[dim]
    if is_symbolic(start) or step != 1 or not isinstance(row, Index):
        raise Unfactored(f"{node.name} ({node.target})")
    end = int(start) + shape_of(source)[dim]
    if is_symbolic(end):
        raise Unfactored(f"{node.name} ({node.target}) depends on the length")
    inside = _inside(row, int(start), int(end))
    own = (*at[:dim], along(shape_of(source)[dim], _shifted(row, -int(start), 1)), *at[dim + 1 :])
    tensor = tensor_of(node)
    assert tensor is not None
    written, rest = reader.read(source, own), reader.read(_source(node), at)
    if any(True for _ in reads(written)):  # it has no elements outside of the part
        raise Unfactored(f"{node.name} ({node.target}) writes data")
    return _either(inside, written, rest, tensor.dtype)


def _select_scatter(reader: Reader, node: Node, at: tuple[Expression, ...]) -> Expression:
    shape, source = shape_of(node), node.args[1]
    assert isinstance(source, Node)
    dim = normalise_dim(_number(node, 2, 0), len(shape))
    chosen, row = first_row(_number(node, 3, 0), shape[dim]), at[dim]
    if is_symbolic(chosen) or not isinstance(row, Index):
        raise Unfactored(f"{node.name} ({node.target})")
    tensor = tensor_of(node)
    assert tensor is not None
    inside = _inside(row, int(chosen), int(chosen) + 1)
    written = reader.read(source, (*at[:dim], *at[dim + 1 :]))
    return _either(inside, written, reader.read(_source(node), at), tensor.dtype)


def _inside(row: Index, start: int, end: int) -> Expression:
    bounds = (
        Apply(aten.ge.Scalar, (row, start), (), torch.bool),
        Apply(aten.lt.Scalar, (row, end), (), torch.bool),
    )
    return Apply(aten.logical_and.default, bounds, (), torch.bool)


def _either(
    condition: Expression, then: Expression, otherwise: Expression, dtype: torch.dtype
) -> Expression:
    return Apply(aten.where.self, (condition, then, otherwise), (), dtype)


STEPS: dict[Any, Step] = {
    **dict.fromkeys(
        (
            aten.alias.default,
            aten.contiguous.default,
            aten.clone.default,
            aten.detach.default,
            aten.detach_.default,
            aten.lift_fresh_copy.default,
        ),
        _same,
    ),
    **dict.fromkeys(
        (
            aten.to.dtype,
            aten.to.dtype_layout,
            aten.to.device,
            aten.to.other,
            aten.type_as.default,
            aten._to_copy.default,
        ),
        _cast,
    ),
    aten.expand.default: _expand,
    aten.expand_as.default: _expand,
    aten.unsqueeze.default: _unsqueeze,
    **dict.fromkeys(
        (
            aten.view.default,
            aten.reshape.default,
            aten._unsafe_view.default,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
        ),
        _reshape,
    ),
    **dict.fromkeys(
        (
            aten.permute.default,
            aten.transpose.int,
            aten.swapaxes.default,
            aten.t.default,
            aten.mT.default,
        ),
        _permute,
    ),
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.index.Tensor: _index,
    aten.tril.default: _triangle,
    aten.triu.default: _triangle,
    aten.eye.default: _diagonal,
    aten.eye.m: _diagonal,
    aten.fill.Scalar: _filled,
    aten.fill.Tensor: _filled,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
}
