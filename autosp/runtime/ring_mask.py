"""The mask of a ring: each tile looks at its own queries and at the block of keys it meets.

The vectors of the keys of all ranks are on every rank, O(S), so that nothing of the mask is
sent. A tile of which the mask leaves nothing still takes part in every send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from autosp.ring_schedule import RingSchedule, Tile
from autosp.runtime.blockwise_attention import BLOCKWISE_ATTENTION, BLOCKWISE_ATTENTION_BACKWARD


@dataclass(frozen=True, slots=True)
class RingMask:
    """``query_vectors``: ``[B or 1, query rows]`` of this rank. ``key_vectors``: ``[B or 1, ranks
    x key rows]``, in the order of the ranks and of the rows that each holds. ``densities``: the
    part of the pairs that is left in the tile of each step.
    """

    predicate: str
    query_vectors: tuple[Tensor, ...]
    key_vectors: tuple[Tensor, ...]
    densities: tuple[float, ...]
    softcap: float = 0.0
    slopes: Tensor | None = None
    """Of this rank's heads; see :mod:`autosp.runtime.score_change`."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        slopes = () if self.slopes is None else (self.slopes,)
        return (*self.query_vectors, *self.key_vectors, *slopes)

    def with_tensors(self, tensors: Sequence[Tensor]) -> RingMask:
        """The same mask, its vectors and slopes being these."""
        first, end = len(self.query_vectors), len(self.query_vectors) + len(self.key_vectors)
        return replace(
            self,
            query_vectors=tuple(tensors[:first]),
            key_vectors=tuple(tensors[first:end]),
            slopes=None if self.slopes is None else tensors[end],
        )

    def attend(
        self, schedule: RingSchedule, step: int, operands: Sequence[Tensor], *, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of the tile of ``step``; ``operands`` are cut to it."""
        options = self._options(schedule, step, scale)
        out, lse = BLOCKWISE_ATTENTION(*operands, **options)
        return out, lse

    def attend_backward(
        self, schedule: RingSchedule, step: int, operands: Sequence[Tensor], *, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value of the tile of ``step``."""
        options = self._options(schedule, step, scale)
        of_query, of_key, of_value = BLOCKWISE_ATTENTION_BACKWARD(*operands, **options)
        return of_query, of_key, of_value

    def _options(self, schedule: RingSchedule, step: int, scale: float) -> dict[str, Any]:
        tile = schedule.tile(step)
        assert tile is not None
        keys = _keys_of(schedule, step, tile)
        return {
            "query_vectors": [vector[:, tile.query_start :] for vector in self.query_vectors],
            "key_vectors": [vector[:, keys] for vector in self.key_vectors],
            "predicate": self.predicate,
            "scale": scale,
            "density": self.densities[step],
            "softcap": self.softcap,
            "slopes": self.slopes,
        }


def _keys_of(schedule: RingSchedule, step: int, tile: Tile) -> slice:
    first = schedule.source(step) * schedule.key_rows
    return slice(first, first + tile.key_end)
