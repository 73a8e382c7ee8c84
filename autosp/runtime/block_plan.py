"""Which blocks of queries and keys a mask leaves anything of, found from O(S) vectors.

The least and largest elements of each block of the vectors tell for most pairs of blocks that
all of their pairs are masked (nothing to compute) or none (a fused kernel without a mask).
Of the rest the mask itself is looked at, one block at a time, never all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autosp.mask_predicate import ALWAYS, Predicate, Range, bounds, evaluate

BLOCK_ROWS = 512
"""Queries and keys of a block: its scores are 1 MiB per head in float32."""


@dataclass(frozen=True, slots=True)
class MaskedBlock:
    """Queries ``query`` with keys ``key``; ``allowed`` says which pairs count.

    ``allowed`` is boolean ``[B or 1, queries, keys]``, or None where all do; where
    ``is_causal``, the pairs on and below the diagonal, which starts at the first of both.
    """

    query: slice
    key: slice
    allowed: Tensor | None = None
    is_causal: bool = False


def plan_blocks(
    predicate: Predicate,
    query_vectors: Sequence[Tensor],
    key_vectors: Sequence[Tensor],
    num_queries: int,
    num_keys: int,
    rows: int = BLOCK_ROWS,
    *,
    is_fused: bool = True,
) -> Iterator[MaskedBlock]:
    """The blocks to compute, in the order of their queries.

    Args:
        query_vectors, key_vectors: ``[B or 1, num_queries]`` and ``[B or 1, num_keys]``. A block
            is left out if it is masked in all batch rows.
        rows: of a block.
        is_fused: a kernel takes the blocks of which everything counts, however large, so that
            they are joined. Else the scores of a block exist, and all blocks are of ``rows``.
    """
    vectors = (*query_vectors, *key_vectors)
    if not vectors:
        if predicate == ALWAYS:
            yield from _whole_blocks(num_queries, num_keys, None if is_fused else rows)
        return
    shape = (-(-num_queries // rows), -(-num_keys // rows))
    surely, maybe = _verdicts(predicate, query_vectors, key_vectors, shape, rows)
    window = _Window(predicate, query_vectors, key_vectors, num_queries, num_keys, rows)
    if is_fused and num_queries == num_keys and _looks_causal(surely, maybe):
        diagonal = (window.block(row, row, row + 1) for row in range(surely.shape[0]))
        if all(block is not None and block.is_causal for block in diagonal):
            yield MaskedBlock(slice(0, num_queries), slice(0, num_keys), is_causal=True)
            return
    for row, (whole, some) in enumerate(zip(surely.tolist(), maybe.tolist(), strict=True)):
        for start, end, is_whole in _runs(whole, some, is_joined=is_fused):
            block = window.whole(row, start, end) if is_whole else window.block(row, start, end)
            if block is not None:
                yield block


def _verdicts(
    predicate: Predicate,
    query_vectors: Sequence[Tensor],
    key_vectors: Sequence[Tensor],
    shape: tuple[int, int],
    rows: int,
) -> tuple[Tensor, Tensor]:
    """Of every pair of blocks: whether all pairs count, and whether some may."""
    queries = [_ranges(vector, rows, -1) for vector in query_vectors]
    keys = [_ranges(vector, rows, -2) for vector in key_vectors]
    surely, maybe = bounds(predicate, queries, keys, _true((*query_vectors, *key_vectors)[0]))
    return surely.all(0).expand(shape), maybe.any(0).expand(shape)


def _ranges(vector: Tensor, rows: int, dim: int) -> Range:
    """Of each block; the vector's blocks lie along the dim of queries or of keys."""
    missing = -vector.shape[-1] % rows
    if missing:
        vector = torch.cat([vector, vector[:, -1:].expand(-1, missing)], -1)
    blocks = vector.reshape(vector.shape[0], -1, rows)
    return Range(blocks.amin(-1).unsqueeze(dim), blocks.amax(-1).unsqueeze(dim))


def _looks_causal(surely: Tensor, maybe: Tensor) -> bool:
    if surely.shape[0] != surely.shape[1]:
        return False
    lower = torch.ones_like(surely).tril()
    return torch.equal(maybe, lower) and bool((surely >= lower.tril(-1)).all())


def _whole_blocks(num_queries: int, num_keys: int, rows: int | None) -> Iterator[MaskedBlock]:
    """All queries with all keys, in one block or in blocks of ``rows``."""
    for start in range(0, num_queries, rows or num_queries):
        query = slice(start, min(start + (rows or num_queries), num_queries))
        for first in range(0, num_keys, rows or num_keys):
            yield MaskedBlock(query, slice(first, min(first + (rows or num_keys), num_keys)))


def _runs(
    whole: list[bool], some: list[bool], *, is_joined: bool
) -> Iterator[tuple[int, int, bool]]:
    """Blocks of keys ``start`` to ``end``: those of which everything counts may be joined."""
    start = 0
    while start < len(some):
        end = start + 1
        if whole[start] and is_joined:
            while end < len(whole) and whole[end]:
                end += 1
        if some[start]:
            yield start, end, whole[start]
        start = end


@dataclass(frozen=True, slots=True)
class _Window:
    """Cuts blocks out of the vectors."""

    predicate: Predicate
    query_vectors: Sequence[Tensor]
    key_vectors: Sequence[Tensor]
    num_queries: int
    num_keys: int
    rows: int

    def whole(self, row: int, start: int, end: int) -> MaskedBlock:
        query = slice(row * self.rows, min((row + 1) * self.rows, self.num_queries))
        return MaskedBlock(query, slice(start * self.rows, min(end * self.rows, self.num_keys)))

    def block(self, row: int, start: int, end: int) -> MaskedBlock | None:
        """With its mask, if it needs one; None if it masks everything."""
        plain = self.whole(row, start, end)
        allowed = allowed_pairs(
            self.predicate,
            [vector[:, plain.query] for vector in self.query_vectors],
            [vector[:, plain.key] for vector in self.key_vectors],
        )
        shape = (plain.query.stop - plain.query.start, plain.key.stop - plain.key.start)
        allowed = allowed.expand(-1, *shape)
        if shape[0] == shape[1] and torch.equal(allowed, allowed.new_ones(allowed.shape).tril()):
            return MaskedBlock(plain.query, plain.key, is_causal=True)
        if bool(allowed.all()):
            return plain
        if not bool(allowed.any()):
            return None
        return MaskedBlock(plain.query, plain.key, allowed)


def allowed_pairs(
    predicate: Predicate, query_vectors: Sequence[Tensor], key_vectors: Sequence[Tensor]
) -> Tensor:
    """The mask itself, boolean ``[B or 1, queries or 1, keys or 1]``."""
    queries = [vector.unsqueeze(-1) for vector in query_vectors]
    keys = [vector.unsqueeze(-2) for vector in key_vectors]
    always = _true((*query_vectors, *key_vectors)[0])
    result: Tensor = evaluate(predicate, queries, keys, always)
    return result


def _true(like: Tensor) -> Tensor:
    return torch.ones((1, 1, 1), dtype=torch.bool, device=like.device)
