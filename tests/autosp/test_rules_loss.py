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


def test_weighted_mean_takes_the_gather_path():
    weight = torch.linspace(0.5, 2, VOCABULARY, dtype=torch.float64)
    assert_right(SmallModel(loss=cross_entropy(weight=weight)), max_fallbacks=1)


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

    assert_right(SmallModel(loss=loss), max_fallbacks=None)


def test_class_probabilities_and_channels_first_take_the_gather_path():
    def loss(model, x):
        logits = model.logits(x)
        soft = F.cross_entropy(logits.view(-1, VOCABULARY), logits.view(-1, VOCABULARY).softmax(-1))
        return soft + F.cross_entropy(logits.transpose(1, 2), model.labels)

    assert_right(SmallModel(loss=loss), max_fallbacks=2)


def test_other_losses():
    def loss(model, x):
        target = model.positions[:, : x.shape[1]].expand_as(x)
        log_probabilities = model.logits(x).log_softmax(-1).view(-1, VOCABULARY)
        return (
            F.mse_loss(x, target)
            + F.l1_loss(x.sin(), x.detach())
            + F.nll_loss(log_probabilities, model.labels.view(-1))
            + F.kl_div(x.log_softmax(-1), x.detach().softmax(-1), reduction="batchmean")
        )

    assert_right(SmallModel(loss=loss), max_fallbacks=None)


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
