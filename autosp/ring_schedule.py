"""Which block of keys a rank of a ring meets at each step, and what of it is masked.

Standard library only. ``n`` ranks pass their blocks of keys and values on, from rank ``r`` to
``r + 1``: at step ``s`` rank ``r`` meets the block of rank ``(r - s) mod n``. The queries stay.

Under a causal mask only keys at or before a query count. In ``contiguous`` order rank ``r``
holds rows ``r`` of ``n`` equal blocks, sees ``r + 1`` blocks and skips the others: the last rank
works twice as much as the mean. In ``zigzag`` order (Brandon et al. 2023, Striped Attention,
arXiv:2311.09431, and the Llama 3 report, arXiv:2407.21783, section 3.3.2, balance in this way)
it holds chunks ``r`` and ``2n - 1 - r`` of ``2n``. Of a block of a lower rank every query sees
the first chunk and none the second; of a higher rank's block the second half of the queries
sees all and the first half nothing. Both are half a block: all ranks work the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosp.placement import BlockOrder, first_chunk_and_last


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries from row ``query_start`` to the end against keys ``0`` to ``key_end``.

    Rows count within what a rank holds, and within the block.
    """

    query_start: int
    num_queries: int
    key_end: int
    is_causal: bool = False

    @property
    def num_scores(self) -> int:
        """Pairs of a query and a key that are not masked."""
        if self.is_causal:
            return self.num_queries * (self.num_queries + 1) // 2
        return self.num_queries * self.key_end


@dataclass(frozen=True, slots=True)
class RingSchedule:
    """The tiles of one rank.

    ``query_rows`` and ``key_rows`` are what each rank holds, padding included;
    ``key_length`` counts the keys of all ranks without padding, which is at their end.
    Causal: queries and keys are the same tokens.
    """

    rank: int
    size: int
    query_rows: int
    key_rows: int
    key_length: int
    is_causal: bool
    order: BlockOrder = "contiguous"

    @property
    def num_pieces(self) -> int:
        """Parts of the queries that take part in different tiles."""
        return 2 if self.is_causal and self.order == "zigzag" else 1

    def source(self, step: int) -> int:
        """The rank whose block this rank meets at ``step``."""
        return (self.rank - step) % self.size

    def tile(self, step: int) -> Tile | None:
        """What this rank computes at ``step``; None if every pair is masked."""
        source = self.source(step)
        if not self.is_causal:
            valid = self._valid_rows(source)
            return Tile(0, self.query_rows, valid) if valid else None
        if source == self.rank:
            return Tile(0, self.query_rows, self.key_rows, is_causal=True)
        if self.order == "contiguous":
            return Tile(0, self.query_rows, self.key_rows) if source < self.rank else None
        half = self.query_rows // 2
        if source < self.rank:
            return Tile(0, self.query_rows, half)
        return Tile(half, half, self.key_rows)

    @property
    def num_scores(self) -> int:
        """Pairs of a query and a key that this rank computes in one forward and head."""
        tiles = (self.tile(step) for step in range(self.size))
        return sum(tile.num_scores for tile in tiles if tile is not None)

    def work_of_ranks(self) -> list[int]:
        """:attr:`num_scores` of every rank of the ring."""
        return [replace(self, rank=rank).num_scores for rank in range(self.size)]

    def in_order(self, order: BlockOrder) -> RingSchedule:
        """The same rows dealt out in another order."""
        return replace(self, order=order)

    def _valid_rows(self, rank: int) -> int:
        """Rows of a rank's block that are not padding; they come first."""
        if self.order == "contiguous":
            return min(max(self.key_length - rank * self.key_rows, 0), self.key_rows)
        chunk = self.key_rows // 2
        return sum(
            min(max(self.key_length - index * chunk, 0), chunk)
            for index in first_chunk_and_last(rank, self.size)
        )
