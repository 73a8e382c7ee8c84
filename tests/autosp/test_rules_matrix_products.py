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


def test_products_that_sum_over_the_sequence_are_partial():
    def body(model, x):
        batch, length, _ = x.shape
        heads = x.view(batch, length, 12, 2).transpose(1, 2)
        flat = heads.reshape(batch * 12, length, 2)
        state, small = heads.mT @ heads, model.weight[:2, :2].expand(batch * 12, 2, 2)
        return (
            state.sin(),
            (heads @ state).cos(),
            torch.bmm(flat, torch.bmm(flat.mT, flat)).sin(),
            torch.baddbmm(small, flat.mT, flat, beta=0.5).cos(),
            torch.addmm(model.bias, x.flatten(0, 1), model.weight, alpha=2).sin(),
            torch.nn.functional.linear(x.mT, model.positions[0, :length].mT).sin(),
        )

    assert_right(SmallModel(after=body))


def test_einsum_is_the_products_that_it_consists_of():
    def body(model, x):
        heads = x.view(*x.shape[:2], 12, 2)
        return (
            torch.einsum("bshd,bthd->bhst", heads, heads).sin(),
            torch.einsum("bshd,hde->bse", heads, model.weight.view(12, 2, 24)).sin(),
            torch.einsum("bsd,bse->bde", x, x.cos()).sin(),
            torch.einsum("bsd,bsd->bs", x, x).sin(),
            torch.einsum("bsd->bd", x).sin(),
            torch.einsum("bshd,bshe->bshde", heads, heads).sin(),
        )

    assert_right(SmallModel(after=body))


def test_pooling_by_one_query_and_triangles_of_scores():
    def body(model, x):
        query = model.bias[None, None].expand(x.shape[0], -1, -1)
        scores = torch.einsum("bsd,btd->bst", x, x)
        return (
            ((query @ x.mT).softmax(-1) @ x).sin(),
            (scores.tril().softmax(-1) @ x).sin(),
            scores.triu(1).sin() + scores.mT.tril(-1).cos(),
        )

    assert_right(SmallModel(after=body))


def test_repetition():
    def body(model, x):
        return (
            x.repeat(1, 1, 2).sin(),
            x.repeat(2, 1, 1, 1).cos(),
            x.repeat_interleave(2, -1).sin(),
            x.repeat_interleave(2, 1).cos(),
            x.tile(1, 2, 1).sin(),
            torch.nn.functional.glu(x, -1).sin(),
            x.view(*x.shape[:2], 4, 6).diagonal(dim1=2, dim2=3).sin(),
        )

    assert_right(SmallModel(after=body))
