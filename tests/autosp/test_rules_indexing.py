"""Indices find the same rows as on one rank, on whichever rank they are."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.programs import ALL_CASES, WIDTH, SmallModel, assert_right


def test_reading_features_by_index():
    def body(model, x):
        some = torch.tensor([3, 0, 7])
        order = x.detach().argsort(-1)
        return (
            x[..., some].sin(),
            x.index_select(-1, some).cos(),
            x.gather(-1, order).sin(),
            torch.take_along_dim(x, order[..., :3], -1).cos(),
            x[..., some, None].sin(),
            x[0, :, some].sin(),
        )

    assert_right(SmallModel(after=body))


def test_reading_rows_of_the_sequence_by_index():
    def body(model, x):
        rows = torch.arange(x.shape[0])
        last = (model.ids != 3).sum(1) - 1
        return (
            x[:, [0, 3, 1]].sin(),
            x[rows, last].sin(),
            x[rows, -1].cos(),
            x.index_select(1, torch.tensor([4, 0])).sin(),
            x[:, [0, -1], [1, 2]].sin(),
            x.gather(1, last[:, None, None].expand(-1, 1, WIDTH)).sin(),
            x.flatten(0, 1)[model.ids.flatten() % (x.shape[0] * x.shape[1])].sin(),
        )

    assert_right(SmallModel(after=body), cases=ALL_CASES)


def test_rows_in_an_order_that_the_activations_decide():
    def body(model, x):
        order = x.detach()[..., 0].argsort(1)
        return x.gather(1, order.unsqueeze(-1).expand_as(x)).sin()

    assert_right(SmallModel(after=body), max_fallbacks=1)


def test_tables_read_at_sharded_indices():
    def body(model, x):
        choice = x.detach().topk(2, -1).indices
        table = model.positions[0]
        return (
            table[choice].sin(),
            F.embedding(choice, model.weight).cos(),
            model.weight[choice[..., 0], choice[..., 1]],
            table.index_select(0, choice[0, :, 0]).sin(),
            F.one_hot(choice, WIDTH).sum(2) * x,
        )

    assert_right(SmallModel(after=body))


def test_a_router_stays_with_its_tokens():
    def body(model, x):
        tokens = x.flatten(0, 1)
        scores = (tokens @ model.weight).softmax(-1)
        top = scores.topk(2, -1)
        weights = top.values / top.values.sum(-1, keepdim=True)
        gates = torch.zeros_like(scores).scatter(1, top.indices, weights)
        sparse = scores.new_zeros(scores.shape).scatter_add(1, top.indices, weights)
        mask = F.one_hot(top.indices, WIDTH).to(x.dtype)
        balance = (mask.sum(1).mean(0) * scores.mean(0)).sum() * WIDTH
        experts = torch.einsum("te,td,edf->tf", gates, tokens, model.weight.expand(WIDTH, -1, -1))
        return experts.sin(), balance, sparse.cos(), scores.sort(-1, descending=True).values

    assert_right(SmallModel(after=body))


def test_filling_and_scattering_by_a_mask():
    def body(model, x):
        mask = model.ids > 3
        changed = x * 1
        changed[model.ids == 2] = 0.5
        images = model.weight.repeat(3, 1)
        return (
            x.masked_scatter(mask.unsqueeze(-1).expand_as(x), images).sin(),
            x.masked_scatter(model.weight[0] > 0, x.detach().sin()).cos(),
            changed.sin(),
            x.masked_fill(mask.unsqueeze(-1), 3.0).cos(),
            torch.where(mask[..., None], x, model.bias).sin(),
        )

    assert_right(SmallModel(after=body))
