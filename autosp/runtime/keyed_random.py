"""Random numbers that depend on where an element lies in the whole tensor, not on its rank.

A number is a hash of *keys* (fresh ones each step, see :func:`draw_keys`) and of the global
position of its element. A rank that holds a block therefore draws the numbers of that
block, whatever the number of ranks is, and the backward can draw them again.

The position is taken apart into a row (all dims but the last, flattened) and a column, each
hashed on its own in a small tensor; only the last rounds run on a whole tensor. The hash is
``lowbias32``, bijective on 32 bits (C. Wellons, "Prospecting for Hash Functions", 2018,
https://nullprogram.com/blog/2018/07/31/). All arithmetic is in int64 and never overflows, so
that every compiler and device computes the same.

The operators are composites of ordinary ATen operators: AOTAutograd takes them apart, derives
their backward and lets a fusing compiler do the rest in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LIBRARY = torch.library.Library("autosp", "DEF")  # type: ignore[no-untyped-call]
"""Owns the definitions of the operators; they exist as long as it does."""

NUM_KEYS = 3
"""Numbers of 32 bits that one *draw* takes: for rows, once more for rows, for columns."""

WORD_BITS = 32
_NUM_WORDS = 1 << WORD_BITS
_MASK = _NUM_WORDS - 1
_FIRST_FACTOR = 0x7FEB352D
_SECOND_FACTOR = 0x846CA68B - _NUM_WORDS
"""Equal modulo 2**32 to the published factor, and small enough for a product in 63 bits."""

_DIGITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}
"""Bits of a significand: more would round up to 1."""


def draw_keys(num_draws: int, *, dp_rank: int, device: torch.device) -> Tensor:
    """The keys of one step: ``[num_draws, NUM_KEYS]`` numbers below 2**32.

    They come from torch's default generator of the CPU, whatever ``device`` is, so that
    ``torch.manual_seed`` makes a run reproducible. Data-parallel groups whose generators
    agree still get different keys. The keys of the first SP rank will count.
    """
    shape = (num_draws, NUM_KEYS)
    keys = torch.randint(0, _NUM_WORDS, shape, dtype=torch.int64, device="cpu")
    group = torch.full((), dp_rank, dtype=torch.int64, device="cpu")
    return _mix(keys ^ _mix(group)).to(device)


def _mix(word: Tensor) -> Tensor:
    word = word ^ (word >> 16)
    word = (word * _FIRST_FACTOR) & _MASK
    word = word ^ (word >> 15)
    word = (word * _SECOND_FACTOR) & _MASK
    return word ^ (word >> 16)


def random_words(
    keys: Tensor, draw: int, positions: Sequence[Tensor], size: Sequence[int]
) -> Tensor:
    """Numbers below 2**32 of which the high bits are the most random.

    Args:
        keys: ``[num_draws, NUM_KEYS]``.
        draw: which of them to use.
        positions: for every dim the global indices, ``[local size]`` each.
        size: the global shape.

    Returns:
        int64, of the shape that the positions span.
    """
    device = positions[0].device if positions else keys.device
    key = keys[draw].to(device)
    row, column = _row_and_column(positions, size, device)
    row = _mix(row ^ key[0])
    row_again = (row * _SECOND_FACTOR) & _MASK ^ key[1]
    word = ((row ^ _mix(column ^ key[2])) * _FIRST_FACTOR) & _MASK
    # Rows and columns that cancel each other in the first sum must not do so again.
    word = word ^ (word >> 15) ^ row_again
    return (word * _SECOND_FACTOR) & _MASK


def _row_and_column(
    positions: Sequence[Tensor], size: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Flat index of the leading dims ``[..., 1]`` and index of the last dim."""
    num_dims = len(positions)
    for count in (math.prod(size[:-1]), *size[-1:]):
        assert count <= _NUM_WORDS, "positions exceed 32 bits"
    row = torch.zeros((1,) * num_dims, dtype=torch.int64, device=device)
    for dim, index in enumerate(positions[:-1]):
        spread = index.reshape([-1 if d == dim else 1 for d in range(num_dims)])
        row = row + spread * math.prod(size[dim + 1 : -1])
    return row, positions[-1] if positions else row


def _threshold(probability: float) -> int:
    return round(probability * _NUM_WORDS)


def _keep(
    keys: Tensor, draw: int, positions: Sequence[Tensor], size: Sequence[int], p: float
) -> Tensor:
    """True with probability ``1 - p``."""
    return random_words(keys, draw, positions, size) >= _threshold(p)


def _scaled(kept: Tensor, p: float) -> Tensor:
    return kept * (1.0 / (1.0 - p)) if p < 1 else kept


# ------------------------------------------------------------------ the operators


def _agree(keys: Tensor) -> Tensor:
    return keys.clone()


def _dropout(
    x: Tensor, keys: Tensor, draw: int, positions: list[Tensor], size: list[int], p: float
) -> Tensor:
    return _scaled(torch.where(_keep(keys, draw, positions, size, p), x, 0.0), p)


