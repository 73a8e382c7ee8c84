"""Forms of attention that real ranks train, each beside what it means written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import autosp
from autosp.attention import flash_attn_func
from tests.support.gloo_cases import Subject, gradients_of, largest_difference, mean_loss
from tests.support.programs import NUM_HEADS, SmallModel, tokens

CAP, WINDOW = 1.5, 3


def slopes_of(model: SmallModel) -> Tensor:
    return model.bias.detach()[:NUM_HEADS].abs()


def flash(model: SmallModel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A window, a soft cap and ALiBi slopes, by ``flash_attn_func``."""
    rows = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    out = flash_attn_func(
        *rows, causal=True, window_size=(WINDOW, 0), softcap=CAP, alibi_slopes=slopes_of(model)
    )
    return out.transpose(1, 2)


def flex(model: SmallModel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by ``flex_attention``."""
    slopes = slopes_of(model)

    def score(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return CAP * torch.tanh(score / CAP) - slopes[h] * (query - key)

    def mask(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key <= WINDOW)

    blocks = create_block_mask(mask, None, None, q.shape[2], q.shape[2], device="cpu")
    return flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True)


def written_out(model: SmallModel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t.repeat_interleave(NUM_HEADS // t.shape[1], 1) for t in (k, v))
    index = torch.arange(q.shape[2])
    distance = index[:, None] - index
    scores = CAP * torch.tanh(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 / CAP)
    scores = scores - slopes_of(model)[:, None, None] * distance
    seen = (distance >= 0) & (distance <= WINDOW)
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v


def subject(
    attention: Callable[..., Tensor] | None, *, batch: int, length: int, num_kv_heads: int
) -> Subject:
    model = SmallModel(loss=mean_loss, attention=attention, num_kv_heads=num_kv_heads)
    return Subject(model, tokens(batch, length))


def against_written_out(
    form: Callable[..., Tensor], *, length: int, num_kv_heads: int, **options: Any
) -> dict[str, float]:
    """Loss and gradients of the compiled model against a softmax in one process."""
    inputs = tokens(2, length)
    model = SmallModel(loss=mean_loss, attention=written_out, num_kv_heads=num_kv_heads)
    expected = model(*inputs)
    expected.backward()
    reference = gradients_of(model)
    model.zero_grad()
    model.attention = form
    loss = autosp.compile(model, inner="eager", **options)(*inputs)
    loss.backward()
    autosp.average_gradients(model.parameters())
    return {
        "loss": abs(float((loss - expected).detach())),
        "gradients": largest_difference(reference, gradients_of(model)),
    }
