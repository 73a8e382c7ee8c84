"""Norms, softmax and reductions: padding rows never count."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.programs import ALL_CASES, WIDTH, SmallModel, assert_right


def test_normalisation_of_features():
    def body(model, x):
        return (
            F.layer_norm(x, (WIDTH,), model.bias, model.bias).sin(),
            F.rms_norm(x, (WIDTH,), model.bias).sin(),
            x.softmax(-1) * x.log_softmax(-1),
            x.cumsum(-1).sin(),
            x / x.norm(dim=-1, keepdim=True),
            F.normalize(x, dim=-1),
        )

    assert_right(SmallModel(after=body))


def test_reductions_of_features_are_local():
    def body(model, x):
        return (
            x.sum(-1).sin(),
            x.mean(-1, keepdim=True).sin() * x,
            x.amax(-1) + x.var(-1) + x.std(-1, unbiased=False) + x.logsumexp(-1),
            x.max(-1).values + x.topk(2, -1).values.sum(-1) + x.sort(-1).values[..., 0],
            x * x.argmax(-1, keepdim=True),
            sum(torch.var_mean(x, -1)),
            x.flip(-1).sin(),
        )

    assert_right(SmallModel(after=body))


def test_reductions_over_the_sequence_on_every_degree():
    def body(model, x):
        return (
            x.sum().sin(),
            x.sum(1).sin(),
            x.sum((0, 1), keepdim=True).sin(),
            x.mean((1, 2), keepdim=True).sin() * x,
            x.mean((0, 1)).sin(),
            x.mean().sin(),
        )

    assert_right(SmallModel(after=body), cases=ALL_CASES)


def test_reductions_that_change_the_type():
    def body(model, x):
        return (
            x.float().sum(1, dtype=torch.float64).sin(),
            x.float().mean(dtype=torch.float64).sin(),
            x * (x > 0).sum(),
            x * (x > 0).double().mean(),
        )

    assert_right(SmallModel(after=body))


def test_a_mask_weighted_mean():
    def body(model, x):
        valid = model.ids != 0
        return (x * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)

    assert_right(SmallModel(after=body))


def test_every_reduction_over_the_sequence_stays_sharded():
    def body(model, x):
        return (
            x.var(1) + x.amax(1) + x.max(1).values + x.logsumexp(1) + x.norm(dim=1),
            x.norm() + x.max() - x.min() + x.var() + x.std() + torch.linalg.vector_norm(x),
            x.std((0, 1), keepdim=True).sin() * x + x.softmax(1) * x.log_softmax(1),
            x.prod(1) + x.prod() + sum(torch.var_mean(x, (1, 2), correction=0)).sin()[:, None],
            x * (x > 2).any() + x * torch.count_nonzero(x > 0) + x * (x > -1).all(1, keepdim=True),
            torch.aminmax(x, dim=1).max + x.nansum(1) + x.norm(p=1) + x.norm(p=3, dim=(0, 1)),
            torch.linalg.vector_norm(x, float("inf"), 1) + torch.linalg.vector_norm(x, 0, 1),
        )

    assert_right(SmallModel(after=body))


def test_positions_of_extremes_over_the_sequence():
    def body(model, x):
        values, indices = x.min(1)
        return (
            values.sin() * indices,
            x * x.argmax(1, keepdim=True) + x * x.argmin() + x * x.argmax(),
            model.ids.double()[..., None] * x.max(1, keepdim=True).values,
        )

    assert_right(SmallModel(after=body))


def test_reductions_of_flattened_rows_with_padding():
    def body(model, x):
        rows, shifted = x.reshape(-1, WIDTH), x[:, :-2].reshape(-1, WIDTH)
        return (
            rows.mean(0) + rows.amax(0) + rows.var(0) + rows.prod(0) + rows.norm(dim=0),
            shifted.mean() + shifted.max() + shifted.logsumexp((0, 1)) + shifted.norm(),
            rows.softmax(0) + rows.argmax(0) * rows.max(0).values,
            rows.view(-1).sum().sin() * rows + x.mT.reshape(-1, x.shape[1]).amin(1).sum(),
        )

    assert_right(SmallModel(after=body), cases=((2, 5, 4), (2, 6, 3)))


def test_equal_extremes_share_the_gradient_as_on_one_rank():
    def body(model, x):
        clipped = x.clamp(-0.1, 0.1)
        return (
            clipped.amax(1).sin() + clipped.max() + clipped.aminmax().min,
            clipped.max(1).values.sin() + clipped.min(1).values * clipped.argmin(1),
            torch.linalg.vector_norm(clipped, float("inf"), (0, 1)).sin(),
            clipped.reshape(-1, WIDTH).max(0).values * clipped.reshape(-1, WIDTH).argmax(0),
        )

    assert_right(SmallModel(after=body))


def test_reductions_of_constant_and_of_zero_rows_have_finite_gradients():
    def body(model, x):
        same = x * 0 + 1
        zero = x.relu() * 0
        return same.std(1).sin() + same.var(1), zero.norm(dim=1).sin() + zero.prod(1) + x.prod(1)

    assert_right(SmallModel(after=body))


def test_reductions_of_integers_and_truths():
    def body(model, x):
        whole = (x * 4).to(torch.int32)
        large = x > 1
        return (
            x * whole.amax(1, keepdim=True) - x * whole.sum(1, keepdim=True),
            x * whole.max(1).indices.unsqueeze(1) * whole.prod(1, keepdim=True).sign(),
            x * large.any(1, keepdim=True) + x * large.any((0, 1)) + x * large.all(),
            x * large.amax(1, keepdim=True),
        )

    assert_right(SmallModel(after=body))


def test_a_softmax_over_masked_positions_of_the_sequence():
    def body(model, x):
        scores = (x @ model.bias).masked_fill(model.ids == 3, float("-inf"))
        return (scores.softmax(1)[..., None] * x).sum(1), scores.logsumexp(1), scores.amax(1)

    assert_right(SmallModel(after=body))


def test_softmax_over_the_sequence_in_half_precision():
    def body(model, x):
        return (x.softmax(1, dtype=torch.float32), x.log_softmax(1), x.softmax(0), x.var(1))

    assert_right(SmallModel(after=body, dtype=torch.bfloat16))


def test_nonlinear_operators_on_sums_over_the_sequence_are_no_fallback():
    def body(model, x):
        pooled = x.mean(1)
        return pooled.softmax(-1) * pooled.amax(-1, keepdim=True) + pooled.sort(-1).values

    assert_right(SmallModel(after=body))


def test_a_median_over_the_sequence_gathers():
    assert_right(SmallModel(after=lambda m, x: x.median(1).values), max_fallbacks=1)


def test_a_mean_over_flattened_rows_with_padding():
    def body(model, x):
        rows = x.reshape(-1, WIDTH).sin()
        return rows.mean(0), rows.mean(), rows.sum(0), x[:, :-2].reshape(-1, WIDTH).sin().mean()

    assert_right(SmallModel(after=body), cases=ALL_CASES)


def test_normalisation_over_the_sequence():
    def body(model, x):
        weight = model.bias.expand(x.shape[1], -1)
        mean = model.bias.detach()
        return (
            F.layer_norm(x, x.shape[1:], weight, weight).sin(),
            F.rms_norm(x, x.shape[1:]).sin(),
            F.group_norm(x.transpose(1, 2), 4, model.bias, model.bias).sin(),
            F.group_norm(x.reshape(-1, WIDTH), 4).sin(),
            F.instance_norm(x.transpose(1, 2)).sin(),
            F.batch_norm(x.mT, mean, mean.exp(), model.bias, model.bias).sin(),
        )

    assert_right(SmallModel(after=body))


def test_a_mean_of_half_precision_over_a_long_sequence_does_not_overflow():
    def body(model, x):
        return (x.detach() * 0 + 60).mean((0, 1)) * x

    assert_right(SmallModel(after=body, dtype=torch.float16), cases=((8, 256, 2),))
