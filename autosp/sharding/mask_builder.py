"""Builds the predicate of a mask from the expression of one element, and its vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from autosp.mask_predicate import (
    ALWAYS,
    COMPARISONS,
    NEVER,
    Compare,
    Holds,
    Predicate,
    all_of,
    not_,
    some_of,
)
from autosp.sharding.mask_expression import (
    HEAD,
    KEY,
    QUERY,
    Apply,
    Expression,
    Index,
    Number,
    Unfactored,
    constant_tensor,
    dtype_of,
    variables,
)
from autosp.sharding.mask_sides import minus, separated, without_offset

aten = torch.ops.aten

MOST_VALUES = 16
"""So many different numbers may a floating mask add before it is given up."""

_ANDS = (aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default, aten.mul.Tensor)
_ORS = (aten.__or__.Tensor, aten.bitwise_or.Tensor, aten.logical_or.default)
_XORS = (aten.__xor__.Tensor, aten.bitwise_xor.Tensor, aten.logical_xor.default)
_NOTS = (aten.bitwise_not.default, aten.logical_not.default)
_WHERES = (
    aten.where.self,
    aten.where.ScalarOther,
    aten.where.ScalarSelf,
    aten.where.Scalar,
)
_FILLS = (aten.masked_fill.Scalar, aten.masked_fill.Tensor)
_SYMBOLS: dict[Any, str] = {
    getattr(getattr(aten, name), overload): symbol
    for name, symbol in (
        ("le", "<="), ("lt", "<"), ("ge", ">="), ("gt", ">"), ("eq", "=="), ("ne", "!="),
    )
    for overload in ("Tensor", "Scalar")
}  # fmt: skip
FLIPPED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}

Value = bool | int | float


@dataclass(slots=True)
class PredicateBuilder:
    """Collects the vectors of a predicate."""

    queries: list[Expression] = field(default_factory=list)
    keys: list[Expression] = field(default_factory=list)

    # -------------------------------------------------------------- booleans

    def truth(self, element: Any) -> Predicate:
        """Where a boolean is true, or a number not 0."""
        if isinstance(element, (bool, int, float)):
            return ALWAYS if element else NEVER
        if isinstance(element, Number):
            return ALWAYS if element.value else NEVER
        found = variables(element)
        if HEAD in found:
            raise Unfactored("it differs from head to head")
        if KEY not in found:
            return Holds("q", self._query(element))
        if QUERY not in found:
            return Holds("k", self._key(element))
        if isinstance(element, Apply) and element.dtype == torch.bool:
            return self._operator(element)
        if dtype_of(element) != torch.bool:
            return self._comparison("!=", element, 0)
        raise Unfactored(_text(element))

    def _operator(self, element: Apply) -> Predicate:
        target, args = element.target, element.args
        if target in _SYMBOLS:
            return self._comparison(_SYMBOLS[target], *args[:2])
        booleans = all(dtype_of(a) == torch.bool for a in args)
        if target in _ANDS and (booleans or target is aten.logical_and.default):
            return all_of(*map(self.truth, args))
        if target in _ORS and (booleans or target is aten.logical_or.default):
            return some_of(*map(self.truth, args))
        if target in _XORS and (booleans or target is aten.logical_xor.default):
            return _differ(*map(self.truth, args))
        if target in _NOTS and (booleans or target is aten.logical_not.default):
            return not_(self.truth(args[0]))
        if target in _WHERES:
            return _chosen(*map(self.truth, args))
        if target in _FILLS:
            return _chosen(self.truth(args[1]), self.truth(args[2]), self.truth(args[0]))
        if target is aten._to_copy.default:
            return self.truth(args[0])
        raise Unfactored(_text(element))

    # -------------------------------------------------------------- comparisons

    def _comparison(self, symbol: str, left: Any, right: Any) -> Predicate:
        if dtype_of(left) == dtype_of(right) == torch.bool and symbol in ("==", "!="):
            differ = _differ(self.truth(left), self.truth(right))
            return differ if symbol == "!=" else not_(differ)
        if isinstance(left, Apply) and left.target is aten.abs.default:
            return self._distance(symbol, left.args[0], right)
        for number, other, own in ((left, right, FLIPPED[symbol]), (right, left, symbol)):
            if isinstance(number, (bool, int, float, Number)) and (
                (found := self._against_a_number(own, other, number)) is not None
            ):
                return found
        if {QUERY, KEY} - variables(left) == {KEY} and {QUERY, KEY} - variables(right) == {QUERY}:
            return self._compare(symbol, left, right)
        if {QUERY, KEY} - variables(left) == {QUERY} and {QUERY, KEY} - variables(right) == {KEY}:
            return self._compare(FLIPPED[symbol], right, left)
        of_left, of_right = separated(left), separated(right)
        if of_left is None or of_right is None:
            raise Unfactored(f"{_text(left)} {symbol} {_text(right)}")
        (left_query, left_key), (right_query, right_key) = of_left, of_right
        return self._compare(symbol, minus(left_query, right_query), minus(right_key, left_key))

    def _distance(self, symbol: str, inner: Any, limit: Any) -> Predicate:
        negative = Apply(aten.neg.default, (inner,), (), dtype_of(inner))
        if isinstance(inner, Index):
            negative = Index(inner.affine.scaled(-1), inner.dtype)  # type: ignore[assignment]
        both = [self._comparison(symbol, part, limit) for part in (inner, negative)]
        if symbol in ("<=", "<"):
            return all_of(*both)
        if symbol in (">=", ">"):
            return some_of(*both)
        raise Unfactored("the distance of a query and a key is compared for equality")

    def _against_a_number(self, symbol: str, other: Any, number: Any) -> Predicate | None:
        """A comparison with a number, where the other side has few values."""
        if not isinstance(other, Apply) or separated(other) is not None:
            return None
        value = number.value if isinstance(number, Number) else number
        return some_of(
            *(condition for condition, own in self.values(other) if COMPARISONS[symbol](own, value))
        )

    def _compare(self, symbol: str, query: Expression, key: Expression) -> Predicate:
        if HEAD in variables(query) | variables(key):
            raise Unfactored("it differs from head to head")
        if isinstance(query, Index) and isinstance(key, Index):
            free = not (variables(query) | variables(key))
            if free:
                holds = COMPARISONS[symbol](query.affine.constant, key.affine.constant)
                return ALWAYS if holds else NEVER
            if query.affine.slopes.get(QUERY, 0) < 0:
                query, key = Index(query.affine.scaled(-1)), Index(key.affine.scaled(-1))
                symbol = FLIPPED[symbol]
            query, key = without_offset(query, key)
        return Compare(symbol, self._query(query), self._key(key))

    def _query(self, vector: Expression) -> int:
        return _position(self.queries, vector)

    def _key(self, vector: Expression) -> int:
        return _position(self.keys, vector)

    # -------------------------------------------------------------- few values

    def values(self, element: Any) -> list[tuple[Predicate, Value]]:
        """The numbers that an element can be, and where it is which."""
        return _collected(self._values(element))

    def _values(self, element: Any) -> list[tuple[Predicate, Value]]:
        if isinstance(element, (bool, int, float)):
            return [(ALWAYS, element)]
        if isinstance(element, Number):
            return [(ALWAYS, element.value)]
        if dtype_of(element) == torch.bool:
            holds = self.truth(element)
            return [(holds, True), (not_(holds), False)]
        if isinstance(element, Index):
            raise Unfactored("it adds numbers that grow with the positions")
        if not isinstance(element, Apply):
            raise Unfactored(f"it adds numbers that are data: {_text(element)}")
        if element.target in _WHERES:
            return self._either(*element.args)
        if element.target in _FILLS:
            kept, condition, filled = element.args
            return self._either(condition, filled, kept)
        return self._computed(element)

    def _either(self, condition: Any, then: Any, otherwise: Any) -> list[tuple[Predicate, Value]]:
        holds = self.truth(condition)
        return [(all_of(holds, where), value) for where, value in self.values(then)] + [
            (all_of(not_(holds), where), value) for where, value in self.values(otherwise)
        ]

    def _computed(self, element: Apply) -> list[tuple[Predicate, Value]]:
        """An operator on each combination of what its operands can be."""
        combinations: list[tuple[Predicate, tuple[Any, ...]]] = [(ALWAYS, ())]
        for argument in element.args:
            if isinstance(argument, Expression):
                own = [(w, _like(argument, value)) for w, value in self.values(argument)]
            else:
                own = [(ALWAYS, argument)]
            combinations = [
                (all_of(where, here), (*before, value))
                for where, before in combinations
                for here, value in own
            ]
            if len(combinations) > MOST_VALUES:
                raise Unfactored("it adds too many different numbers")
        return [(where, _evaluated(element, args)) for where, args in combinations]


def _position(vectors: list[Expression], vector: Expression) -> int:
    if vector not in vectors:
        vectors.append(vector)
    return vectors.index(vector)


def _differ(left: Predicate, right: Predicate) -> Predicate:
    return some_of(all_of(left, not_(right)), all_of(not_(left), right))


def _chosen(condition: Predicate, then: Predicate, otherwise: Predicate) -> Predicate:
    return some_of(all_of(condition, then), all_of(not_(condition), otherwise))


def _collected(values: list[tuple[Predicate, Value]]) -> list[tuple[Predicate, Value]]:
    """Each number once, with all places where it is."""
    places: dict[Value, list[Predicate]] = {}
    for where, value in values:
        if where != NEVER:
            places.setdefault(value, []).append(where)
    return [(some_of(*where), value) for value, where in places.items()]


def _like(original: Expression, value: Value) -> Number:
    is_scalar = isinstance(original, Number) and original.is_scalar
    return Number(value, dtype_of(original), is_scalar)


def _evaluated(element: Apply, args: tuple[Any, ...]) -> Value:
    """The operator on real numbers, in the types it has."""
    with unset_fake_temporarily():
        real = [constant_tensor(a) if isinstance(a, Number) else a for a in args]
        result: torch.Tensor = element.target(*real, **dict(element.kwargs))
        value: Value = result.to(element.dtype).item()
        return value


def _text(element: Any) -> str:
    if isinstance(element, Apply):
        name = str(element.target).removeprefix("aten.")
        return f"{name} of what depends on query and key"
    return str(getattr(element, "node", element))
