"""Attention in a ring and on a split of the ranks: proved by the oracle, or refused in a line."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import autosp
from autosp.errors import AutoSPError, HeadCountError, ShardingError
from autosp.ring_schedule import RingSchedule
from autosp.runtime import ring_attention
from tests.support.programs import HEAD_SIZE, NUM_HEADS, FourHeads, SmallModel, assert_right, prove

sdpa = F.scaled_dot_product_attention

SPLIT_CASES = ((1, 16, 4), (2, 11, 6), (1, 13, 8))


@pytest.mark.parametrize("num_kv_heads", [1, 3, 12])
def test_causal(num_kv_heads):
    cases = ((1, 12, 2), (2, 5, 3), (2, 5, 4), (1, 13, 8))
    assert_right(SmallModel(num_kv_heads=num_kv_heads), cases=cases, attention="ring")


def bidirectional(model, q, k, v):
    return sdpa(q, k, v, scale=0.3)


def test_bidirectional_with_a_scale():
    cases = ((1, 12, 3), (2, 5, 4), (1, 2, 4))
    assert_right(SmallModel(attention=bidirectional), cases=cases, attention="ring")


@pytest.mark.parametrize("num_kv_heads", [1, 12])
def test_ulysses_within_a_ring(num_kv_heads):
    model = SmallModel(num_kv_heads=num_kv_heads)
    assert_right(model, cases=SPLIT_CASES, attention="hybrid")


def test_bidirectional_ulysses_within_a_ring():
    assert_right(SmallModel(attention=bidirectional), cases=SPLIT_CASES, attention="hybrid")


@pytest.mark.parametrize("attention", ["auto", "ring", "hybrid"])
def test_eight_ranks_and_four_heads(attention):
    for num_kv_heads in (2, 4):
        assert_right(FourHeads(num_kv_heads), cases=((1, 13, 8),), attention=attention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types(dtype):
    assert_right(SmallModel(dtype=dtype, num_kv_heads=4), cases=((2, 11, 4),), attention="ring")


def test_autocast():
    def attention(model, q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return sdpa(q.float(), k.float(), v.float(), is_causal=True).to(q.dtype)

    assert_right(SmallModel(attention=attention), cases=((2, 7, 4),), attention="ring")


def test_repeated_kv_heads_travel_once():
    def attention(model, q, k, v):
        repeats = NUM_HEADS // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, dim=1)
        return sdpa(q, k, v, is_causal=True)

    model = SmallModel(num_kv_heads=3, attention=attention)
    assert_right(model, cases=((2, 5, 4),), attention="ring")


def test_rotary_positions_follow_the_zigzag():
    def attention(model, q, k, v):
        angles = torch.arange(q.shape[2], dtype=q.dtype)[:, None] * model.bias[:1]

        def rotate(x):
            a, b = x.chunk(2, -1)
            return x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()

        return sdpa(rotate(q), rotate(k), v, is_causal=True)

    assert_right(SmallModel(attention=attention), cases=((1, 16, 4), (2, 7, 4)), attention="ring")


def test_shifted_labels_and_chosen_rows_in_zigzag_order():
    def loss(model, x):
        logits = model.logits(x)
        shifted = F.cross_entropy(logits[:, :-1].flatten(0, 1), model.labels[:, 1:].flatten())
        rows = x[:, 0].sin().sum() + x[:, -1].cos().sum() + x[:, 2:4].sum()
        pooled = x[torch.arange(x.shape[0]), model.ids.argmax(-1)].sin().sum()
        return shifted + rows + pooled + x.amax(1).sum() + x.mean((0, 1)).square().sum()

    cases = ((1, 16, 4), (2, 7, 4), (2, 11, 3))
    assert_right(SmallModel(loss=loss), cases=cases, attention="ring", max_fallbacks=1)


def test_what_needs_neighbours_in_zigzag_order_is_gathered():
    def after(model, x):
        return x.cumsum(1), F.pad(x, (0, 0, 1, 0))[:, :-1], x.roll(1, 1)

    model = SmallModel(after=after)
    assert_right(model, cases=((2, 11, 4),), attention="ring", max_fallbacks=None)


def test_keys_that_are_whole_on_every_rank():
    def attention(model, q, k, v):
        prefix = model.weight.view(1, NUM_HEADS, -1, 2)[:, :, :6].expand(q.shape[0], -1, -1, -1)
        return sdpa(q, prefix.sin(), prefix.cos()) + sdpa(q, k.sin(), v)

    assert_right(SmallModel(attention=attention), cases=((2, 7, 4),), attention="ring")


def test_a_causal_ring_beside_other_attention():
    """One site with a mask and heads for four ranks, one causal with three heads."""

    def attention(model, q, k, v):
        def three_heads(x):
            merged = x.transpose(1, 2).flatten(2)
            return merged.unflatten(2, (3, -1)).transpose(1, 2)

        ring = sdpa(*map(three_heads, (q, k, v)), is_causal=True)
        ring = ring.transpose(1, 2).flatten(2).unflatten(2, (NUM_HEADS, HEAD_SIZE)).transpose(1, 2)
        index = torch.arange(q.shape[2])
        window = (index[:, None] - index[None]).abs() < 3
        return ring + sdpa(q, k, v, attn_mask=window) + sdpa(q, k, v)

    model = SmallModel(attention=attention)
    assert_right(model, cases=((2, 11, 4),), attention="auto", max_fallbacks=None)


def test_the_oracle_names_the_attention_whose_ring_is_wrong(monkeypatch):
    right = RingSchedule.tile

    def without_the_last_block(schedule, step):
        return None if step == schedule.size - 1 else right(schedule, step)

    monkeypatch.setattr(RingSchedule, "tile", without_the_last_block)
    (proof,) = prove(SmallModel(), cases=((1, 16, 4),), attention="ring")
    assert not proof.report.ok
    assert proof.report.first_wrong.name == "scaled_dot_product_attention"


def test_the_oracle_finds_a_wrong_gradient_of_a_ring(monkeypatch):
    right = ring_attention._all_rows

    def half(gradient, schedule):
        return right(gradient, schedule) * 0.5

    monkeypatch.setattr(ring_attention, "_all_rows", half)
    (proof,) = prove(SmallModel(), cases=((1, 16, 4),), attention="ring")
    assert proof.report.first_wrong.quantity == "cotangent"


# ---------------------------------------------------------------------- refusals


def refusal(model, *, choice="ring", ranks=4):
    with pytest.raises(ShardingError) as caught:
        prove(model, cases=((1, 8, ranks),), attention=choice)
    return caught.value


def distance(q):
    """A bias for each query and key."""
    index = torch.arange(q.shape[2], dtype=q.dtype)
    return -(index[:, None] - index[None]).abs()


@pytest.mark.parametrize("choice", ["ring", "hybrid"])
def test_biases_are_refused_in_one_line(choice):
    def attention(model, q, k, v):
        return sdpa(q, k, v, attn_mask=distance(q))

    error = refusal(SmallModel(attention=attention), choice=choice)
    assert f"--attention {choice}: a ring takes masks that vectors of the sequence" in str(error)
    assert "test_rules_ring.py:" in str(error) and "\n" not in str(error)
    assert "--attention ulysses" in error.hint


def test_dropout_on_probabilities_is_refused():
    def attention(model, q, k, v):
        return sdpa(q, k, v, dropout_p=0.1, is_causal=True)

    model = SmallModel(attention=attention).train()
    assert "does not drop probabilities" in str(refusal(model))


def test_a_causal_ring_with_other_keys_is_refused():
    def attention(model, q, k, v):
        return sdpa(q, k[:, :, :4], v[:, :, :4], is_causal=True)

    error = refusal(SmallModel(attention=attention))
    assert "as many keys as queries" in str(error)


def test_attention_written_as_products_is_refused():
    def attention(model, q, k, v):
        sinks = model.bias[:NUM_HEADS].view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)
        scores = torch.cat([q @ k.transpose(-2, -1), sinks], -1)
        return torch.softmax(scores, -1)[..., :-1] @ v

    error = refusal(SmallModel(attention=attention))
    assert "written as matrix products" in str(error)
    assert "scaled_dot_product_attention" in error.hint


def test_a_split_that_does_not_exist_is_refused():
    error = refusal(SmallModel(), choice="hybrid", ranks=5)
    assert "5 ranks have no split" in str(error) and "--attention ring" in error.hint


def test_without_a_ring_unfit_heads_are_refused_as_ever():
    def attention(model, q, k, v):
        return sdpa(q, k, v, attn_mask=distance(q))

    for choice, model in (("ulysses", SmallModel()), ("auto", SmallModel(attention=attention))):
        error = refusal(model, choice=choice, ranks=5)
        assert isinstance(error, HeadCountError)
        assert "1, 2, 3, 4, 6, 12" in error.hint


def test_an_unknown_form_is_refused():
    with pytest.raises(AutoSPError, match="unknown attention 'star'.*auto, ulysses, ring, hybrid"):
        autosp.backend(attention="star")
