"""A mask as a predicate over vectors of the queries and of the keys.

The expression of one element (:mod:`autosp.sharding.mask_expression`) is taken apart: what
depends on the query alone, or on the key alone, is a vector; comparisons of both sides, and
boolean operators between them, make the predicate (:mod:`autosp.mask_predicate`). Integers that
mix both sides are sorted: ``q - k < w`` becomes ``q - w < k``. A floating mask must add 0, or a
number that leaves nothing of a probability, at every place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from autosp.graph import shape_of, tensor_of
from autosp.mask_predicate import (
    ALWAYS,
    COMPARISONS,
    NEVER,
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
from autosp.sharding.mask_expression import (
    BATCH,
    HEAD,
    KEY,
    QUERY,
    Apply,
    Expression,
    Index,
    MaskReader,
    Number,
    Unfactored,
    constant_tensor,
    fixed,
    variable,
    variables,
    with_query_for_key,
)
from autosp.sizes import same_size

aten = torch.ops.aten

MOST_VALUES = 16
"""So many different numbers may a floating mask add before it is given up."""

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
    reader = MaskReader((num_queries, num_keys))
    at = tuple(map(variable, (BATCH, HEAD, QUERY, KEY)))
    if len(shape) > len(at):
        raise Unfactored(f"a mask of {len(shape)} dims")
    element = reader.broadcast(mask, at)
    builder = _Builder()
    if tensor.dtype == torch.bool:
        predicate = builder.truth(element)
    else:
        predicate = _where_zero_is_added(builder, element, same_size(num_queries, num_keys))
    is_causal = any(builder.bounds_keys(part) for part in _conjuncts(predicate))
    square = same_size(num_queries, num_keys)
    return FactoredMask(
        predicate,
        tuple(builder.queries),
        tuple(builder.keys),
        is_causal and square,
        square and builder.is_diagonal(predicate),
    )


def _conjuncts(predicate: Predicate) -> tuple[Predicate, ...]:
    return predicate.parts if isinstance(predicate, All) else (predicate,)


def _where_zero_is_added(builder: _Builder, element: Expression, square: bool) -> Predicate:
    values = builder.values(element)
    allowed = some_of(*(condition for condition, value in values if value == 0))
    others = [value for _, value in values if value != 0]
    too_small = [value for value in others if value > LARGE_PENALTY or math.isnan(value)]
    if too_small:
        raise Unfactored(f"it adds {too_small[0]:g} to scores")
    finite = [value for value in others if value > -math.inf]
    if finite and not (square and builder.holds_on_diagonal(allowed)):
        raise Unfactored(
            f"it adds {finite[0]:g}, and a query may be left without any key: its probabilities "
            "would be those of all keys; minus infinity, or a boolean mask, has no such case"
        )
    return allowed


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
_FLIPPED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}

Value = bool | int | float


@dataclass(slots=True)
class _Builder:
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
        if _dtype(element) != torch.bool:
            return self._comparison("!=", element, 0)
        raise Unfactored(_text(element))

    def _operator(self, element: Apply) -> Predicate:
        target, args = element.target, element.args
        if target in _SYMBOLS:
            return self._comparison(_SYMBOLS[target], *args[:2])
        booleans = all(_dtype(a) == torch.bool for a in args)
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
        if _dtype(left) == _dtype(right) == torch.bool and symbol in ("==", "!="):
            differ = _differ(self.truth(left), self.truth(right))
            return differ if symbol == "!=" else not_(differ)
        if isinstance(left, Apply) and left.target is aten.abs.default:
            return self._distance(symbol, left.args[0], right)
        for number, other, own in ((left, right, _FLIPPED[symbol]), (right, left, symbol)):
            if isinstance(number, (bool, int, float, Number)) and (
                (found := self._against_a_number(own, other, number)) is not None
            ):
                return found
        if {QUERY, KEY} - variables(left) == {KEY} and {QUERY, KEY} - variables(right) == {QUERY}:
            return self._compare(symbol, left, right)
        if {QUERY, KEY} - variables(left) == {QUERY} and {QUERY, KEY} - variables(right) == {KEY}:
            return self._compare(_FLIPPED[symbol], right, left)
        of_left, of_right = _separated(left), _separated(right)
        if of_left is None or of_right is None:
            raise Unfactored(f"{_text(left)} {symbol} {_text(right)}")
        (left_query, left_key), (right_query, right_key) = of_left, of_right
        return self._compare(symbol, _minus(left_query, right_query), _minus(right_key, left_key))

    def _distance(self, symbol: str, inner: Any, limit: Any) -> Predicate:
        negative = Apply(aten.neg.default, (inner,), (), _dtype(inner))
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
        if not isinstance(other, Apply) or _separated(other) is not None:
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
                symbol = _FLIPPED[symbol]
            query, key = _without_offset(query, key)
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
        if _dtype(element) == torch.bool:
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

    # -------------------------------------------------------------- proofs

    def bounds_keys(self, part: Predicate) -> bool:
        """Whether a condition holds only for keys up to the query."""
        difference = self._difference(part)
        if difference is None:
            return False
        symbol, affine = difference  # affine = query - key
        if affine.slopes != {QUERY: 1, KEY: -1}:
            return False
        least = {">=": 0, ">": 1, "==": 0}.get(symbol)  # q - k + constant >= least
        return least is not None and affine.constant <= least

    def is_diagonal(self, predicate: Predicate) -> bool:
        """Whether it is the causal mask, exactly."""
        difference = self._difference(predicate)
        if difference is None:
            return False
        symbol, affine = difference
        least = {">=": 0, ">": 1}.get(symbol)
        return affine.slopes == {QUERY: 1, KEY: -1} and affine.constant == least

    def _difference(self, part: Predicate) -> tuple[str, Affine] | None:
        if not isinstance(part, Compare):
            return None
        query, key = self.queries[part.query], self.keys[part.key]
        if not isinstance(query, Index) or not isinstance(key, Index):
            return None
        if part.symbol in ("<=", "<"):
            return _FLIPPED[part.symbol], key.affine.plus(query.affine, -1)
        return part.symbol, query.affine.plus(key.affine, -1)

    def holds_on_diagonal(self, predicate: Predicate) -> bool:
        """Whether every query may see the key of the same number, whatever the data are."""
        return self._on_diagonal(predicate) is True

    def _on_diagonal(self, predicate: Predicate) -> bool | None:
        match predicate:
            case All(parts):
                own = [self._on_diagonal(part) for part in parts]
                return False if False in own else None if None in own else True
            case Some(parts):
                own = [self._on_diagonal(part) for part in parts]
                return True if True in own else None if None in own else False
            case Not(part):
                inner = self._on_diagonal(part)
                return None if inner is None else not inner
            case Compare(symbol, query, key):
                return _same_row(symbol, self.queries[query], with_query_for_key(self.keys[key]))
            case _:
                return None


def _same_row(symbol: str, query: Expression, key: Expression) -> bool | None:
    if query == key and not _dtype(query).is_floating_point:
        return symbol in ("<=", ">=", "==")
    if isinstance(query, Index) and isinstance(key, Index):
        difference = query.affine.plus(key.affine, -1)
        if not difference.coefficients:
            return bool(COMPARISONS[symbol](difference.constant, 0))
    return None


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
    return Number(value, _dtype(original), is_scalar)


def _evaluated(element: Apply, args: tuple[Any, ...]) -> Value:
    """The operator on real numbers, in the types it has."""
    with unset_fake_temporarily():
        real = [constant_tensor(a) if isinstance(a, Number) else a for a in args]
        result: torch.Tensor = element.target(*real, **dict(element.kwargs))
        value: Value = result.to(element.dtype).item()
        return value


def _dtype(element: Any) -> torch.dtype:
    if isinstance(element, bool):
        return torch.bool
    if isinstance(element, int):
        return torch.int64
    if isinstance(element, float):
        return torch.float64
    dtype: torch.dtype = element.dtype
    return dtype


def _text(element: Any) -> str:
    if isinstance(element, Apply):
        name = str(element.target).removeprefix("aten.")
        return f"{name} of what depends on query and key"
    return str(getattr(element, "node", element))


# ------------------------------------------------------------------ integers of both sides

Sides = tuple[Expression, Expression]


def _separated(element: Any) -> Sides | None:
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
    sides = [_separated(argument) for argument in element.args[:2]]
    parts = [side for side in sides if side is not None]
    if len(parts) != len(sides):
        return None
    if len(parts) == 1:
        parts.insert(0, (fixed(0), fixed(0)))
    (left_query, left_key), (right_query, right_key) = parts
    return combine(left_query, right_query), combine(left_key, right_key)


def _plus(left: Expression, right: Expression) -> Expression:
    if isinstance(left, Index) and isinstance(right, Index):
        return Index(left.affine.plus(right.affine))
    if left == fixed(0):
        return right
    if right == fixed(0):
        return left
    return Apply(aten.add.Tensor, (left, right), (), torch.int64)


def _minus(left: Expression, right: Expression) -> Expression:
    if isinstance(left, Index) and isinstance(right, Index):
        return Index(left.affine.plus(right.affine, -1))
    if right == fixed(0):
        return left
    return Apply(aten.sub.Tensor, (left, right), (), torch.int64)


_SUMS: dict[Any, Callable[[Expression, Expression], Expression]] = {
    aten.add.Tensor: _plus,
    aten.add.Scalar: _plus,
    aten.sub.Tensor: _minus,
    aten.sub.Scalar: _minus,
    aten.rsub.Scalar: lambda left, right: _minus(right, left),
    aten.rsub.Tensor: lambda left, right: _minus(right, left),
    aten.neg.default: _minus,
}


def _without_offset(query: Index, key: Index) -> tuple[Index, Index]:
    """Constants on the query's side, so that different conditions share the key's vector."""
    offset = Affine(key.affine.constant)
    return Index(query.affine.plus(offset, -1)), Index(key.affine.plus(offset, -1))
