"""Matrix products, local or through the all-gather path."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.programs import SmallModel, assert_right


def test_rows_times_weights_are_local():
    def body(model, x):
        rows = x[0]
        return (
            F.linear(x, model.weight, model.bias).sin(),
            F.linear(x, model.bias).sin(),
            x @ model.weight + x @ model.weight.t(),
            (x @ model.bias).sin(),
            torch.addmm(model.bias, rows, model.weight, beta=0.5, alpha=2.0),
            torch.mm(rows, model.weight).sin(),
            torch.bmm(x, model.weight.expand(x.shape[0], -1, -1)).sin(),
        )

    assert_right(SmallModel(after=body))


def test_columns_and_batches_are_local():
    def body(model, x):
        blocks = x.view(*x.shape[:2], 4, 6)
        return (
            (model.weight @ x.transpose(1, 2)).sin(),
            (model.weight @ x[0].t()).sin(),
            (blocks @ model.weight[:6, :6]).sin(),
            (blocks @ blocks.transpose(-1, -2)).sin(),
            (x[0] @ model.weight.expand(3, -1, -1)).sin(),
        )

    assert_right(SmallModel(after=body))


def test_products_that_contract_over_the_sequence_gather():
    def body(model, x):
        return (
            (x @ x.transpose(1, 2)).softmax(-1) @ x,
            (x.transpose(1, 2) @ x).sin(),
            torch.eye(x.shape[1], dtype=x.dtype) @ x,
            torch.addmm(x[0], x[0], model.weight),
            torch.einsum("bsd,btd->bst", x, x.sin()),
        )

    assert_right(SmallModel(after=body), max_fallbacks=None)


def test_a_partial_input_is_summed_before_the_product():
    def body(model, x):
        return F.linear(x.mean(1), model.weight, model.bias).sin(), x.sum(1) @ model.weight

    assert_right(SmallModel(after=body), max_fallbacks=2)


def test_a_pooled_vector_is_multiplied_with_every_token():
    def body(model, x):
        pooled = F.linear(x.mean(1), model.weight).sigmoid()
        return x * pooled[:, None], (x @ pooled[:, :, None]).view(x.shape[0], -1)

    assert_right(SmallModel(after=body), max_fallbacks=None)
