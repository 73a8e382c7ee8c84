"""Which KV heads the query heads of a rank read. Standard library only.

Query head ``h`` of ``H`` reads KV head ``h * Hkv // H``; of ``P`` ranks that share the query
heads out, rank ``r`` has heads ``r H/P`` to ``(r + 1) H/P``. With 24 query and 8 KV heads on 12
ranks the first rank needs one KV head and the second two.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadMap:
    """``num_heads`` is a multiple of ``num_kv_heads`` and of ``num_ranks``."""

    num_heads: int
    num_kv_heads: int
    num_ranks: int

    @property
    def queries_per_rank(self) -> int:
        return self.num_heads // self.num_ranks

    @property
    def group_size(self) -> int:
        """Query heads that read one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def is_even(self) -> bool:
        """Whether no KV head is read by some query heads of a rank that has others, too."""
        heads, ranks = self.num_kv_heads, self.num_ranks
        return heads % ranks == 0 or ranks % heads == 0

    def needed_by(self, rank: int) -> range:
        """The KV heads that a rank's query heads read: consecutive ones."""
        first = rank * self.queries_per_rank
        last = first + self.queries_per_rank - 1
        return range(first // self.group_size, last // self.group_size + 1)

    @property
    def num_sent(self) -> int:
        """KV heads that all ranks need together: those of several ranks count several times."""
        return sum(len(self.needed_by(rank)) for rank in range(self.num_ranks))
