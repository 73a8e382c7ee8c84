"""Positions within documents count like positions within the row.

transformers finds packed documents where position ids do not go on by one::

    document = cumsum(diff(position) != 1)

Where the documents of a query and a key are the same number, every step between them is one:
``position[q] - position[k] = q - k``. Beside such an equality, comparisons of the two
positions become comparisons of the indices, whatever the positions are. So a packed mask is
known to be causal beforehand, and a window to be as wide as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Node

from autosp.graph import is_operator, shape_of, tensor_of
from autosp.mask_predicate import (
    All,
    Compare,
    Holds,
    Not,
    Predicate,
    Some,
    all_of,
    not_,
    some_of,
)
from autosp.sharding.mask import EXACT_TYPES, Affine
from autosp.sharding.mask_expression import KEY, QUERY, Apply, Expression, Index, Read
from autosp.sharding.mask_reader import MaskReader
from autosp.sharding.operation import normalise_dim

aten = torch.ops.aten

_CASTS = (aten.to.dtype, aten._to_copy.default)
_OFFSETS = {
    aten.add.Tensor: 1,
    aten.add.Scalar: 1,
    aten.sub.Tensor: -1,
    aten.sub.Scalar: -1,
}


@dataclass(slots=True)
class IndexedPositions:
    """Rewrites a predicate; ``queries`` and ``keys`` are its vectors, old and new."""

    reader: MaskReader
    queries: list[Expression]
    keys: list[Expression]
    _used: dict[str, list[int]] = field(default_factory=lambda: {"q": [], "k": []})

    def rewritten(self, predicate: Predicate) -> Predicate:
        """With indices for positions where that is the same, and without unused vectors."""
        changed = self._within(predicate, frozenset())
        result = self._renumbered(changed)
        self.queries[:] = [self.queries[i] for i in self._used["q"]]
        self.keys[:] = [self.keys[i] for i in self._used["k"]]
        return result

    def _within(self, predicate: Predicate, known: frozenset[Sides]) -> Predicate:
        """``known``: the positions of query and key that differ as their indices do."""
        match predicate:
            case All(parts):
                known |= frozenset(sides for part in parts for sides in self._documents(part))
                return all_of(*(self._within(part, known) for part in parts))
            case Some(parts):
                return some_of(*(self._within(part, known) for part in parts))
            case Not(part):
                return not_(self._within(part, known))
            case Compare(symbol, query, key):
                return self._by_index(symbol, self.queries[query], self.keys[key], known)
            case _:
                return predicate

    def _documents(self, part: Predicate) -> Iterator[Sides]:
        """The positions that an equality of document numbers ties to the indices."""
        if not isinstance(part, Compare) or part.symbol != "==":
            return
        query, key = self.queries[part.query], self.keys[part.key]
        if not isinstance(query, Read) or not isinstance(key, Read):
            return
        position = _positions_behind(query.node)
        if position is None or query.node is not key.node or not _same_but_side(query, key):
            return
        yield self.reader.read(position, query.indices), self.reader.read(position, key.indices)

    def _by_index(
        self, symbol: str, query: Expression, key: Expression, known: Iterable[Sides]
    ) -> Predicate:
        (query_base, query_offset), (key_base, key_offset) = _offset(query), _offset(key)
        if (query_base, key_base) in known:
            query = Index(Affine.of(query_offset - key_offset, {QUERY: 1}))
            key = Index(Affine.of(0, {KEY: 1}))
        return Compare(symbol, _place(self.queries, query), _place(self.keys, key))

    def _renumbered(self, predicate: Predicate) -> Predicate:
        match predicate:
            case All(parts) | Some(parts):
                return replace(predicate, parts=tuple(map(self._renumbered, parts)))
            case Not(part):
                return Not(self._renumbered(part))
            case Compare(symbol, query, key):
                return Compare(symbol, self._number("q", query), self._number("k", key))
            case Holds(side, index):
                return Holds(side, self._number(side, index))

    def _number(self, side: str, index: int) -> int:
        used = self._used[side]
        if index not in used:
            used.append(index)
        return used.index(index)


Sides = tuple[Expression, Expression]


def _place(vectors: list[Expression], vector: Expression) -> int:
    if vector not in vectors:
        vectors.append(vector)
    return vectors.index(vector)


def _positions_behind(node: Node) -> Node | None:
    """The positions of ``cumsum(diff(positions) != 1)`` along the last dim, or None."""
    if not is_operator(node, aten.cumsum.default) or not _along_last(node, node.args[1]):
        return None
    steps = _input(node)
    while is_operator(steps, *_CASTS):
        steps = _input(steps)
    if not is_operator(steps, aten.ne.Scalar) or steps.args[1] != 1:
        return None
    difference = _input(steps)
    if not is_operator(difference, aten.diff.default):
        return None
    source = _input(difference)
    order, dim, before, after = (
        difference.args[place] if len(difference.args) > place else difference.kwargs.get(name, own)
        for place, name, own in (
            (1, "n", 1),
            (2, "dim", -1),
            (3, "prepend", None),
            (4, "append", None),
        )
    )
    tensor = tensor_of(source)
    starts_there = isinstance(before, Node) and shape_of(before)[-1] == 1
    if order != 1 or after is not None or not starts_there or not _along_last(source, dim):
        return None
    return source if tensor is not None and tensor.dtype in EXACT_TYPES else None


def _along_last(node: Node, dim: object) -> bool:
    num_dims = len(shape_of(node))
    return isinstance(dim, int) and normalise_dim(dim, num_dims) == num_dims - 1


def _input(node: Node) -> Node:
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def _same_but_side(query: Read, key: Read) -> bool:
    """The same rows, the last index being that of the query and of the key themselves."""
    own, others = Index(Affine.of(0, {QUERY: 1})), Index(Affine.of(0, {KEY: 1}))
    ends = query.indices[-1] == own and key.indices[-1] == others
    return ends and query.indices[:-1] == key.indices[:-1]


def _offset(expression: Expression) -> tuple[Expression, int]:
    """``base, number`` of a vector that is ``base + number``."""
    if isinstance(expression, Apply) and expression.target in _OFFSETS:
        base, number = expression.args[:2]
        plain = isinstance(number, int) and not expression.kwargs and isinstance(base, Read)
        if plain and not isinstance(number, bool):
            return base, _OFFSETS[expression.target] * number
    return expression, 0
