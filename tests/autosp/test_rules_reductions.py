"""Norms, softmax and reductions: padding rows never count."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.programs import ALL_CASES, WIDTH, SmallModel, assert_right, prove


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


def test_reductions_over_the_sequence_without_a_rule_gather():
    def body(model, x):
        return (
            x.var(1) + x.amax(1) + x.max(1).values + x.logsumexp(1) + x.norm(dim=1),
            x.norm() + x.max() + x.var() + x.std() + torch.linalg.vector_norm(x),
            x.cumsum(1).sin() + x.softmax(1),
            x.median(1).values + x.prod(1) + x.topk(2, 1).values.sum(1),
            x * (x > 2).any() + x * torch.count_nonzero(x > 0),
        )

    for proof in prove(SmallModel(after=body)):
        assert proof.report.ok, proof.report.first_wrong
        assert proof.report.num_fallbacks >= 10


def test_a_mean_over_flattened_rows_with_padding():
    def body(model, x):
        rows = x.reshape(-1, WIDTH).sin()
        return rows.mean(0), rows.mean(), rows.sum(0), x[:, :-2].reshape(-1, WIDTH).sin().mean()

    assert_right(SmallModel(after=body), max_fallbacks=None)


def test_normalisation_over_the_sequence_gathers():
    def body(model, x):
        return F.layer_norm(x, x.shape[1:]).sin(), F.group_norm(x.transpose(1, 2), 4).sin()

    assert_right(SmallModel(after=body), max_fallbacks=2)


def test_a_mean_of_half_precision_over_a_long_sequence_does_not_overflow():
    def body(model, x):
        return (x.detach() * 0 + 60).mean((0, 1)) * x

    assert_right(SmallModel(after=body, dtype=torch.float16), cases=((8, 256, 2),))
