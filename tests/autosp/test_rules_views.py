"""Views and layout changes keep every row with its owner."""

from __future__ import annotations

import torch

from tests.support.programs import HEAD_SIZE, NUM_HEADS, WIDTH, SmallModel, assert_right


def test_flattening_batch_and_sequence_and_back():
    def body(model, x):
        rows = x.reshape(-1, WIDTH).sin()
        return rows.view(x.shape), rows.unflatten(0, x.shape[:2]).cos(), x.flatten(0, 1).view_as(x)

    assert_right(SmallModel(after=body))


def test_strided_shards_of_flattened_sequences_pass_through_row_wise_operators():
    def body(model, x):
        rows = torch.nn.functional.linear(x.flatten(0, 1), model.weight, model.bias)
        return torch.nn.functional.layer_norm(rows, (WIDTH,)).view(x.shape)

    assert_right(SmallModel(after=body))


def test_permutations_move_the_cut():
    def body(model, x):
        heads = x.view(*x.shape[:2], NUM_HEADS, HEAD_SIZE)
        return (
            x.permute(1, 0, 2).sin(),
            heads.permute(2, 0, 1, 3).sin(),
            x.transpose(0, 1).cos(),
            x.mT.sin(),
            x[0].t().sin(),
            x.movedim(1, 0).sin(),
            x.swapaxes(1, 2).sin(),
        )

    assert_right(SmallModel(after=body))


def test_dims_of_size_one_come_and_go():
    def body(model, x):
        return (
            x.unsqueeze(1).squeeze(1).sin(),
            x.unsqueeze(-1).squeeze().sin(),
            x.unsqueeze(0).unsqueeze(-1).squeeze(0).squeeze(-1).cos(),
        )

    assert_right(SmallModel(after=body))


def test_squeezing_a_dim_that_only_a_rank_holds_one_row_of():
    assert_right(SmallModel(after=lambda m, x: x.squeeze(1).sin()), cases=((2, 4, 4),))


def test_stacking_and_concatenating_off_the_sequence():
    def body(model, x):
        constant = model.positions[:, : x.shape[1]]
        return (
            torch.stack([x, x.sin()], 0),
            torch.stack([x, x.cos()], -1),
            torch.cat([x, constant.expand_as(x)], -1).sin(),
            torch.cat([x.sin(), x], 0),
        )

    assert_right(SmallModel(after=body))


def test_splitting_off_the_sequence():
    def body(model, x):
        a, b, c = x.chunk(3, -1)
        parts = x.split([4, 8, 12], -1)
        rows = x.view(*x.shape[:2], 3, 8).unbind(2)
        return a * b.sin() * c, parts[0].sin(), parts[2] * 2, rows[0] * rows[1].sin() + rows[2]

    assert_right(SmallModel(after=body))


def test_selecting_and_slicing_off_the_sequence():
    def body(model, x):
        return x.select(2, 3).sin(), x[..., -1], x[0].sin(), x[..., 3:9].cos(), x.narrow(2, 3, 5)

    assert_right(SmallModel(after=body))


def test_dropping_the_last_tokens_makes_them_padding():
    def body(model, x):
        shifted = x[:, :-1]
        return shifted.sin(), shifted.mean(1), shifted.mean(), x[:, :-2].sum(1).sin(), shifted * 2

    assert_right(SmallModel(after=body))


def test_a_shifted_slice_meets_replicated_operands_of_the_shifted_length():
    def body(model, x):
        length = x.shape[1]
        return x[:, :-1] + model.positions[:, 1:length] + model.ids[:, 1:, None]

    assert_right(SmallModel(after=body))


def test_keeping_only_the_first_token_is_not_a_broadcast():
    assert_right(SmallModel(after=lambda m, x: (x[:, :1].sin(), x[:, :1] * m.bias)))


def test_expanding_off_the_sequence():
    def body(model, x):
        wide = x.unsqueeze(2).expand(-1, -1, 3, -1).sin()
        return wide, x.mean(-1, keepdim=True).expand_as(x).sin() * x

    assert_right(SmallModel(after=body))


def test_assigning_to_a_part_of_the_features():
    def body(model, x):
        changed = x * 1
        changed[..., :4] = x[..., 4:8].sin()
        changed[..., 5] = x[..., 6]
        changed[..., 7] = 2.0
        return changed.sin()

    assert_right(SmallModel(after=body))


def test_flattened_rows_with_heads_inside():
    def body(model, x):
        inner = x.reshape(x.shape[0], x.shape[1] * 4, 6).sin()
        return inner.reshape(x.shape).mean(1), x.transpose(1, 2).contiguous().view(-1, x.shape[1])

    assert_right(SmallModel(after=body))


def test_a_sequence_and_its_head_are_gathered_each_for_itself():
    def body(model, x):
        return x.amax(1).sin(), x[:, :-1].amax(1).sin(), x[:, :-2].amax(1).cos(), x.cumsum(1)

    assert_right(SmallModel(after=body), max_fallbacks=4)


def test_a_cache_that_is_empty_before_the_first_token_is_joined_for_nothing():
    def body(model, x):
        before = torch.empty(0, dtype=x.dtype)
        return torch.cat([before, x], 1).sin(), torch.cat([before, x.cos(), before], -2)

    assert_right(SmallModel(after=body), cases=((2, 5, 3),))
