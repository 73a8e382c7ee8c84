"""Where sequences come from, and how whole models are put together."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autosp.errors import AutoSPError
from autosp.oracle import check_module
from tests.support.gloo_cases import sample
from tests.support.programs import (
    VOCABULARY,
    WIDTH,
    SmallModel,
    assert_right,
    prove,
    tokens,
)


def cross_entropy(model, x):
    return F.cross_entropy(model.logits(x).view(-1, VOCABULARY), model.labels.view(-1))


@pytest.mark.parametrize(
    ("name", "length", "num_ranks"), [("gpt", 13, 4), ("llama", 13, 2), ("hf_llama", 13, 2)]
)
def test_samples(name, length, num_ranks):
    subject = sample(name, batch=2, length=length, dtype="float64")
    report = check_module(subject.module, (), subject.kwargs, num_ranks=num_ranks)
    assert report.ok, report.first_wrong
    assert report.num_fallbacks == 0
    assert report.num_cotangents_checked > 70


def test_learned_positions_looked_up_and_sliced():
    def before(model, x):
        length = x.shape[1]
        looked_up = F.embedding(torch.arange(length), model.positions[0])
        return x + looked_up + model.positions[:, :length]

    assert_right(SmallModel(before=before, loss=cross_entropy))


def test_two_lookups_of_one_table_and_a_tied_head():
    def before(model, x):
        return x + F.embedding(model.ids.flip(1), model.embedding, padding_idx=3)

    assert_right(SmallModel(before=before, loss=cross_entropy))


def test_gradients_scaled_by_frequency_see_the_whole_sequence():
    class Scaled(SmallModel):
        def forward(self, ids, labels):
            self.ids, self.labels = ids, labels
            x = F.embedding(ids % 3, self.embedding, scale_grad_by_freq=True)
            return cross_entropy(self, x + self.attend(x))

    assert_right(Scaled(), max_fallbacks=None)


def test_lookups_of_indices_computed_from_activations():
    def after(model, x):
        found = x.detach().argmax(-1) % VOCABULARY
        counted = (x.detach() > 0).sum((1, 2)) % VOCABULARY
        whole = F.embedding(counted, model.embedding)[:, None]
        return x + F.embedding(found, model.embedding) + F.one_hot(found, WIDTH) + whole

    assert_right(SmallModel(after=after), max_fallbacks=None)


def test_floating_inputs_are_cut_at_once():
    class FromEmbeddings(SmallModel):
        def forward(self, embeddings, labels):
            self.ids, self.labels = labels, labels
            return cross_entropy(self, embeddings + self.attend(embeddings))

    def inputs(batch, length):
        generator = torch.Generator().manual_seed(3)
        embeddings = torch.randn(batch, length, WIDTH, generator=generator, dtype=torch.float64)
        return embeddings.requires_grad_(), tokens(batch, length)[1]

    assert_right(FromEmbeddings(), inputs=inputs)


def test_merging_images_into_the_tokens():
    def before(model, x):
        image = model.positions[:, :2].expand(x.shape[0], -1, -1)
        merged = x.clone()
        merged[:, 1:3] = image
        return merged

    assert_right(SmallModel(before=before, loss=cross_entropy), max_fallbacks=None)


def test_a_prefix_before_the_tokens():
    def before(model, x):
        prefix = model.positions[:, :2].expand(x.shape[0], -1, -1)
        return torch.cat([prefix, x], 1)

    assert_right(SmallModel(before=before, after=lambda m, x: x[:, 2:].sin()), max_fallbacks=None)


def test_operators_over_the_sequence_are_right_and_few_gather():
    def after(model, x):
        rows = (model.ids % x.shape[1])[..., None].expand(-1, -1, WIDTH)
        return (
            x.roll(1, 1).sin() + x.flip(1).cos() + x.sort(1).values,
            x.gather(1, rows).sin() + torch.zeros_like(x).scatter_add(1, rows, x),
            x[torch.arange(x.shape[0]), (model.ids != 0).sum(1) - 1].sin(),
            x[:, torch.tensor([0, 2, 1])].sin() + x.index_select(1, torch.tensor([2, 0, 1])),
            F.conv1d(F.pad(x.transpose(1, 2), (2, 0)), model.weight[:, :9].reshape(24, 3, 3),
                     groups=8).sin(),
            x[:, 1:].sin() * x[:, :-1],
            x[:, ::2].sin(),
            x[:, -1].sin() + x[:, 0],
            torch.cat([x, x.sin()], 1),
            x.repeat(1, 2, 1).sin(),
        )  # fmt: skip

    for proof in prove(SmallModel(after=after)):
        assert proof.report.ok, proof.report.first_wrong
        assert 1 <= proof.report.num_fallbacks <= 5


def test_a_mixture_of_experts_with_a_balancing_loss():
    def loss(model, x):
        probabilities = (x @ model.weight[:, :4]).softmax(-1)
        weights, chosen = probabilities.topk(2, -1)
        mixed = x
        for expert in range(4):
            gate = (weights * (chosen == expert)).sum(-1, keepdim=True)
            mixed = mixed + gate * F.linear(x, model.weight * (expert + 1))
        share = F.one_hot(chosen[..., 0], 4).to(x.dtype).mean((0, 1))
        return cross_entropy(model, mixed) + (share * probabilities.mean((0, 1))).sum()

    assert_right(SmallModel(loss=loss), max_fallbacks=None)


@pytest.mark.parametrize(("length", "num_ranks"), [(1, 2), (2, 4), (3, 2)])
def test_sequences_shorter_than_the_ranks(length, num_ranks):
    try:
        proofs = prove(SmallModel(loss=cross_entropy), cases=((2, length, num_ranks),))
    except AutoSPError as error:
        assert "sequence" in str(error)
    else:
        assert all(proof.report.ok for proof in proofs), proofs[0].report.first_wrong
