"""Attention: heads dealt out to ranks, grouped heads shared, masks cut where they must be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autosp.errors import HeadCountError
from autosp.oracle.check import compile_ranks, with_captured
from autosp.passes import PROGRAM_PASSES
from tests.support.programs import NUM_HEADS, SmallModel, assert_right, prove, tokens

sdpa = F.scaled_dot_product_attention


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 4, 6])
def test_grouped_heads(num_kv_heads):
    cases = tuple((2, 5, ranks) for ranks in (2, 3, 4))
    assert_right(SmallModel(num_kv_heads=num_kv_heads), cases=cases, attention="ulysses")


def test_kv_heads_that_some_ranks_share_and_others_do_not():
    def attention(model, q, k, v):
        grouped = {"enable_gqa": True, "attn_mask": model.bias[:NUM_HEADS, None, None]}
        tiled = sdpa(q.repeat(1, 2, 1, 1), k, v, enable_gqa=True)
        whole = model.weight.view(1, 8, -1, 2).expand(q.shape[0], -1, -1, -1)
        prefixed = sdpa(q.repeat(1, 2, 1, 1), whole.sin(), whole.cos(), enable_gqa=True)
        return sdpa(q, k[:, :4], v[:, :4], **grouped) + tiled[:, ::2] + prefixed[:, 1::2]

    model = SmallModel(num_kv_heads=8, attention=attention)
    assert_right(model, cases=((2, 5, 3),), attention="ulysses")


def test_more_ranks_than_kv_heads():
    assert_right(SmallModel(num_kv_heads=2), cases=((2, 7, 6), (1, 13, 12)))


def test_repeated_kv_heads_are_shared_again():
    def attention(model, q, k, v):
        repeats = NUM_HEADS // k.shape[1]
        if model.expanding:
            batch, heads, length, size = k.shape
            k, v = (
                t[:, :, None].expand(batch, heads, repeats, length, size)
                .reshape(batch, NUM_HEADS, length, size)
                for t in (k, v)
            )  # fmt: skip
        else:
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, dim=1)
        return sdpa(q, k, v, is_causal=True)

    for expanding in (True, False):
        model = SmallModel(num_kv_heads=4, attention=attention)
        model.expanding = expanding
        assert_right(model, cases=((2, 5, 2), (2, 5, 4)))


def test_not_causal_with_a_scale():
    assert_right(SmallModel(attention=lambda m, q, k, v: sdpa(q, k, v, scale=0.3)))


def test_masks():
    def attention(model, q, k, v):
        length = q.shape[2]
        index = torch.arange(length)
        window = (index[None] <= index[:, None]) & (index[:, None] - index[None] < 3)
        padding = (model.ids != 0)[:, None, None] | torch.eye(length, dtype=torch.bool)
        per_head = model.bias[:NUM_HEADS, None, None] * (index[None] - index[:, None])
        return (
            sdpa(q, k, v, attn_mask=window)
            + sdpa(q, k, v, attn_mask=padding)
            + sdpa(q, k, v, attn_mask=per_head[None])
            + sdpa(q, k, v, attn_mask=per_head)
            + sdpa(q, k, v, attn_mask=window.to(q.dtype)[None, None])
            + sdpa(q, k, v, attn_mask=torch.tril(torch.ones(length, length, dtype=torch.bool)))
        )

    assert_right(SmallModel(attention=attention))


def test_a_mask_computed_from_activations():
    def attention(model, q, k, v):
        bias = (q.sum((1, 3))[:, None, :, None] * 0.1).sin()
        return sdpa(q, k, v, attn_mask=bias.expand(-1, 1, -1, q.shape[2]))

    assert_right(SmallModel(attention=attention), max_fallbacks=None)


def test_a_bias_per_head_computed_from_activations_is_exchanged_not_gathered():
    def attention(model, q, k, v):
        return sdpa(q, k, v, attn_mask=(q.sum(-1, keepdim=True) * torch.arange(q.shape[2])).sin())

    model = SmallModel(attention=attention)
    assert_right(model)
    assert (1, NUM_HEADS, 15, 15) not in shapes_on_a_rank(model, length=15)


def test_biases_per_head_are_computed_for_the_heads_of_a_rank_alone():
    def attention(model, q, k, v):
        index = torch.arange(q.shape[2])
        slopes = torch.tensor([2.0**-head for head in range(NUM_HEADS)], dtype=q.dtype)
        alibi = slopes[:, None, None] * (index - index[:, None])
        buckets = (index - index[:, None]).clamp(-4, 4) + 4
        learned = F.embedding(buckets, model.weight[:9, :NUM_HEADS]).permute(2, 0, 1)[None]
        causal = torch.full(2 * (q.shape[2],), float("-inf"), dtype=q.dtype).triu(1)
        by_hand = (q @ k.transpose(2, 3) * model.bias[:NUM_HEADS, None, None] + learned).softmax(-1)
        return sdpa(q, k, v, attn_mask=alibi + causal + learned) + by_hand @ v

    model = SmallModel(attention=attention)
    assert_right(model)
    found = shapes_on_a_rank(model, length=15)
    assert all(sorted(shape).count(15) < 2 or NUM_HEADS not in shape for shape in found)
    assert (NUM_HEADS // 3, 15, 15) in found


def shapes_on_a_rank(model, *, length, ranks=3):
    """Shapes of all tensors in the program of one rank."""
    found = set()

    def check(captured, _):
        program = compile_ranks(captured.program, ranks, PROGRAM_PASSES, captured.fake_mode)[0]
        values = [node.meta.get("val") for node in program.program.graph.nodes]
        found.update(tuple(v.shape) for v in values if isinstance(v, torch.Tensor))

    with_captured(model, tokens(1, length), {}, check)
    return found


def test_keys_from_elsewhere_and_of_another_length():
    def attention(model, q, k, v):
        prefix = model.weight.view(1, NUM_HEADS, -1, 2)[:, :, :6].expand(q.shape[0], -1, -1, -1)
        return sdpa(q, prefix.sin(), prefix.cos()) + sdpa(q, k.sin(), v)

    assert_right(SmallModel(attention=attention))


def test_keys_with_a_learned_prefix():
    def attention(model, q, k, v):
        prefix = model.weight.view(1, NUM_HEADS, -1, 2)[:, :, :2].expand(q.shape[0], -1, -1, -1)
        return sdpa(q, torch.cat([prefix, k], 2), torch.cat([prefix, v], 2))

    assert_right(SmallModel(attention=attention), max_fallbacks=2)


def test_rotary_positions_and_query_norm():
    def attention(model, q, k, v):
        angles = torch.arange(q.shape[2], dtype=q.dtype)[:, None] * model.bias[:1]

        def rotate(x):
            a, b = x.chunk(2, -1)
            return x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()

        return sdpa(rotate(F.rms_norm(q, (2,))), rotate(F.rms_norm(k, (2,))), v, is_causal=True)

    assert_right(SmallModel(attention=attention))


@pytest.mark.parametrize("choice", ["ulysses", "ring"])
def test_batch_and_heads_in_one_dim(choice):
    def attention(model, q, k, v):
        flat = [tensor.flatten(0, 1) for tensor in (q, k, v)]
        y = sdpa(query=flat[0], key=flat[1], value=flat[2], is_causal=True)
        return y.view(q.shape)

    assert_right(SmallModel(attention=attention), attention=choice)


def test_masks_of_folded_and_of_several_batch_dims():
    def attention(model, q, k, v):
        batch, heads, length, _ = q.shape
        folded = [tensor.flatten(0, 1) for tensor in (q, k, v)]
        per_head = model.bias[:heads, None, None] * torch.arange(length)
        one = sdpa(*folded, attn_mask=per_head.repeat(batch, 1, 1).expand(-1, length, -1))
        several = [tensor.unflatten(0, (1, batch)).unflatten(2, (2, -1)) for tensor in (q, k, v)]
        two = sdpa(*several, attn_mask=per_head.view(1, 1, 2, -1, 1, length))
        three = sdpa(*several, is_causal=True, attn_mask=None)
        return one.view(q.shape) + (two + three).view(q.shape)

    assert_right(SmallModel(attention=attention), cases=((1, 12, 3), (2, 5, 2)))


@pytest.mark.parametrize("choice", ["ulysses", "ring"])
def test_keys_of_one_batch_row_shared_by_all(choice):
    def attention(model, q, k, v):
        return sdpa(q, k[:1], v) + sdpa(q, k.mean(0, keepdim=True), v[:1])

    assert_right(SmallModel(attention=attention), cases=((2, 5, 2), (3, 4, 4)), attention=choice)


def test_dropout_in_three_dims_gathers():
    def attention(model, q, k, v):
        flat = [tensor.flatten(0, 1) for tensor in (q, k, v)]
        return sdpa(*flat, dropout_p=0.25).view(q.shape) + sdpa(q, k, v)

    assert_right(SmallModel(attention=attention), max_fallbacks=1)


def test_head_counts_that_do_not_fit_name_those_that_do():
    with pytest.raises(HeadCountError) as caught:
        prove(SmallModel(), cases=((1, 10, 5),), attention="ulysses")
    assert "SP degree 5" in str(caught.value)
    assert "1, 2, 3, 4, 6, 12" in str(caught.value)
    assert "programs.py:" in str(caught.value)
