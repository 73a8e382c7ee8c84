"""From the ranks' parts to the tensor of the user's program, by its placement."""

from __future__ import annotations

from collections.abc import Sequence

import torch

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


def combine_blocks(
    parts: Sequence[torch.Tensor], cut: Shard, shape: tuple[int, ...]
) -> torch.Tensor:
    """The ranks' blocks side by side, padding rows dropped."""
    dim, block = cut.dim, cut.block(len(parts))
    inner = shape[dim] // (cut.outer * cut.atom)
    views = [
        part.reshape(*part.shape[:dim], cut.outer, block, inner, *part.shape[dim + 1 :])
        for part in parts
    ]
    whole = torch.cat(views, dim + 1).narrow(dim + 1, 0, cut.atom)
    return whole.reshape(shape)


def cut_blocks(whole: torch.Tensor, cut: Shard, num_ranks: int) -> list[torch.Tensor]:
    """The blocks of a cotangent: zero on padding rows."""
    dim, shape = cut.dim, tuple(whole.shape)
    inner = shape[dim] // (cut.outer * cut.atom)
    view = whole.reshape(*shape[:dim], cut.outer, cut.atom, inner, *shape[dim + 1 :])
    padding = list(view.shape)
    padding[dim + 1] = cut.pad
    padded = torch.cat([view, view.new_zeros(padding)], dim + 1)
    local = (*shape[:dim], cut.outer * cut.block(num_ranks) * inner, *shape[dim + 1 :])
    return [part.reshape(local) for part in padded.chunk(num_ranks, dim + 1)]
