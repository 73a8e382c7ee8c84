"""Orderings, running extremes, pooling and complex pairs, along the sequence and off it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.programs import WIDTH, SmallModel, assert_right

PADDED = ((2, 5, 4),)
"""Rows of padding, and a rank that holds nothing else."""


def test_orderings_along_the_sequence_gather_and_equal_values_fall_as_on_one_rank():
    def body(model, x):
        coarse = (x.detach() * 2).round()  # many equal values
        best = coarse[..., 0].topk(3, 1)
        return (
            x.sort(1).values.sin(),
            x * coarse.argsort(1),
            x.topk(2, 1).values.sin(),
            x.gather(1, best.indices[..., None].expand(-1, -1, WIDTH)).sin(),
            x * torch.sort(coarse, dim=1, stable=True, descending=True).indices,
            x.kthvalue(2, 1).values.sin(),
        )

    assert_right(SmallModel(after=body), max_fallbacks=6)


def test_orderings_of_features_stay_with_their_rows():
    def body(model, x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return (
            x.kthvalue(2, -1).values + x.median(-1).values + x.mode(-1).values,
            torch.linalg.cross(x[..., :3], x[..., 3:6]).sin(),
            torch.view_as_real(torch.fft.fft(pairs)).sin(),
            torch.fft.irfft(torch.fft.rfft(x) * 0.5).sin(),
        )

    assert_right(SmallModel(after=body), cases=PADDED)


def test_running_extremes_of_the_sequence():
    def body(model, x):
        coarse, whole = (x * 2).round() / 2, (x * 4).to(torch.int32)
        largest, smallest = x.cummax(1), coarse.cummin(1)
        return (
            largest.values.sin() * largest.indices,
            smallest.values.sin() + x * smallest.indices,
            x * whole.cummax(1).values + x * whole.cummin(1).indices,
            x.cummax(-1).values.sin(),
        )

    assert_right(SmallModel(after=body))


def test_running_extremes_after_what_is_not_a_number():
    def body(model, x):
        odd = x.detach().masked_fill(model.ids[..., None] == model.ids[:, 1:2, None], float("nan"))
        empty = torch.full_like(x, float("-inf")).cummax(1)
        return x * odd.cummax(1).indices + x * odd.cummin(1).values.isnan() + x * empty.indices

    assert_right(SmallModel(after=body), cases=PADDED)


def test_rows_of_the_sequence_one_by_one():
    def body(model, x):
        state, states = torch.zeros_like(x[:, 0]), []
        for row in x.unbind(1):
            state = torch.tanh(state * model.bias + row)
            states.append(state)
        return torch.stack(states, 1), torch.stack([part.sin() for part in x.unbind(0)])

    assert_right(SmallModel(after=body), cases=PADDED, max_fallbacks=1)


def test_windows_that_are_pooled():
    def body(model, x):
        along = x.mT
        return (
            F.avg_pool1d(along, 2).sin(),
            F.avg_pool1d(along, 3, 2, 1).sin(),
            F.max_pool1d(along, 3, 1, 1).sin(),
            F.avg_pool1d(x, 2).sin() + F.max_pool1d(x, 2).sin(),
        )

    assert_right(SmallModel(after=body))


def test_windows_of_different_lengths_gather():
    def body(model, x):
        return F.avg_pool1d(x.mT, 3, 2, 1, count_include_pad=False).sin()

    assert_right(SmallModel(after=body), cases=PADDED, max_fallbacks=1)


def test_rotation_by_complex_numbers():
    def body(model, x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        angles = torch.outer(torch.arange(x.shape[1]), torch.arange(WIDTH // 2)).to(x.dtype)
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
        return turned.flatten(2).sin(), torch.view_as_real(pairs.sum(1)).sin()

    assert_right(SmallModel(after=body), cases=PADDED)


def test_complex_numbers_travel_as_pairs():
    def body(model, x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(torch.fft.fft(pairs, dim=1)).sin()

    assert_right(SmallModel(after=body), cases=PADDED, max_fallbacks=1)


def test_buckets_and_slopes_by_channel():
    def body(model, x):
        bounds = torch.tensor([-0.5, 0.0, 0.5], dtype=x.dtype)
        return (
            x * torch.bucketize(x.detach(), bounds) + x * torch.searchsorted(bounds, x.detach()),
            F.prelu(x, model.bias[:1]).sin(),
            F.prelu(x.mT, model.bias).sin(),
        )

    assert_right(SmallModel(after=body), cases=PADDED)


def test_logits_of_the_last_tokens_alone():
    def body(model, x):
        last = [model.logits(x[:, slice(-keep, None)]).sin() for keep in (0, 1, 4)]
        return (*last, model.logits(x[:, torch.tensor([1, 4])]).sin())

    assert_right(SmallModel(after=body))
