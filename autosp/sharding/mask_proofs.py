"""What is known of a predicate beforehand, for any data: causal, or true on the diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosp.mask_predicate import COMPARISONS, All, Compare, Not, Predicate, Some
from autosp.sharding.mask import Affine
from autosp.sharding.mask_builder import FLIPPED
from autosp.sharding.mask_expression import (
    KEY,
    QUERY,
    Expression,
    Index,
    dtype_of,
    with_query_for_key,
)

LEAST = {">=": 0, ">": 1}
"""``query - key`` at least this is what ``symbol 0`` means for integers."""


@dataclass(frozen=True, slots=True)
class MaskProofs:
    """About predicates over these vectors, for as many queries as keys."""

    queries: Sequence[Expression]
    keys: Sequence[Expression]

    def is_causal(self, predicate: Predicate) -> bool:
        """Whether it holds for no key after the query."""
        parts = predicate.parts if isinstance(predicate, All) else (predicate,)
        return any(self._bounds_keys(part) for part in parts)

    def is_exactly_causal(self, predicate: Predicate) -> bool:
        """Whether it holds for the keys up to the query, and no others."""
        found = self._difference(predicate)
        if found is None:
            return False
        symbol, offset = found
        return symbol in LEAST and offset == LEAST[symbol]

    def holds_on_diagonal(self, predicate: Predicate) -> bool:
        """Whether every query may see the key of the same number."""
        return self._on_diagonal(predicate) is True

    def _bounds_keys(self, part: Predicate) -> bool:
        found = self._difference(part)
        if found is None:
            return False
        symbol, offset = found
        return offset <= {**LEAST, "==": 0}.get(symbol, offset - 1)

    def _difference(self, part: Predicate) -> tuple[str, int] | None:
        """``symbol, offset`` of a condition that says ``query - key + offset symbol 0``."""
        if not isinstance(part, Compare):
            return None
        query, key = self.queries[part.query], self.keys[part.key]
        if not isinstance(query, Index) or not isinstance(key, Index):
            return None
        symbol, affine = part.symbol, query.affine.plus(key.affine, -1)
        if symbol in ("<=", "<"):
            symbol, affine = FLIPPED[symbol], affine.scaled(-1)
        return (symbol, affine.constant) if affine.slopes == {QUERY: 1, KEY: -1} else None

    def _on_diagonal(self, predicate: Predicate) -> bool | None:
        """None: it depends on data."""
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
    if query == key and not dtype_of(query).is_floating_point:
        return symbol in ("<=", ">=", "==")
    if isinstance(query, Index) and isinstance(key, Index):
        difference: Affine = query.affine.plus(key.affine, -1)
        if not difference.coefficients:
            return bool(COMPARISONS[symbol](difference.constant, 0))
    return None
