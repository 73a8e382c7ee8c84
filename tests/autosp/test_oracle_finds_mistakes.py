"""Rules broken on purpose: the oracle names the node, and only then."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autosp.oracle import check_module
from autosp.placement import Partial, Shard
from autosp.sharding import attention, linear_algebra, loss, redistribute, reductions, views
from autosp.sharding.rules import RULES
from tests.support.programs import VOCABULARY, SmallModel, prove, tokens

aten = torch.ops.aten
ONE_CASE = ((2, 5, 2),)


def mean_loss(model, x):
    logits = model.logits(x)
    return F.cross_entropy(logits.view(-1, VOCABULARY), model.labels.view(-1))


def first_wrong(model, cases=ONE_CASE):
    (proof,) = prove(model, cases=cases)
    assert not proof.report.ok
    return proof.report.first_wrong


def test_nothing_is_reported_without_a_mistake():
    (proof,) = prove(SmallModel(loss=mean_loss), cases=ONE_CASE)
    assert proof.report.ok
    assert proof.report.first_wrong is None
    assert proof.report.fills == ("last", "first")
    assert proof.report.num_values_checked > 20
    assert proof.report.num_cotangents_checked > 20


def test_a_loss_normalised_by_the_local_count(monkeypatch):
    def local_count(op, target, ignore_index, like):
        rows = op.redistribute(target, Shard(0, 5, 2, 1), "", fill=ignore_index)
        valid = op.emit(aten.ne.Scalar, rows, ignore_index)
        return op.emit(aten.to.dtype, op.emit(aten.sum.default, valid), torch.float64)

    monkeypatch.setattr(loss, "_global_count", local_count)
    wrong = first_wrong(SmallModel(loss=mean_loss))
    assert (wrong.name, wrong.quantity) == ("cross_entropy_loss", "value")
    assert wrong.placement == "P(sum)"
    assert wrong.source is not None and "F.cross_entropy" in wrong.source.text
    assert wrong.max_rel_error > 0.01
    assert len(wrong.expected) == len(wrong.actual) == 1


def test_padding_rows_that_are_summed(monkeypatch):
    monkeypatch.setattr(reductions, "rows_to_sum", lambda op, source, cut: source.node)
    wrong = first_wrong(SmallModel(after=lambda m, x: x.mean(1)))
    assert (wrong.name, wrong.quantity) == ("mean", "value")


def test_a_slice_that_keeps_the_wrong_rows(monkeypatch):
    def last_rows(op):
        source = op.args[0]
        cut = source.placement
        kept = op.shape[1]
        tail = Shard(1, kept, 1, cut.pad + cut.atom - kept, label=cut.label)
        rolled = op.emit(aten.flip.default, source, [1])
        return op.result(rolled, tail)

    monkeypatch.setitem(RULES, aten.slice.Tensor, last_rows)
    wrong = first_wrong(SmallModel(after=lambda m, x: x[:, :-1].sin()))
    assert (wrong.name, wrong.quantity) == ("slice_1", "value")


def test_a_linear_whose_bias_counts_twice(monkeypatch):
    def doubled(op):
        value = linear_algebra.linear(op)
        return op.result(op.emit(aten.add.Tensor, value, op.args[2]), value.placement)

    monkeypatch.setitem(RULES, aten.linear.default, doubled)
    model = SmallModel(after=lambda m, x: F.linear(x, m.weight, m.bias))
    model.attend = lambda x: (
        F.scaled_dot_product_attention(*[x.view(*x.shape[:2], 12, 2).transpose(1, 2)] * 3)
        .transpose(1, 2)
        .reshape(x.shape)
    )
    assert first_wrong(model).name == "linear"


def test_an_all_to_all_that_mixes_up_the_ranks(monkeypatch):
    pack = redistribute._pack_for

    def reversed_ranks(builder, value, target, leading):
        node = pack(builder, value, target, leading)
        return builder.emit(aten.flip.default, node, [0]) if target.label == "head" else node

    monkeypatch.setattr(redistribute, "_pack_for", reversed_ranks)
    wrong = first_wrong(SmallModel())
    assert (wrong.name, wrong.quantity) == ("scaled_dot_product_attention", "value")
    assert wrong.operator == "aten.scaled_dot_product_attention.default"


def test_kv_heads_given_to_the_wrong_ranks(monkeypatch):
    repeat = attention.one_head_per_rank

    def shuffled(op, tensor, num_ranks):
        value = repeat(op, tensor, num_ranks)
        flipped = op.emit(aten.flip.default, value, [1])
        return attention.Value(flipped, value.placement, value.shape)

    monkeypatch.setattr(attention, "one_head_per_rank", shuffled)
    assert first_wrong(SmallModel(num_kv_heads=2)).name == "scaled_dot_product_attention"


def test_a_wrong_gradient_behind_right_values(monkeypatch):
    def no_gradient(op):
        value = views.reshape(op)
        return op.result(op.emit(aten.detach.default, value), value.placement)

    monkeypatch.setitem(RULES, aten.unflatten.int, no_gradient)
    model = SmallModel(after=lambda m, x: x.unflatten(-1, (12, 2)).sin() + 0 * m.bias.sum())
    wrong = first_wrong(model)
    assert wrong.quantity == "cotangent"
    assert wrong.name == "add"


def test_a_sum_that_is_called_replicated_but_is_partial(monkeypatch):
    def not_summed(op):
        value = reductions.total(op)
        assert isinstance(value.placement, Partial)
        scaled = op.emit(aten.mul.Scalar, value, op.num_ranks)
        return op.result(scaled, value.placement)

    monkeypatch.setitem(RULES, aten.sum.dim_IntList, not_summed)
    assert first_wrong(SmallModel(after=lambda m, x: x.sum(1))).name == "sum_1"


def test_the_report_reads_as_one_line(monkeypatch):
    monkeypatch.setattr(reductions, "rows_to_sum", lambda op, source, cut: source.node)
    text = str(first_wrong(SmallModel(after=lambda m, x: x.mean(1))))
    assert "\n" not in text
    assert "value of mean (aten.mean.dim, P(sum))" in text
    assert "test_oracle_finds_mistakes.py:" in text


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_one_rank_is_a_mesh_too(num_ranks):
    assert check_module(SmallModel(loss=mean_loss), tokens(1, 5), num_ranks=num_ranks).ok
