"""Attention with the interface of the ``flash_attn`` package, for any device.

::

    from autosp.attention import flash_attn_func, flash_attn_varlen_func

The functions take what those of ``flash_attn`` 2 take and mean the same: ``[B, S, H, D]`` layouts,
causal masks and windows that are aligned at the *last* query and key, soft caps, ALiBi slopes,
packed sequences by ``cu_seqlens``. They run block by block, never with all scores at once, and
outside a compiled region as well. Where ``flash_attn`` is installed, programs that AutoSP compiles
may call its functions: these stand for them (:func:`replace_flash_attn`).

References: https://github.com/Dao-AILab/flash-attention (README and ``flash_attn_interface.py``).
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from autosp.errors import AutoSPError
from autosp.runtime.masked_attention import MASKED_ATTENTION

ANY = -1
"""A side of a window that has no end."""


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (ANY, ANY),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """Attention of ``q [B, S, H, D]`` with ``k, v [B, Sk, Hkv, D]``; returns ``[B, S, H, D]``.

    Query ``i`` stands at ``i + Sk - S`` among the keys. With ``causal`` it sees no later key, and
    of ``window_size = (left, right)`` so many keys before and after its place (-1: all).
    ``alibi_slopes`` ``[H]`` or ``[B, H]`` subtract slope times distance from the scores.
    ``deterministic`` changes nothing: the result always is.

    Raises:
        AutoSPError: dropout together with a window, a soft cap or slopes, or probabilities are
            asked for.
    """
    del deterministic
    _refuse(return_attn_probs, "return_attn_probs: probabilities are never kept")
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    left, right = window_size
    lengths = (q.shape[1], k.shape[1])
    is_square_causal = causal and lengths[0] == lengths[1]
    is_plain = (left, right) == (ANY, ANY) and not softcap and alibi_slopes is None
    if is_plain and (is_square_causal or not causal):
        out = scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=dropout_p,
            is_causal=causal,
            scale=softmax_scale,
            enable_gqa=True,
        )
        return out.transpose(1, 2)
    _refuse(dropout_p, "dropout together with a window, a soft cap or slopes")
    places = torch.arange(lengths[0], device=q.device)[None] + (lengths[1] - lengths[0])
    keys = torch.arange(lengths[1], device=q.device)[None]
    out = _masked(
        query, key, value, places, keys, [],
        window=(left, 0 if causal else right), is_causal=is_square_causal,
        scale=softmax_scale, softcap=softcap, slopes=alibi_slopes,
    )  # fmt: skip
    return out.transpose(1, 2)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (ANY, ANY),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """Attention within packed sequences: ``q [tokens, H, D]``, ``k, v [tokens of keys, Hkv, D]``.

    Sequence ``n`` has the queries ``cu_seqlens_q[n]`` to ``cu_seqlens_q[n + 1]`` and its keys
    likewise; the rest is as for :func:`flash_attn_func` within each. ``max_seqlen_q`` and
    ``max_seqlen_k`` are not needed. ``alibi_slopes`` are ``[H]``.

    Raises:
        AutoSPError: dropout, probabilities, slopes per sequence or a paged cache are asked for.
    """
    del max_seqlen_q, max_seqlen_k, deterministic
    _refuse(return_attn_probs, "return_attn_probs: probabilities are never kept")
    _refuse(dropout_p, "dropout over packed sequences")
    _refuse(block_table is not None, "block_table: a paged cache of keys")
    _refuse(
        alibi_slopes is not None and alibi_slopes.dim() > 1, "slopes of their own for each sequence"
    )
    of_queries, places = _sequences(cu_seqlens_q, q.shape[0])
    of_keys, keys = _sequences(cu_seqlens_k, k.shape[0])
    is_self = cu_seqlens_q is cu_seqlens_k and q.shape[0] == k.shape[0]
    if not is_self:
        lengths = cu_seqlens_k.diff() - cu_seqlens_q.diff()
        places = places + torch.cat([lengths, lengths.new_zeros(1)])[of_queries]
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    left, right = window_size
    out = _masked(
        query, key, value, places[None], keys[None], [(of_queries[None], of_keys[None])],
        window=(left, 0 if causal else right), is_causal=causal and is_self,
        scale=softmax_scale, softcap=softcap, slopes=alibi_slopes,
    )  # fmt: skip
    return out[0].transpose(0, 1)


def _sequences(cu_seqlens: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Number of the sequence of each token, and its place in that."""
    tokens = torch.arange(num_tokens, device=cu_seqlens.device)
    ends = cu_seqlens[1:].to(tokens.dtype)
    numbers = torch.searchsorted(ends, tokens, right=True)
    return numbers, tokens - cu_seqlens.to(tokens.dtype)[numbers]


def _masked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    places: Tensor,
    keys: Tensor,
    equal: list[tuple[Tensor, Tensor]],
    *,
    window: tuple[int, int],
    is_causal: bool,
    scale: float | None,
    softcap: float,
    slopes: Tensor | None,
) -> Tensor:
    """Queries see the keys of a window around their place, where pairs of vectors are equal."""
    query_vectors, key_vectors, terms = [places], [keys], []
    left, right = window
    if right == 0:
        terms.append("q0 >= k0")
    elif right != ANY:
        query_vectors.append(places + right)
        terms.append("q1 >= k0")
    if left != ANY:
        query_vectors.append(places - left)
        terms.append(f"q{len(query_vectors) - 1} <= k0")
    for of_queries, of_keys in equal:
        query_vectors.append(of_queries)
        key_vectors.append(of_keys)
        terms.append(f"q{len(query_vectors) - 1} == k{len(key_vectors) - 1}")
    out: Tensor = MASKED_ATTENTION(
        query,
        key,
        value,
        query_vectors=query_vectors,
        key_vectors=key_vectors,
        predicate=" and ".join(terms) or "True",
        is_causal=is_causal,
        scale=scale,
        enable_gqa=True,
        softcap=softcap,
        slopes=slopes,
    )
    return out


def _refuse(asked: object, what: str) -> None:
    if asked:
        raise AutoSPError(
            f"flash_attn with {what}",
            hint="Leave it out, or use torch.nn.functional.scaled_dot_product_attention",
        )


# ---------------------------------------------------------------------- the real package

FUNCTIONS = {
    "flash_attn_func": flash_attn_func,
    "flash_attn_varlen_func": flash_attn_varlen_func,
}
PACKAGES = ("flash_attn", "flash_attn_interface")

_replaced: set[Any] = set()


def replace_flash_attn() -> None:
    """Let dynamo trace the functions above where a program calls those of ``flash_attn``.

    Does nothing if nobody has imported the package.
    """
    for package in PACKAGES:
        if package not in sys.modules:
            continue
        module = importlib.import_module(package)
        for name, ours in FUNCTIONS.items():
            theirs = getattr(module, name, None)
            if theirs is None or theirs is ours or theirs in _replaced:
                continue
            torch.compiler.substitute_in_graph(theirs, skip_signature_check=True)(ours)  # type: ignore[arg-type]
            _replaced.add(theirs)
