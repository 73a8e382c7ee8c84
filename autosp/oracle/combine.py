"""From the ranks' parts to the tensor of the user's program, by its placement."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autosp.blocks import combine_blocks
from autosp.placement import Partial, Placement, Shard


def combine_values(
    parts: Sequence[torch.Tensor], placement: Placement, shape: tuple[int, ...]
) -> list[torch.Tensor]:
    """Every tensor that must equal the global value: one, or one copy a rank if replicated.

    Args:
        parts: what each rank holds.
        shape: the global shape.
    """
    match placement:
        case Shard():
            return [combine_blocks(parts, placement, shape)]
        case Partial():
            return [torch.stack(list(parts)).sum(0, dtype=parts[0].dtype)]
        case _:
            return list(parts)


def combine_cotangents(
    parts: Sequence[torch.Tensor], placement: Placement, shape: tuple[int, ...]
) -> list[torch.Tensor]:
    """Like :func:`combine_values` for cotangents under the mean convention.

    A sharded or partial tensor's cotangents are P times the global one; a replicated
    tensor's are the global one on average over the ranks.
    """
    num_ranks = len(parts)
    match placement:
        case Shard():
            return [combine_blocks(parts, placement, shape) / num_ranks]
        case Partial():
            return [part / num_ranks for part in parts]
        case _:
            return [torch.stack(list(parts)).mean(0)]
