"""Attention of some queries with one block of keys, and its derivative: the tile of a ring.

The forward returns the log-sum-exp of each query's scores beside the output, so that blocks
can be merged. The backward takes the output and the log-sum-exp *over all blocks*: with them

    P = exp(scores - lse),  dS = P * (dO V^T - rowsum(dO * O))

is this block's part of the whole softmax, and its gradients simply add up (Dao 2023,
FlashAttention-2, arXiv:2307.08691, algorithm 2).

Shapes: queries ``[B, H, Sq, D]``, keys ``[B, Hkv, Sk, D]``, values ``[B, Hkv, Sk, Dv]`` with
``H`` a multiple of ``Hkv``, log-sum-exp ``[B, H, Sq]`` in float32 or float64. ``allowed`` is
boolean ``[B or 1, Sq, Sk]``: the pairs that count, all where it is not given. A query that
meets no key that counts has an output of 0 and a log-sum-exp of minus infinity. A ``change`` of
the scores (:mod:`autosp.runtime.score_change`) is taken by no fused kernel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autosp.runtime.score_change import ScoreChange

aten = torch.ops.aten

_CPU_KERNEL_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_CUDA_KERNEL_TYPES = (torch.bfloat16, torch.float16)
_CUDA_KERNEL_LARGEST_HEAD = 256
_CUDA_KERNEL_HEAD_MULTIPLE = 8


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """In which blocks are merged and gradients summed: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool,
    scale: float,
    allowed: Tensor | None = None,
    change: ScoreChange | None = None,
) -> tuple[Tensor, Tensor]:
    """Output, in the type of the query, and log-sum-exp."""
    match _kernel(query, value, allowed, change):
        case "cpu":
            out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(
                query, key, value, 0.0, is_causal, scale=scale
            )
        case "cuda":
            out, lse = aten._scaled_dot_product_flash_attention.default(
                query, key, value, 0.0, is_causal, False, scale=scale
            )[:2]
        case _:
            scores, _ = _scores(
                query, key, change, is_causal=is_causal, scale=scale, allowed=allowed
            )
            lse = scores.logsumexp(-1)
            weights = _weights(scores, lse)
            out = (weights @ _wide_per_query_head(value, query)).to(query.dtype)
    return out, lse


def attend_backward(
    cotangent: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    is_causal: bool,
    scale: float,
    allowed: Tensor | None = None,
    change: ScoreChange | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the query, and this block's of its key and value."""
    match _kernel(query, value, allowed, change):
        case "cpu":
            gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
                cotangent, query, key, value, out, lse, 0.0, is_causal, scale=scale
            )
        case "cuda":
            gradients = _cuda_backward(
                cotangent, query, key, value, out, lse, is_causal=is_causal, scale=scale
            )
        case _:
            scores, slope = _scores(
                query, key, change, is_causal=is_causal, scale=scale, allowed=allowed
            )
            gradients = _plain_backward(
                cotangent, query, key, value, out, _weights(scores, lse), slope, scale=scale
            )
    return gradients[0], gradients[1], gradients[2]


def _kernel(
    query: Tensor, value: Tensor, allowed: Tensor | None, change: ScoreChange | None
) -> str:
    """The fused kernel that takes these tensors; empty if none does."""
    if allowed is not None or change is not None or query.shape[-1] != value.shape[-1]:
        return ""
    if query.device.type == "cpu" and query.dtype in _CPU_KERNEL_TYPES:
        return "cpu"
    head_size = query.shape[-1]
    fits = head_size <= _CUDA_KERNEL_LARGEST_HEAD and head_size % _CUDA_KERNEL_HEAD_MULTIPLE == 0
    if query.device.type == "cuda" and query.dtype in _CUDA_KERNEL_TYPES and fits:
        return "cuda"
    return ""


def _cuda_backward(
    cotangent: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, ...]:
    unused_seed, unused_offset = (
        torch.zeros(shape, dtype=torch.uint64, device=query.device) for shape in ((2,), ())
    )
    lengths = (query.shape[-2], key.shape[-2])
    gradients: tuple[Tensor, ...] = aten._scaled_dot_product_flash_attention_backward.default(
        cotangent, query, key, value, out, lse, None, None, *lengths,
        0.0, is_causal, unused_seed, unused_offset, scale=scale,
    )  # fmt: skip
    return gradients


def _plain_backward(
    cotangent: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    weights: Tensor,
    slope: Tensor | None,
    *,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = cotangent.to(weights.dtype)
    delta = (wide * out.to(weights.dtype)).sum(-1, keepdim=True)
    towards_weights = wide @ _wide_per_query_head(value, query).transpose(-2, -1)
    towards_scores = weights * (towards_weights - delta) * scale
    if slope is not None:
        towards_scores = towards_scores * slope
    of_query = towards_scores @ _wide_per_query_head(key, query)
    of_key = towards_scores.transpose(-2, -1) @ query.to(weights.dtype)
    of_value = weights.transpose(-2, -1) @ wide
    return (
        of_query.to(query.dtype),
        _summed_over_group(of_key, key).to(key.dtype),
        _summed_over_group(of_value, value).to(value.dtype),
    )


def _scores(
    query: Tensor,
    key: Tensor,
    change: ScoreChange | None,
    *,
    is_causal: bool,
    scale: float,
    allowed: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Scores, and their derivative by the plain ones where that is not 1."""
    keys = _wide_per_query_head(key, query)
    scores = (query.to(keys.dtype) * scale) @ keys.transpose(-2, -1)
    slope = None
    if change is not None:
        scores, slope = change.apply(scores)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    elif allowed is not None:
        allowed = allowed.unsqueeze(1)
    if allowed is not None:
        scores = scores.masked_fill(allowed.logical_not(), -math.inf)
    return scores, slope


def _weights(scores: Tensor, lse: Tensor) -> Tensor:
    """Probabilities; zeros for a query without a key, whose log-sum-exp is minus infinity."""
    return (scores - lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)).exp()


def _wide_per_query_head(tensor: Tensor, query: Tensor) -> Tensor:
    repeats = query.shape[1] // tensor.shape[1]
    wide = tensor.to(wide_type(tensor.dtype))
    return wide if repeats == 1 else wide.repeat_interleave(repeats, 1)


def _summed_over_group(gradient: Tensor, of: Tensor) -> Tensor:
    num_heads = of.shape[1]
    if gradient.shape[1] == num_heads:
        return gradient
    batch, _, rows, size = gradient.shape
    return gradient.view(batch, num_heads, -1, rows, size).sum(2)
