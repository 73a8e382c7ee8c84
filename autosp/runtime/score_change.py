"""What happens to scores between the product of queries and keys and the softmax.

    score -> cap * tanh(score / cap) - slope of the head * |position of query - position of key|

A soft cap (Gemma 2, arXiv:2408.00118) and linear biases (ALiBi, arXiv:2108.12409), in the order
and with the signs of the ``flash_attn`` package. Neither has parameters that are trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """``softcap`` 0: no cap. ``slopes`` ``[B or 1, H]``, positions ``[B or 1, Sq or Sk]``."""

    softcap: float = 0.0
    slopes: Tensor | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None

    @staticmethod
    def of(
        softcap: float, slopes: Tensor | None, query: list[Tensor], key: list[Tensor]
    ) -> ScoreChange | None:
        """None where nothing changes. The first vectors of queries and keys are positions."""
        if slopes is None:
            return ScoreChange(softcap) if softcap else None
        return ScoreChange(softcap, slopes if slopes.dim() == 2 else slopes[None], query[0], key[0])

    def of_block(self, batch: slice, query: slice, key: slice) -> ScoreChange:
        """For some queries and keys of some batch rows."""
        if self.slopes is None:
            return self
        return replace(
            self,
            slopes=_rows(self.slopes, batch),
            query_positions=_rows(self.query_positions, batch)[:, query],
            key_positions=_rows(self.key_positions, batch)[:, key],
        )

    def apply(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """Changed scores ``[B, H, Sq, Sk]`` and their derivative; None where that is 1."""
        slope = None
        if self.softcap:
            share = torch.tanh(scores / self.softcap)
            scores, slope = self.softcap * share, 1 - share.square()
        if self.slopes is not None:
            assert self.query_positions is not None and self.key_positions is not None
            distance = self.query_positions.unsqueeze(-1) - self.key_positions.unsqueeze(-2)
            slopes = self.slopes.to(scores.dtype)[:, :, None, None]
            scores = scores - slopes * distance.abs().unsqueeze(1)
        return scores, slope


def _rows(tensor: Tensor | None, batch: slice) -> Tensor:
    assert tensor is not None
    return tensor if tensor.shape[0] == 1 else tensor[batch]
