"""Which key a query may see, said with vectors instead of a matrix.

A predicate is a boolean combination of comparisons between a number of the query and a number
of the key. The numbers are in *vectors*: ``q0``, ``q1``, ... have one element for each query,
``k0``, ``k1``, ... one for each key. A causal mask over packed documents reads::

    q0 >= k0 and q1 == k1        q0, k0: positions;  q1, k1: numbers of documents

A vector that stands alone holds where it is not 0 (``k2``: keys that are no padding). The text
is that of a Python expression; :func:`parse` reads it and ``str`` writes it.

From the least and the largest element of each vector within a block follows whether the
predicate holds for no pair, for some or for all pairs of the block: :func:`bounds`.

Standard library only; tensors, numbers and anything else that can be compared will do.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

Side = Literal["q", "k"]

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Compare:
    """``q[query] symbol k[key]``."""

    symbol: str
    query: int
    key: int

    def __str__(self) -> str:
        return f"q{self.query} {self.symbol} k{self.key}"


@dataclass(frozen=True, slots=True)
class Holds:
    """A vector of one side that is not 0."""

    side: Side
    index: int

    def __str__(self) -> str:
        return f"{self.side}{self.index}"


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds; of no parts: always."""

    parts: tuple[Predicate, ...]

    def __str__(self) -> str:
        return " and ".join(_within(part, Some) for part in self.parts) or "True"


@dataclass(frozen=True, slots=True)
class Some:
    """One part at least holds; of no parts: never."""

    parts: tuple[Predicate, ...]

    def __str__(self) -> str:
        return " or ".join(_within(part, All) for part in self.parts) or "False"


@dataclass(frozen=True, slots=True)
class Not:
    part: Predicate

    def __str__(self) -> str:
        return f"not {_within(self.part, All, Some, Compare)}"


Predicate = Compare | Holds | All | Some | Not

ALWAYS, NEVER = All(()), Some(())


def _within(part: Predicate, *weaker: type) -> str:
    needs = isinstance(part, weaker) and not (isinstance(part, (All, Some)) and not part.parts)
    return f"({part})" if needs else str(part)


def all_of(*parts: Predicate) -> Predicate:
    """The conjunction, without parts that always hold, and of each part once."""
    flat = [p for part in parts for p in (part.parts if isinstance(part, All) else (part,))]
    if NEVER in flat:
        return NEVER
    kept = tuple(dict.fromkeys(flat))
    return kept[0] if len(kept) == 1 else All(kept)


def some_of(*parts: Predicate) -> Predicate:
    """The disjunction, without parts that never hold, and of each part once."""
    flat = [p for part in parts for p in (part.parts if isinstance(part, Some) else (part,))]
    if ALWAYS in flat:
        return ALWAYS
    kept = tuple(dict.fromkeys(flat))
    return kept[0] if len(kept) == 1 else Some(kept)


def not_(part: Predicate) -> Predicate:
    """The negation."""
    if part == ALWAYS:
        return NEVER
    if part == NEVER:
        return ALWAYS
    return part.part if isinstance(part, Not) else Not(part)


# ---------------------------------------------------------------------- text


def parse(text: str) -> Predicate:
    """The predicate that ``text`` says.

    Raises:
        ValueError: it is no predicate.
    """
    try:
        return _read(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError) as error:
        raise ValueError(f"{text!r} is no predicate over q0, q1, ... and k0, k1, ...") from error


_SYMBOLS = {
    ast.LtE: "<=",
    ast.Lt: "<",
    ast.GtE: ">=",
    ast.Gt: ">",
    ast.Eq: "==",
    ast.NotEq: "!=",
}  # fmt: skip


def _read(tree: ast.expr) -> Predicate:
    match tree:
        case ast.Constant(value=bool(value)):
            return ALWAYS if value else NEVER
        case ast.Name(id=name):
            return Holds(*_vector(name))
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return Not(_read(part))
        case ast.BoolOp(op=ast.And(), values=parts):
            return All(tuple(map(_read, parts)))
        case ast.BoolOp(values=parts):
            return Some(tuple(map(_read, parts)))
        case ast.Compare(left=ast.Name(id=left), ops=[symbol], comparators=[ast.Name(id=right)]):
            (query_side, query), (key_side, key) = _vector(left), _vector(right)
            if (query_side, key_side) == ("q", "k"):
                return Compare(_SYMBOLS[type(symbol)], query, key)
    raise ValueError(ast.dump(tree))


def _vector(name: str) -> tuple[Side, int]:
    if name[:1] == "q":
        return "q", int(name[1:])
    if name[:1] == "k":
        return "k", int(name[1:])
    raise ValueError(name)


# ---------------------------------------------------------------------- value


def evaluate(predicate: Predicate, queries: Sequence[Any], keys: Sequence[Any], always: Any) -> Any:
    """The predicate for all pairs that ``queries`` and ``keys`` span.

    Args:
        queries, keys: the vectors, shaped so that those of one side broadcast against those of
            the other.
        always: what "true" is, for all pairs.
    """
    match predicate:
        case Compare(symbol, query, key):
            return COMPARISONS[symbol](queries[query], keys[key])
        case Holds(side, index):
            return (queries if side == "q" else keys)[index] != 0
        case Not(part):
            return ~evaluate(part, queries, keys, always)
        case All(parts):
            values = [evaluate(part, queries, keys, always) for part in parts]
            return reduce(operator.and_, values, always)
        case Some(parts):
            values = [evaluate(part, queries, keys, always) for part in parts]
            return reduce(operator.or_, values) if values else ~always


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the largest element of a vector within a block, or of each block."""

    least: Any
    largest: Any


def bounds(
    predicate: Predicate, queries: Sequence[Range], keys: Sequence[Range], always: Any
) -> tuple[Any, Any]:
    """Whether the predicate holds *for all* pairs of a block, and whether it *may* for some.

    Arguments as for :func:`evaluate`, but ranges. Where an element is no number, its range is
    none either, and nothing is claimed.
    """
    match predicate:
        case Compare(symbol, query, key):
            return _comparison(symbol, queries[query], keys[key])
        case Holds(side, index):
            own = (queries if side == "q" else keys)[index]
            return (own.least > 0) | (own.largest < 0), ~((own.least == 0) & (own.largest == 0))
        case Not(part):
            surely, maybe = bounds(part, queries, keys, always)
            return ~maybe, ~surely
        case All(parts) | Some(parts):
            both = operator.and_ if isinstance(predicate, All) else operator.or_
            surely = maybe = always if isinstance(predicate, All) else ~always
            for part in parts:
                sure_of_part, maybe_of_part = bounds(part, queries, keys, always)
                surely, maybe = both(surely, sure_of_part), both(maybe, maybe_of_part)
            return surely, maybe


def _comparison(symbol: str, query: Range, key: Range) -> tuple[Any, Any]:
    match symbol:
        case "<=":
            return query.largest <= key.least, ~(query.least > key.largest)
        case "<":
            return query.largest < key.least, ~(query.least >= key.largest)
        case ">=":
            return query.least >= key.largest, ~(query.largest < key.least)
        case ">":
            return query.least > key.largest, ~(query.largest <= key.least)
        case "!=":
            surely, maybe = _comparison("==", query, key)
            return ~maybe, ~surely
        case _:
            one = (query.least == query.largest) & (key.least == key.largest)
            apart = (query.largest < key.least) | (key.largest < query.least)
            return one & (query.least == key.least), ~apart