def _bernoulli(
    probabilities: Tensor, keys: Tensor, draw: int, positions: list[Tensor], size: list[int]
) -> Tensor:
    uniform = _uniform(keys, draw, positions, size, probabilities.dtype)
    return (uniform < probabilities).to(probabilities.dtype)


def _uniform(
    keys: Tensor, draw: int, positions: Sequence[Tensor], size: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Uniform in ``[0, 1)``, on the grid of the type; float64 takes the next draw, too."""
    digits = _DIGITS[dtype]
    bits = _finished_words(keys, draw, positions, size)
    if digits <= WORD_BITS:
        bits = bits >> (WORD_BITS - digits)
    else:
        more = _finished_words(keys, draw + 1, positions, size)
        bits = (bits << (digits - WORD_BITS)) | (more >> (2 * WORD_BITS - digits))
    return bits.to(dtype) * 2.0**-digits


def _finished_words(
    keys: Tensor, draw: int, positions: Sequence[Tensor], size: Sequence[int]
) -> Tensor:
    """Words of which all bits are equally random."""
    word = random_words(keys, draw, positions, size)
    return word ^ (word >> 16)


def _numbers(
    keys: Tensor,
    draw: int,
    positions: list[Tensor],
    size: list[int],
    distribution: str,
    parameters: list[float],
    dtype: torch.dtype,
) -> Tensor:
    wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32

    def uniform(offset: int = 0, of: torch.dtype = wide) -> Tensor:
        return _uniform(keys, draw + offset, positions, size, of)

    match distribution, parameters:
        case "uniform", (low, high):
            narrow = dtype if dtype in _DIGITS else torch.float32
            return (uniform(of=narrow) * (high - low) + low).to(dtype)
        case "bernoulli", (probability,):
            kept = random_words(keys, draw, positions, size) < _threshold(probability)
            return kept.to(dtype)
        case "normal", (mean, deviation):
            radius = torch.sqrt(-2.0 * torch.log1p(-uniform()))
            angle = (2.0 * math.pi) * uniform(2)
            return (radius * torch.cos(angle) * deviation + mean).to(dtype)
        case "exponential", (rate,):
            half_step = 2.0 ** -(_DIGITS[wide] + 1)  # the logarithm of a noise is taken: not 0
            return (-torch.log1p(-(uniform() + half_step)) / rate).to(dtype)
        case "integers", (low, high):
            words = _finished_words(keys, draw, positions, size)
            return (((words * (int(high) - int(low))) >> WORD_BITS) + int(low)).to(dtype)
        case _:
            raise AssertionError(f"no distribution {distribution} {parameters}")


NUM_DRAWS = {"uniform": 2, "bernoulli": 1, "normal": 4, "exponential": 2, "integers": 1}
"""Draws that :func:`_numbers` takes."""


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    keys: Tensor,
    draw: int,
    positions: list[Tensor],
    size: list[int],
) -> Tensor:
    """``scaled_dot_product_attention`` written out, with dropout on the probabilities.

    The fused kernels draw numbers of their own. Probabilities are ``[..., heads, queries,
    keys]``, normalised in float32 at least, and zero where a row may see nothing.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device)
        query, key, value = query.to(low), key.to(low), value.to(low)
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(repeats, -3) for t in (key, value))
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        attn_mask = seen
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.ops.aten._safe_softmax.default(scores, -1, wide).to(value.dtype)
    kept = torch.where(_keep(keys, draw, positions, size, dropout_p), weights, 0.0)
    return kept @ _scaled(value, dropout_p)


def _define(name: str, schema: str, function: Callable[..., Tensor]) -> torch._ops.OpOverload:
    LIBRARY.define(f"{name}{schema}")  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, function, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
    packet: torch._ops.OpOverloadPacket = getattr(torch.ops.autosp, name)
    operator: torch._ops.OpOverload = packet.default
    return operator


_WHERE = "Tensor keys, int draw, Tensor[] positions, SymInt[] size"

AGREE = _define("agree_on_keys", "(Tensor keys) -> Tensor", _agree)
"""The keys that all ranks of the SP group use: those of its first rank."""
DROPOUT = _define("keyed_dropout", f"(Tensor x, {_WHERE}, float p) -> Tensor", _dropout)
"""``dropout(x, p)``; a dim of ``size`` that is 1 shares its numbers (``feature_dropout``)."""
BERNOULLI = _define("keyed_bernoulli", f"(Tensor probabilities, {_WHERE}) -> Tensor", _bernoulli)
NUMBERS = _define(
    "keyed_numbers",
    f"({_WHERE}, str distribution, float[] parameters, ScalarType dtype) -> Tensor",
    _numbers,
)
"""Numbers of a distribution: see :data:`NUM_DRAWS`."""
ATTENTION = _define(
    "keyed_scaled_dot_product_attention",
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, "
    "bool is_causal, *, float? scale=None, bool enable_gqa=False, "
    f"{_WHERE}) -> Tensor",
    _attention,
)
"""Takes what ``scaled_dot_product_attention`` takes, at the same places."""
