"""The blocks of a cut tensor: from what the ranks hold to the whole, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autosp.placement import Shard


def combine_blocks(
    parts: Sequence[torch.Tensor], cut: Shard, shape: tuple[int, ...]
) -> torch.Tensor:
    """The ranks' blocks side by side, padding rows dropped."""
    dim, block = cut.dim, cut.block(len(parts))
    inner = shape[dim] // (cut.outer * cut.atom)
    pieces: dict[int, torch.Tensor] = {}
    for rank, part in enumerate(parts):
        view = part.reshape(*part.shape[:dim], cut.outer, block, inner, *part.shape[dim + 1 :])
        held = cut.pieces(rank, len(parts))
        for rows, piece in zip(held, view.chunk(len(held), dim + 1), strict=True):
            pieces[rows.start] = piece
    whole = torch.cat([pieces[start] for start in sorted(pieces)], dim + 1)
    return whole.narrow(dim + 1, 0, cut.atom).reshape(shape)


def cut_blocks(whole: torch.Tensor, cut: Shard, num_ranks: int) -> list[torch.Tensor]:
    """The blocks of a cotangent: zero on padding rows."""
    dim, shape = cut.dim, tuple(whole.shape)
    inner = shape[dim] // (cut.outer * cut.atom)
    view = whole.reshape(*shape[:dim], cut.outer, cut.atom, inner, *shape[dim + 1 :])
    padding = list(view.shape)
    padding[dim + 1] = cut.pad
    padded = torch.cat([view, view.new_zeros(padding)], dim + 1)
    local = (*shape[:dim], cut.outer * cut.block(num_ranks) * inner, *shape[dim + 1 :])
    return [
        torch.cat(
            [padded.narrow(dim + 1, rows.start, len(rows)) for rows in cut.pieces(rank, num_ranks)],
            dim + 1,
        ).reshape(local)
        for rank in range(num_ranks)
    ]
