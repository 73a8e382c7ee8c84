"""Cross entropy is the loss of the whole sequence, wherever its valid targets are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.programs import (
    ALL_CASES,
    CASES,
    VOCABULARY,
    SmallModel,
    assert_right,
    tokens,
)


def cross_entropy(**options):
    def loss(model, x):
        logits = model.logits(x)
        labels = model.labels.view(-1)
        if "ignore_index" in options:
            labels = labels.clamp(min=0)
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels, **options)

    return loss


def test_mean_on_every_degree_and_length():
    assert_right(SmallModel(loss=cross_entropy()), cases=ALL_CASES)


@pytest.mark.parametrize(
    "options",
    [
        {"reduction": "sum"},
        {"label_smoothing": 0.1},
        {"label_smoothing": 0.1, "reduction": "sum"},
        {"ignore_index": 3},
        {"weight": torch.linspace(0.5, 2, VOCABULARY, dtype=torch.float64), "reduction": "sum"},
    ],
    ids=lambda options: "-".join(options),
)
def test_options(options):
    assert_right(SmallModel(loss=cross_entropy(**options)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_weighted_mean_is_divided_by_the_weight_of_all_targets(smoothing):
    weight = torch.linspace(0.5, 2, VOCABULARY, dtype=torch.float64)
    assert_right(SmallModel(loss=cross_entropy(weight=weight, label_smoothing=smoothing)))


def test_losses_per_token_are_weighted_by_the_program():
    def loss(model, x):
        logits = model.logits(x).view(-1, VOCABULARY)
        losses = F.cross_entropy(logits, model.labels.view(-1), reduction="none")
        weights = (model.labels.view(-1) != -100) * 0.5
        return (losses * weights).view(x.shape[:2]).sum() / weights.sum()

    assert_right(SmallModel(loss=loss))


def all_ignored_but(*positions):
    def inputs(batch, length):
        ids, labels = tokens(batch, length)
        kept = torch.full_like(labels, -100)
        for position in positions:
            kept[:, position] = ids[:, position]
        return ids, kept

    return inputs


@pytest.mark.parametrize("positions", [(0,), (-1,), (1, 2, 3)], ids=str)
def test_shards_whose_targets_are_all_ignored(positions):
    assert_right(SmallModel(loss=cross_entropy()), inputs=all_ignored_but(*positions))


def test_shift_by_slicing_logits_and_labels():
    def loss(model, x):
        logits = model.logits(x)[:, :-1]
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), model.labels[:, 1:].reshape(-1))

    assert_right(SmallModel(loss=loss))


def test_shift_by_padding_labels():
    def loss(model, x):
        labels = F.pad(model.labels, (0, 1), value=-100)[..., 1:].contiguous()
        return F.cross_entropy(model.logits(x).float().view(-1, VOCABULARY), labels.view(-1))

    assert_right(SmallModel(loss=loss))


def test_bfloat16_logits():
    def loss(model, x):
        logits = model.logits(x).to(torch.bfloat16)
        return F.cross_entropy(logits.view(-1, VOCABULARY), model.labels.view(-1))

    assert_right(SmallModel(loss=loss))


def test_targets_computed_from_the_sharded_activations():
    def loss(model, x):
        logits = model.logits(x).view(-1, VOCABULARY)
        return F.cross_entropy(logits, logits.detach().argmax(-1))

    assert_right(SmallModel(loss=loss))


def test_class_probabilities():
    weight = torch.linspace(0.5, 2, VOCABULARY, dtype=torch.float64)

    def loss(model, x):
        logits = model.logits(x).view(-1, VOCABULARY)
        targets = (logits.detach() * 2).softmax(-1)
        return (
            F.cross_entropy(logits, targets)
            + F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
            + F.cross_entropy(logits.sin(), targets, weight=weight)
            + F.cross_entropy(model.logits(x).mT, targets.view(*x.shape[:2], -1).mT)
            + F.cross_entropy(logits, targets, reduction="none").sin().sum()
        )

    assert_right(SmallModel(loss=loss))


def test_classes_before_the_sequence():
    weight = torch.linspace(0.5, 2, VOCABULARY, dtype=torch.float64)

    def loss(model, x):
        logits = model.logits(x).transpose(1, 2)
        return (
            F.cross_entropy(logits, model.labels)
            + F.cross_entropy(logits, model.labels, weight, reduction="sum")
            + F.cross_entropy(logits, model.labels, reduction="none").sin().sum()
            + F.nll_loss(logits.log_softmax(1), model.labels, weight)
        )

    assert_right(SmallModel(loss=loss))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_elements(reduction):
    def loss(model, x):
        target = model.positions[:, : x.shape[1]].expand_as(x)
        probability = x.sigmoid()
        losses = (
            F.mse_loss(x, target, reduction=reduction),
            F.l1_loss(x.sin(), target.detach(), reduction=reduction),
            F.smooth_l1_loss(x, target, reduction=reduction, beta=0.5),
            F.huber_loss(x, target, reduction=reduction, delta=0.3),
            F.binary_cross_entropy(probability, target.sigmoid().detach(), reduction=reduction),
            F.binary_cross_entropy_with_logits(
                x,
                (target > 0).to(x.dtype),
                pos_weight=model.bias.detach().exp(),
                reduction=reduction,
            ),
            F.soft_margin_loss(x, target.sign().detach(), reduction=reduction),
            F.kl_div(x.log_softmax(-1), target.softmax(-1), reduction=reduction),
            F.poisson_nll_loss(x, target.exp().detach(), reduction=reduction),
            F.hinge_embedding_loss(x, target.sign().detach(), reduction=reduction),
        )
        return sum((item * (i + 1)).sin().sum() for i, item in enumerate(losses))

    assert_right(SmallModel(loss=loss))


def test_losses_of_vectors():
    def loss(model, x):
        rows = x.flatten(0, 1)
        sign = (rows.detach().sum(-1) > 0) * 2.0 - 1
        return (
            F.cosine_embedding_loss(rows, rows.cos(), sign, margin=0.1)
            + F.cosine_similarity(x, x.cos(), dim=-1).sin().mean()
            + F.margin_ranking_loss(rows[:, 0], rows[:, 1], sign, margin=0.2)
            + F.triplet_margin_loss(rows, rows.sin(), rows.cos())
        )

    assert_right(SmallModel(loss=loss))


def test_distillation_from_the_logits_of_another_head():
    def loss(model, x):
        student, teacher = model.logits(x), model.logits(x.sin()).detach()
        shifted = student[:, :-1].log_softmax(-1), teacher[:, :-1].log_softmax(-1)
        mask = model.labels[:, 1:] != -100
        forward = (shifted[1].exp() * (shifted[1] - shifted[0])).sum(-1)
        return (
            F.kl_div(shifted[0], shifted[1], log_target=True, reduction="batchmean")
            + (forward * mask).sum() / mask.sum()
            + 1e-2 * student.logsumexp(-1).square().mean()
        )

    assert_right(SmallModel(loss=loss))


def test_the_mean_that_a_trainer_takes_over_items_in_the_batch():
    def loss(model, x):
        count = (model.labels != -100).sum()
        logits = model.logits(x).float().view(-1, VOCABULARY)
        labels = F.pad(model.labels, (0, 1), value=-100)[:, 1:].reshape(-1)
        return F.cross_entropy(logits, labels, reduction="sum") / count + x.square().mean()

    assert_right(SmallModel(loss=loss))


def test_loss_in_chunks_of_the_sequence():
    def loss(model, x):
        total = torch.zeros((), dtype=x.dtype)
        for rows, labels in zip(x.split(3, 1), model.labels.split(3, 1), strict=True):
            logits = model.logits(rows).reshape(-1, VOCABULARY)
            total = total + F.cross_entropy(logits, labels.reshape(-1), reduction="sum")
        return total / (model.labels != -100).sum()

    assert_right(SmallModel(loss=loss), max_fallbacks=None)


def test_a_regulariser_inside_the_model_counts_once():
    def loss(model, x):
        regulariser = sum(p.square().sum() for p in model.parameters())
        return cross_entropy()(model, x) + 1e-3 * regulariser

    assert_right(SmallModel(loss=loss))


def test_losses_and_logits_together():
    def loss(model, x):
        logits = model.logits(x)
        value = F.cross_entropy(logits.view(-1, VOCABULARY), model.labels.view(-1))
        return value, logits

    assert_right(SmallModel(loss=loss), cases=CASES)


def test_logits_alone_take_cotangents_from_outside():
    assert_right(SmallModel(loss=lambda model, x: model.logits(x)), cases=CASES)
