"""One element of a mask as an expression of its indices: batch, head, query and key.

A mask of S x S elements is made of small tensors by broadcasting, indexing and element-wise
operators. *Reading* an element of a node at given indices goes the other way: views and
slices change the indices, element-wise operators become :class:`Apply` of what is read from
their inputs, ``arange`` becomes the index itself. What is left are reads of tensors that exist
anyway. No name, shape of a mask or pattern of operators is recognised: what cannot be read so
is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx import Node

from autosp.graph import shape_of, tensor_of
from autosp.sharding.mask import EXACT_TYPES, Affine, Conjunction, MaskAnalysis
from autosp.sharding.operation import normalise_dim
from autosp.sharding.pointwise import is_pointwise
from autosp.sizes import first_row, is_symbolic, key_of, same_shape

aten = torch.ops.aten

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


class MaskReader:
    """Reads elements of nodes; remembers what it has read.

    ``lengths``: numbers of queries and keys; a tensor with two dims of those sizes is no
    vector.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = {key_of(length) for length in lengths}
        self._meanings = MaskAnalysis()
        self._known: dict[tuple[Node, tuple[Expression, ...]], Expression] = {}

    def read(self, node: Node, at: tuple[Expression, ...]) -> Expression:
        """The element of ``node`` at the indices ``at``.

        Raises:
            Unfactored: it is not made of vectors.
        """
        if (node, at) not in self._known:
            self._known[node, at] = self._read(node, at)
        return self._known[node, at]

    def broadcast(self, node: Node, at: tuple[Expression, ...]) -> Expression:
        """As :meth:`read`, of an operand that is broadcast against a result with more dims."""
        shape = shape_of(node)
        own = at[len(at) - len(shape) :]
        return self.read(node, tuple(_along(size, i) for size, i in zip(shape, own, strict=True)))

    def gathered(self, node: Node, at: tuple[Expression, ...]) -> Expression:
        """As :meth:`read`, at indices that may be data, or count from the end."""
        if all(isinstance(i, Index) and _counts_from_the_start(i.affine) for i in at):
            return self.read(node, at)
        tensor = tensor_of(node)
        assert tensor is not None
        return self._leaf(node, tensor, at)

    def _read(self, node: Node, at: tuple[Expression, ...]) -> Expression:
        tensor = tensor_of(node)
        if tensor is None:
            raise Unfactored(f"{node.name} is no tensor")
        known = self._understood(node, tensor, at)
        if known is not None:
            return known
        step = STEPS.get(node.target) if node.op == "call_function" else None
        if step is not None:
            source = step(self, node, at)
            if source is not None:
                return source
        elif node.op == "call_function" and _is_elementwise(node.target):
            return self._apply(node, tensor, at)
        return self._leaf(node, tensor, at)

    def _understood(
        self, node: Node, tensor: torch.Tensor, at: tuple[Expression, ...]
    ) -> Expression | None:
        """Integers and constants that the analysis of indices knows."""
        if tensor.dtype in EXACT_TYPES and node.op == "call_function":
            meaning = self._meanings.meaning(node)
            if isinstance(meaning, Conjunction) and (meaning.is_false or not meaning.atoms):
                return Number(not meaning.is_false, torch.bool, tensor.dim() == 0)
            if isinstance(meaning, Affine):
                affine = _at(meaning, at)
                return None if affine is None else Index(affine, tensor.dtype)
        value = _constant_of(node)
        return None if value is None else Number(value, tensor.dtype, tensor.dim() == 0)

    def _is_square(self, node: Node) -> bool:
        return sum(key_of(size) in self._lengths and size != 1 for size in shape_of(node)) >= 2

    def _apply(self, node: Node, tensor: torch.Tensor, at: tuple[Expression, ...]) -> Expression:
        def argument(value: Any) -> Any:
            if isinstance(value, Node):
                return self.broadcast(value, at)
            if isinstance(value, (list, tuple, dict)) or is_symbolic_number(value):
                raise Unfactored(f"{node.name} ({node.target})")
            return value

        args = tuple(map(argument, node.args))
        if any(isinstance(value, Node) for value in node.kwargs.values()):
            raise Unfactored(f"{node.name} ({node.target})")
        return Apply(node.target, args, tuple(sorted(node.kwargs.items())), tensor.dtype)

    def _leaf(self, node: Node, tensor: torch.Tensor, at: tuple[Expression, ...]) -> Read:
        found = Read(node, at, tensor.dtype)
        if {QUERY, KEY} <= variables(found):
            raise Unfactored(f"{_what(node)} holds a number for each query and key")
        if self._is_square(node) and node.op != "placeholder":
            raise Unfactored(f"{_what(node)} is a part of an S x S tensor")
        return found


UNTAGGED = frozenset(
    {
        aten.floor_divide.default,
        aten.floor_divide.Scalar,
        aten.div.Tensor_mode,
        aten.div.Scalar_mode,
        aten.remainder.Tensor,
        aten.remainder.Scalar,
    }
)
"""Element-wise operators, some of which torch does not tag as such."""


def _is_elementwise(target: Any) -> bool:
    return target in UNTAGGED or is_pointwise(target)


