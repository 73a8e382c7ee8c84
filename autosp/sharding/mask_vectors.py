"""Puts the vectors of a factored mask into the program: ``[B or 1, length]`` each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from autosp.graph import shape_of
from autosp.sharding.mask_expression import (
    BATCH,
    Apply,
    Expression,
    Index,
    Number,
    Read,
    Unfactored,
    constant_tensor,
    variables,
)
from autosp.sizes import is_symbolic, key_of, same_size

aten = torch.ops.aten


@dataclass(slots=True)
class VectorWriter:
    """Emits vectors along one side of a mask, before the node that reads them."""

    graph: Graph
    site: Node
    dim: int
    """:data:`QUERY` or :data:`KEY`."""
    length: int
    batch: int
    _written: dict[Expression, Node] = field(default_factory=dict)

    def vector(self, expression: Expression) -> Node:
        """``[B or 1, length]``."""
        node = self._write(expression)
        shape = shape_of(node)
        if len(shape) == 2 and same_size(shape[1], self.length):
            return node
        rows = shape[0] if len(shape) == 2 else 1
        return self._emit(aten.expand.default, node, [rows, self.length])

    def _write(self, expression: Expression) -> Node:
        """As :meth:`vector`, but ``[B or 1, 1]`` or without dims where it is all the same."""
        if expression not in self._written:
            match expression:
                case Index():
                    node = self._affine(expression)
                case Number():
                    size = list(constant_tensor(expression).shape) * 2
                    node = self._emit_new(aten.full.default, size, expression)
                case Read():
                    node = self._read(expression)
                case Apply(target, args, kwargs):
                    node = self._emit(target, *map(self._argument, args), **dict(kwargs))
            self._written[expression] = node
        return self._written[expression]

    def _argument(self, value: Any) -> Any:
        return self._write(value) if isinstance(value, Expression) else value

    def _affine(self, expression: Index) -> Node:
        """``constant + slope * position``, and the batch row where it counts."""
        slopes, total = expression.affine.slopes, None
        for dim, slope in slopes.items():
            term = self._positions(dim, expression.dtype)
            if slope != 1:
                term = self._emit(aten.mul.Scalar, term, slope)
            total = term if total is None else self._emit(aten.add.Tensor, total, term)
        constant = expression.affine.constant
        if total is None:
            number = Number(constant, expression.dtype)
            return self._emit_new(aten.full.default, [1, 1], number)
        return self._emit(aten.add.Scalar, total, constant) if constant else total

    def _positions(self, dim: int, dtype: torch.dtype) -> Node:
        rows = self.batch if dim == BATCH else self.length
        options = {"dtype": dtype, "device": self._device}
        node = self._create(aten.arange.default, (rows,), options)
        return self._emit(aten.unsqueeze.default, node, 1 if dim == BATCH else 0)

    def _read(self, expression: Read) -> Node:
        node, shape = expression.node, shape_of(expression.node)
        if not shape:
            return node
        if self._is_plain(expression):
            rows = [
                size for size, i in zip(shape, expression.indices, strict=True) if _is(i, BATCH)
            ]
            columns = [
                size for size, i in zip(shape, expression.indices, strict=True) if _is(i, self.dim)
            ]
            wanted = [*(rows or [1]), *(columns or [1])]
            if len(shape) == 2 and len(rows) == len(columns) == 1:
                return node
            return self._emit(aten.reshape.default, node, wanted)
        if any(is_symbolic(size) for size in shape) and not variables(expression) <= {self.dim}:
            raise Unfactored("rows of data at a length that stays dynamic")
        return self._emit(aten.index.Tensor, node, [self._write(i) for i in expression.indices])

    def _is_plain(self, expression: Read) -> bool:
        """The tensor itself, but for dims of size 1: batch rows first, then positions."""
        wanted = [BATCH, self.dim]
        for size, i in zip(shape_of(expression.node), expression.indices, strict=True):
            if key_of(size) == 1:
                continue
            while wanted and not _is(i, wanted[0]):
                wanted.pop(0)
            if not wanted:
                return False
            expected = self.batch if wanted[0] == BATCH else self.length
            if not same_size(size, expected):
                return False
            wanted.pop(0)
        return True

    # -------------------------------------------------------------- emitting

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.site.meta["val"].device
        return device

    def _emit_new(self, target: Any, size: list[int], number: Number) -> Node:
        options = {"dtype": number.dtype, "device": self._device}
        return self._create(target, (size, number.value), options)

    def _emit(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return self._create(target, args, kwargs)

    def _create(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        with self.graph.inserting_before(self.site):
            node = self.graph.call_function(target, (), kwargs)
        node.args = args  # sizes may be expressions, which the constructor would refuse
        fakes = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        like: Any = self.site.meta["val"]
        with torch._guards.tracing(None), like.fake_mode:
            node.meta["val"] = target(*fakes, **kwargs)
        for key in ("nn_module_stack", "stack_trace"):
            if key in self.site.meta:
                node.meta[key] = self.site.meta[key]
        return node


def _is(expression: Expression, dim: int) -> bool:
    return (
        isinstance(expression, Index)
        and expression.affine.constant == 0
        and expression.affine.slopes == {dim: 1}
    )
