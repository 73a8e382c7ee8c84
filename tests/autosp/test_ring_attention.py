"""Ring attention against a softmax written out in float64, output and gradients."""

from __future__ import annotations

import math

import pytest
import torch

from autosp.oracle.ring import ring_on_ranks
from autosp.placement import Shard, padding_of
from autosp.runtime.block_attention import attend, attend_backward

TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def plain_attention(query, key, value, *, is_causal, scale):
    """softmax(Q K^T) V in float64."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(repeats, 1) for t in (key, value))
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale
    if is_causal:
        length = query.shape[2]
        later = torch.arange(length)[None, :] > torch.arange(length)[:, None]
        scores = scores.masked_fill(later, -math.inf)
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(scores, -1), value)


def operands(*, heads, kv_heads, length, key_length=None, value_size=8, dtype=torch.float64):
    generator = torch.Generator().manual_seed(length)
    shapes = (
        (2, heads, length, 8),
        (2, kv_heads, key_length or length, 8),
        (2, kv_heads, key_length or length, value_size),
    )
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]


def dealt_out(tensor, num_ranks, order):
    """The ranks' rows, padded with copies of the last."""
    length = tensor.shape[2]
    cut = Shard(2, length, pad=padding_of(length, num_ranks, order), order=order)
    positions = [[p for rows in cut.pieces(r, num_ranks) for p in rows] for r in range(num_ranks)]
    return [tensor[:, :, [min(p, length - 1) for p in own]] for own in positions], positions


def in_place(parts, positions, length):
    joined = torch.cat(parts, 2)
    order = torch.tensor([p for own in positions for p in own]).argsort()
    return joined[:, :, order[:length]]


def ring(query, key, value, *, is_causal, scale, num_ranks, order):
    queries, positions = dealt_out(query, num_ranks, order)
    keys, values = (dealt_out(tensor, num_ranks, order)[0] for tensor in (key, value))
    calls = [
        (
            (queries[rank], keys[rank], values[rank], is_causal),
            {
                "scale": scale,
                "key_length": key.shape[2],
                "order": order,
                "ring_rank": rank,
                "ring_size": num_ranks,
                "receiver": (rank + 1) % num_ranks,
                "sender": (rank - 1) % num_ranks,
                "num_ranks": num_ranks,
                "group_name": "",
            },
        )
        for rank in range(num_ranks)
    ]
    return in_place(ring_on_ranks(calls), positions, query.shape[2])


def assert_equal_to_plain(tensors, *, dtype=torch.float64, scale=0.3, **options):
    wide = [t.detach().double().requires_grad_() for t in tensors]
    expected = plain_attention(*wide, is_causal=options["is_causal"], scale=scale)
    actual = ring(*tensors, scale=scale, **options)
    cotangent = torch.randn(expected.shape, dtype=torch.float64).to(dtype)
    wanted = torch.autograd.grad(expected, wide, cotangent.double())
    found = torch.autograd.grad(actual, tensors, cotangent)
    assert actual.dtype == dtype
    for one, other in zip((expected, *wanted), (actual, *found), strict=True):
        error = (one - other).abs().max() / one.abs().max()
        assert error < TOLERANCE[dtype], options


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_lengths_and_heads(kv_heads, is_causal, order):
    for num_ranks in (2, 3, 4):
        for length in (24, 19, 5):
            tensors = operands(heads=4, kv_heads=kv_heads, length=length)
            assert_equal_to_plain(tensors, is_causal=is_causal, num_ranks=num_ranks, order=order)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types(dtype):
    tensors = operands(heads=4, kv_heads=2, length=37, dtype=dtype)
    for is_causal in (True, False):
        assert_equal_to_plain(
            tensors, is_causal=is_causal, num_ranks=4, order="zigzag", dtype=dtype
        )


def test_values_of_another_size_than_keys():
    """No fused kernel takes them."""
    tensors = operands(heads=4, kv_heads=2, length=19, value_size=6)
    for is_causal in (True, False):
        assert_equal_to_plain(tensors, is_causal=is_causal, num_ranks=3, order="zigzag")


def test_keys_of_another_length():
    for key_length in (3, 11, 40):
        tensors = operands(heads=4, kv_heads=2, length=19, key_length=key_length)
        assert_equal_to_plain(tensors, is_causal=False, num_ranks=4, order="contiguous")


def test_large_scores_of_one_block_do_not_overflow():
    tensors = operands(heads=2, kv_heads=2, length=16, dtype=torch.float32)
    with torch.no_grad():
        tensors[1][:, :, 11] *= 300
    wide = [t.detach().double() for t in tensors]
    expected = plain_attention(*wide, is_causal=False, scale=1.0)
    actual = ring(*tensors, is_causal=False, scale=1.0, num_ranks=4, order="contiguous")
    assert torch.isfinite(actual).all()
    assert (expected - actual).abs().max() < 1e-4


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_plain_tile_agrees_with_the_fused_one(is_causal):
    """What a device without a fused kernel computes, against the kernel of the CPU."""
    query, key, value = (t.detach() for t in operands(heads=4, kv_heads=2, length=9))
    wider = torch.cat([value, value[..., :1]], -1)
    fused = attend(query, key, value, is_causal=is_causal, scale=0.3)
    plain = attend(query, key, wider, is_causal=is_causal, scale=0.3)
    assert torch.allclose(fused[0], plain[0][..., :-1], atol=1e-12)
    assert torch.allclose(fused[1], plain[1], atol=1e-12)
    cotangent = torch.randn(fused[0].shape, dtype=torch.float64)
    padded = torch.cat([cotangent, torch.zeros_like(cotangent[..., :1])], -1)
    own = attend_backward(cotangent, query, key, value, *fused, is_causal=is_causal, scale=0.3)
    other = attend_backward(padded, query, key, wider, *plain, is_causal=is_causal, scale=0.3)
    for one, two in zip(own, (*other[:2], other[2][..., :-1]), strict=True):
        assert torch.allclose(one, two, atol=1e-12)