def is_symbolic_number(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and (
        not isinstance(value, torch.SymInt) or is_symbolic(value)
    )


def _what(node: Node) -> str:
    return f"the input {node.name}" if node.op == "placeholder" else f"{node.name} ({node.target})"


def _counts_from_the_start(affine: Affine) -> bool:
    return affine.constant >= 0 and all(c >= 0 for _, c in affine.coefficients)


def _along(size: int, at: Expression) -> Expression:
    """Along a dim of size 1 everything is broadcast."""
    return fixed(0) if size == 1 else at


def _at(affine: Affine, at: Sequence[Expression]) -> Affine | None:
    """An affine function of a tensor's own indices, where those are affine themselves."""
    result = Affine(affine.constant)
    for dim, coefficient in affine.coefficients:
        own = at[dim]
        if not isinstance(own, Index):
            return None
        result = result.plus(own.affine.scaled(coefficient))
    return result


def _constant_of(node: Node) -> bool | int | float | None:
    """The number with which a tensor is filled."""
    if node.op == "get_attr" and isinstance(node.target, str):
        module = node.graph.owning_module
        value = operator.attrgetter(node.target)(module) if module is not None else None
        is_number = isinstance(value, torch.Tensor) and value.numel() == 1
        return value.item() if is_number and not isinstance(value, FakeTensor) else None  # type: ignore[union-attr]
    if node.op != "call_function":
        return None
    if node.target in FILLS:
        return FILLS[node.target]
    if node.target not in FILLS_WITH:
        return None
    given = node.args[FILLS_WITH[node.target]]
    return given if isinstance(given, (bool, int, float)) else None


FILLS: dict[Any, float] = {
    **dict.fromkeys((aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default), 0.0),
    **dict.fromkeys((aten.ones.default, aten.ones_like.default, aten.new_ones.default), 1.0),
}
FILLS_WITH: dict[Any, int] = {
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.new_full.default: 2,
    aten.scalar_tensor.default: 0,
}
"""The argument with which the operator fills its result."""


# ------------------------------------------------------------------ what changes the indices

Step = Callable[[MaskReader, Node, tuple[Expression, ...]], Expression | None]
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


def _same(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
    return reader.read(_source(node), at)


def _cast(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
    tensor, before = tensor_of(node), tensor_of(_source(node))
    assert tensor is not None and before is not None
    inner = reader.read(_source(node), at)
    if before.dtype == tensor.dtype:
        return inner
    options = (("dtype", tensor.dtype),)
    return Apply(aten._to_copy.default, (inner,), options, tensor.dtype)


def _expand(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
    return reader.broadcast(_source(node), at)


def _unsqueeze(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
    added = normalise_dim(_number(node, 1, 0), len(at))
    return reader.read(_source(node), (*at[:added], *at[added + 1 :]))


def _reshape(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression | None:
    """Dims of size 1 come and go."""
    old, new = shape_of(_source(node)), shape_of(node)
    kept = [size for size in old if size != 1], [size for size in new if size != 1]
    if not same_shape(*kept):
        return None
    remaining = iter([i for size, i in zip(new, at, strict=True) if size != 1])
    own = tuple(fixed(0) if size == 1 else next(remaining) for size in old)
    return reader.read(_source(node), own)


def _permute(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
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


def _slice(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
    shape = shape_of(_source(node))
    dim = normalise_dim(_number(node, 1, 0), len(shape))
    start = first_row(_number(node, 2, 0), shape[dim])
    if is_symbolic(start):
        raise Unfactored(f"{node.name} ({node.target}) depends on the length")
    own = list(at)
    own[dim] = _along(shape[dim], _shifted(at[dim], int(start), _number(node, 4, 1)))
    return reader.read(_source(node), tuple(own))


def _select(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
    shape = shape_of(_source(node))
    dim = normalise_dim(_number(node, 1, 0), len(shape))
    chosen = first_row(_number(node, 2, 0), shape[dim])
    if is_symbolic(chosen):
        raise Unfactored(f"{node.name} ({node.target}) depends on the length")
    return reader.read(_source(node), (*at[:dim], fixed(int(chosen)), *at[dim:]))


def _index(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression | None:
    """``x[i, j, ...]`` with indices of the first dims."""
    chosen: Any = node.args[1]
    if not all(isinstance(i, Node) for i in chosen):
        return None
    tensors = [tensor_of(i) for i in chosen]
    if any(t is None or t.dtype not in (torch.int64, torch.int32) for t in tensors):
        return None
    num_dims = len(at) - (len(shape_of(_source(node))) - len(chosen))
    own = tuple(reader.broadcast(i, at[:num_dims]) for i in chosen)
    own = tuple(_along(size, i) for size, i in zip(shape_of(_source(node)), own, strict=False))
    return reader.gathered(_source(node), (*own, *at[num_dims:]))


def _triangle(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
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


def _filled(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression | None:
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


def _diagonal(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
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


def _slice_scatter(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
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
    own = (*at[:dim], _along(shape_of(source)[dim], _shifted(row, -int(start), 1)), *at[dim + 1 :])
    tensor = tensor_of(node)
    assert tensor is not None
    written, rest = reader.read(source, own), reader.read(_source(node), at)
    if any(True for _ in reads(written)):  # it has no elements outside of the part
        raise Unfactored(f"{node.name} ({node.target}) writes data")
    return _either(inside, written, rest, tensor.dtype)


def _select_scatter(reader: MaskReader, node: Node, at: tuple[Expression, ...]) -> Expression:
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


def reads(expression: Any) -> Iterator[Read]:
    """The tensors that an expression reads."""
    if isinstance(expression, Read):
        yield expression
    if isinstance(expression, (Read, Apply)):
        inner = expression.indices if isinstance(expression, Read) else expression.args
        for part in inner:
            yield from reads(part)
