"""Reads one element of a mask as an expression of its indices.

A mask of S x S elements is made of small tensors by broadcasting, indexing and element-wise
operators. *Reading* an element of a node at given indices goes the other way: views and
slices change the indices, element-wise operators become :class:`Apply` of what is read from
their inputs, ``arange`` becomes the index itself. What is left are reads of tensors that exist
anyway. No name, shape of a mask or pattern of operators is recognised: what cannot be read so
is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from autosp.graph import shape_of, tensor_of
from autosp.sharding.mask import EXACT_TYPES, Affine, Conjunction, MaskAnalysis
from autosp.sharding.mask_expression import (
    KEY,
    QUERY,
    Apply,
    Expression,
    Index,
    Number,
    Read,
    Unfactored,
    along,
    variables,
)
from autosp.sharding.mask_steps import STEPS
from autosp.sharding.pointwise import is_pointwise
from autosp.sizes import is_symbolic, key_of

aten = torch.ops.aten


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
        return self.read(node, tuple(along(size, i) for size, i in zip(shape, own, strict=True)))

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
