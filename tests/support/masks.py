"""Masks as people write them: ``mask(ids) -> tensor`` for ids ``[batch, length]``.

Token 0 is padding, token 1 begins a document, as the builders below read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.programs import tokens

MaskBuilder = Callable[[Tensor], Tensor]

WINDOW, CHUNK, PREFIX = 5, 4, 3


def positions(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Of queries ``[S, 1]`` and of keys ``[1, S]``."""
    index = torch.arange(ids.shape[1], device=ids.device)
    return index[:, None], index[None]


def causal(ids: Tensor) -> Tensor:
    q, k = positions(ids)
    return k <= q


def padding(ids: Tensor) -> Tensor:
    """Keys that are tokens; ``[B, 1, 1, S]``."""
    return (ids != 0)[:, None, None, :]


def documents(ids: Tensor) -> Tensor:
    """Numbers of the documents, each of which begins with token 1."""
    return (ids == 1).cumsum(-1)


def same_document(ids: Tensor) -> Tensor:
    segments = documents(ids)
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def packed_positions(ids: Tensor) -> Tensor:
    """Positions that begin anew with each document."""
    index = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    starts = torch.where(ids == 1, index, 0).cummax(-1).values
    return index - starts


def by_restarting_positions(ids: Tensor) -> Tensor:
    """As transformers finds documents: where positions do not go on by one."""
    place = packed_positions(ids)
    number = (torch.diff(place, prepend=place[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    same = number[:, None, :, None] == number[:, None, None, :]
    return same & (place[:, None, None, :] <= place[:, None, :, None])


def window(ids: Tensor) -> Tensor:
    q, k = positions(ids)
    return (k <= q) & (q - k < WINDOW)


def near(ids: Tensor) -> Tensor:
    """A window to both sides."""
    q, k = positions(ids)
    return (q - k).abs() <= 2


def chunked(ids: Tensor) -> Tensor:
    q, k = positions(ids)
    return causal(ids) & (q // CHUNK == k // CHUNK)


def prefix(ids: Tensor) -> Tensor:
    q, k = positions(ids)
    return (k <= q) | (k < PREFIX)


def prefix_of_each_row(ids: Tensor) -> Tensor:
    """As long as row's first token says."""
    _, k = positions(ids)
    return causal(ids)[None, None] | (k < ids[:, :1] % 5)[:, None, None, :]


def image_blocks(ids: Tensor) -> Tensor:
    """Causal text; tokens of one image see each other."""
    group = torch.where(ids > 11, ids // 3, -1)
    same = (group[:, :, None] == group[:, None]) & (group[:, :, None] >= 0)
    return (causal(ids) | same)[:, None]


def float_mask(allowed: Tensor, fill: float = -math.inf) -> Tensor:
    zeros = torch.zeros(allowed.shape, dtype=torch.float64, device=allowed.device)
    return zeros.masked_fill(~allowed, fill)


def written_in_place(ids: Tensor) -> Tensor:
    """A triangle, a part of which is then set to true."""
    length = ids.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
    mask[:, :PREFIX] = True
    return mask


def infinite_triangle(ids: Tensor) -> Tensor:
    """``triu(full(-inf), 1)``: what examples of transformers add to scores."""
    length = ids.shape[1]
    return torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)


FACTORED: dict[str, MaskBuilder] = {
    "causal and left or right padding": lambda ids: causal(ids) & padding(ids),
    "padding alone": padding,
    "padding and the own token": lambda ids: (
        padding(ids) | torch.eye(ids.shape[1], dtype=torch.bool, device=ids.device)
    ),
    "packed documents": lambda ids: causal(ids) & same_document(ids),
    "packed documents by positions": by_restarting_positions,
    "documents without order": same_document,
    "sliding window": window,
    "window to both sides": near,
    "window and padding": lambda ids: window(ids) & padding(ids),
    "window in documents": lambda ids: window(ids) & same_document(ids),
    "chunked": chunked,
    "prefix": prefix,
    "prefix of each row": prefix_of_each_row,
    "prefix and padding": lambda ids: prefix(ids) & padding(ids),
    "image blocks": image_blocks,
    "tril of ones and padding": lambda ids: (
        torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril() & padding(ids)
    ),
    "written in place": written_in_place,
    "masked_fill with -inf": lambda ids: float_mask(window(ids)),
    "masked_fill with the least number": lambda ids: float_mask(
        window(ids), torch.finfo(torch.float64).min
    ),
    "where with -inf": lambda ids: torch.where(
        causal(ids) & padding(ids), torch.tensor(0.0, dtype=torch.float64), -math.inf
    ),
    "one minus the mask": lambda ids: (
        (1.0 - chunked(ids).double()) * torch.finfo(torch.float64).min
    ),
    "sum of two masks": lambda ids: float_mask(causal(ids)) + float_mask(padding(ids)),
    "integers as booleans": lambda ids: (prefix(ids).long() * padding(ids).long()) > 0,
    "query, too, is no padding": lambda ids: (
        causal(ids) & (ids != 0)[:, None, None] & (ids != 0)[:, None, :, None]
    ),
    "exclusive or": lambda ids: causal(ids) ^ near(ids),
    "without the own token": lambda ids: causal(ids) & (positions(ids)[0] != positions(ids)[1]),
    "every other key": lambda ids: causal(ids) & (positions(ids)[1] % 2 == 0),
}
"""Masks that are predicates over vectors; some leave a query without any key."""

KEPT: dict[str, tuple[MaskBuilder, str]] = {
    "a bias": (lambda ids: float_mask(causal(ids)) + 0.5, "it adds"),
    "distance": (
        lambda ids: -(positions(ids)[0] - positions(ids)[1]).abs().double(),
        "it adds numbers that grow with the positions",
    ),
    "least number and padding": (
        lambda ids: float_mask(causal(ids) & padding(ids), torch.finfo(torch.float64).min),
        "a query may be left without any key",
    ),
    "a small penalty": (lambda ids: float_mask(window(ids), -100.0), "it adds -100"),
    "product of positions": (
        lambda ids: (positions(ids)[0] * positions(ids)[1]) % 3 == 0,
        "numbers that grow with the positions",
    ),
    "sum over pairs": (
        lambda ids: causal(ids) & (causal(ids).cumsum(-1) > 2),
        "for each query and key",
    ),
    "a number that is data": (
        lambda ids: torch.where(causal(ids), 0.0, -ids.double()[:, None, None]),
        "it adds numbers that are data",
    ),
}
"""Masks that must stay, and what the decision says."""


def sample_ids(batch: int, length: int, *, seed: int = 0) -> Tensor:
    """Padding at both ends of different rows, and documents of different lengths."""
    generator = torch.Generator().manual_seed(seed + length)
    ids = torch.randint(2, 17, (batch, length), generator=generator)
    ids[torch.rand(batch, length, generator=generator) < 0.2] = 1
    ids[0, : length // 4] = 0
    ids[-1, length - length // 5 :] = 0
    return ids


def attention_under(masks: dict[str, MaskBuilder]) -> Callable[..., Tensor]:
    """For ``SmallModel(attention=...)``: attention under each mask, all different, summed."""

    def attention(model: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        total = torch.zeros_like(q)
        for number, build in enumerate(masks.values()):
            mask = build(model.ids)
            own = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.6)
            total = total + own * (1 + number / 8)
        return total

    return attention


def masked_tokens(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """:func:`sample_ids`, and labels."""
    return sample_ids(batch, length), tokens(batch, length)[1]
