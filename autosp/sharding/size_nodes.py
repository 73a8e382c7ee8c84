"""Nodes that compute sizes from the lengths of the inputs when the program runs."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx import Graph, Node
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

NAME = "size"

OPERATIONS: dict[Any, Any] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    FloorDiv: operator.floordiv,
    Mod: operator.mod,
    PythonMod: operator.mod,
    Max: torch.sym_max,
    Min: torch.sym_min,
}
"""Expression -> what computes it, two operands at a time."""


def size_node(graph: Graph, size: torch.SymInt, known: Mapping[Any, Node]) -> Node:
    """Append the nodes that compute ``size``.

    Args:
        known: expression -> node, at least for every input length in ``size``.

    Raises:
        NotImplementedError: an expression that has no operator.
    """
    build = _Build(graph, known, size)
    node = build.of(size.node.expr)
    assert isinstance(node, Node), size
    return node


class _Build:
    def __init__(self, graph: Graph, known: Mapping[Any, Node], size: torch.SymInt) -> None:
        self._graph, self._known, self._like = graph, known, size

    def of(self, expression: Any) -> Node | int:
        if expression.is_Integer:
            return int(expression)
        found = self._known.get(expression.expand())
        if found is not None:
            return found
        operation = OPERATIONS.get(expression.func)
        if operation is None:
            raise NotImplementedError(f"no operator computes the size {expression}")
        terms = [self.of(term) for term in expression.args]
        result = terms[0]
        for term in terms[1:]:
            result = self._emit(operation, result, term)
        return result

    def _emit(self, operation: Any, left: Node | int, right: Node | int) -> Node:
        node = self._graph.call_function(operation, (left, right), name=NAME)
        node.meta["val"] = operation(*map(_value, (left, right)))
        return node


def _value(operand: Node | int) -> Any:
    return operand.meta["val"] if isinstance(operand, Node) else operand
