"""Which part of the pairs of queries and keys a mask leaves, as far as positions alone tell.

For estimates: conditions on data count as if they held. The pairs are cut into blocks; blocks
of which all or no pairs are left are counted whole, the others are sampled at a grid of points.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from autosp.mask_predicate import (
    ALWAYS,
    NEVER,
    All,
    Compare,
    Not,
    Predicate,
    Range,
    Some,
    all_of,
    bounds,
    evaluate,
    not_,
    some_of,
)
from autosp.sharding.mask import Affine, MaskAnalysis

NUM_BLOCKS = 64
"""Blocks into which each piece of the positions is cut."""
NUM_POINTS = 16
"""Points of a block along each side."""

Line = tuple[int, int] | None
"""``constant, slope`` over the position; None for a vector of data."""


@dataclass(frozen=True, slots=True)
class MaskDensity:
    """What positions alone tell of one mask."""

    predicate: Predicate
    queries: tuple[Line, ...]
    keys: tuple[Line, ...]

    @staticmethod
    def of(
        predicate: Predicate, query_vectors: Sequence[Node], key_vectors: Sequence[Node]
    ) -> MaskDensity:
        """Of the user's program: vectors that are affine in the position are known."""
        analysis = MaskAnalysis()
        queries = tuple(_line(analysis, node) for node in query_vectors)
        keys = tuple(_line(analysis, node) for node in key_vectors)
        known = _without_data(predicate, queries, keys, wanted=True)
        return MaskDensity(known, queries, keys)

    def among(self, queries: Iterable[range], keys: Iterable[range]) -> float:
        """Of the pairs of these positions, the part that is left."""
        if self.predicate in (ALWAYS, NEVER):
            return float(self.predicate == ALWAYS)
        return _counted(self, tuple(queries), tuple(keys))


@lru_cache(maxsize=16_384)
def _counted(mask: MaskDensity, queries: tuple[range, ...], keys: tuple[range, ...]) -> float:
    with unset_fake_temporarily():
        rows, columns = _blocks(queries), _blocks(keys)
        always = torch.ones((1, 1), dtype=torch.bool)
        surely, maybe = bounds(
            mask.predicate,
            [_range(line, rows, 1) for line in mask.queries],
            [_range(line, columns, 0) for line in mask.keys],
            always,
        )
        shape = (len(rows), len(columns))
        left = surely.expand(shape).double().clone()
        unclear = (maybe & ~surely).expand(shape).nonzero()
        left[unclear[:, 0], unclear[:, 1]] = _sampled(
            mask, rows[unclear[:, 0]], columns[unclear[:, 1]]
        )
        sizes = [(blocks[:, 1] - blocks[:, 0] + 1).double() for blocks in (rows, columns)]
        return float(sizes[0] @ left @ sizes[1] / (sizes[0].sum() * sizes[1].sum()))


def _sampled(mask: MaskDensity, rows: Tensor, columns: Tensor) -> Tensor:
    """The part that is left of each of these blocks."""
    held = evaluate(
        mask.predicate,
        [_at(line, _points(rows)).unsqueeze(-1) for line in mask.queries],
        [_at(line, _points(columns)).unsqueeze(-2) for line in mask.keys],
        torch.ones((1, 1), dtype=torch.bool),
    )
    parts: Tensor = held.expand(len(rows), NUM_POINTS, NUM_POINTS).double().mean((1, 2))
    return parts


def _without_data(
    predicate: Predicate, queries: Sequence[Line], keys: Sequence[Line], *, wanted: bool
) -> Predicate:
    """Conditions on data are replaced by what leaves more pairs."""

    def inner(part: Predicate) -> Predicate:
        return _without_data(part, queries, keys, wanted=wanted)

    match predicate:
        case Compare(query=query, key=key) if queries[query] and keys[key]:
            return predicate
        case Not(part):
            return not_(_without_data(part, queries, keys, wanted=not wanted))
        case All(parts):
            return all_of(*map(inner, parts))
        case Some(parts):
            return some_of(*map(inner, parts))
        case _:
            return ALWAYS if wanted else NEVER


def _line(analysis: MaskAnalysis, node: Node) -> Line:
    meaning: Any = analysis.meaning(node)
    if not isinstance(meaning, Affine) or set(meaning.slopes) - {1}:
        return None
    return meaning.constant, meaning.slopes.get(1, 0)


def _blocks(pieces: Sequence[range]) -> Tensor:
    """First and last position of every block ``[blocks, 2]``."""
    found = []
    for piece in pieces:
        step = max(1, -(-len(piece) // NUM_BLOCKS))
        starts = range(piece.start, piece.stop, step)
        found += [(start, min(start + step, piece.stop) - 1) for start in starts]
    return torch.tensor(found)


def _at(line: Line, positions: Tensor) -> Tensor:
    constant, slope = line or (0, 0)
    return constant + slope * positions


def _range(line: Line, blocks: Tensor, dim: int) -> Range:
    ends = _at(line, blocks)
    return Range(ends.amin(1).unsqueeze(dim), ends.amax(1).unsqueeze(dim))


def _points(blocks: Tensor) -> Tensor:
    """Positions spread over each block ``[blocks, NUM_POINTS]``."""
    parts = (torch.arange(NUM_POINTS) + 0.5) / NUM_POINTS
    lengths = blocks[:, 1:] - blocks[:, :1] + 1
    return (blocks[:, :1] + lengths * parts).floor().long()
