"""Attention written as products around a softmax, and where its sequence begins."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autosp.errors import ShardingError
from autosp.graph import is_operator
from autosp.mesh import Mesh
from autosp.oracle.check import with_captured
from autosp.passes import PROGRAM_PASSES
from autosp.pipeline import PassContext
from tests.support.programs import (
    NUM_HEADS,
    VOCABULARY,
    WIDTH,
    SmallModel,
    assert_right,
    prove,
    tokens,
)

aten = torch.ops.aten


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


def plain(model, q, k, v):
    scores = q @ k.transpose(-1, -2) * 0.5
    scores = scores.masked_fill(~causal(q.shape[2]), float("-inf"))
    return scores.softmax(-1) @ v


def soft_capped_with_a_bias_per_head(model, q, k, v):
    scores = 2.0 * torch.tanh(torch.matmul(q, k.transpose(2, 3)) / 2.0)
    bias = model.bias[:NUM_HEADS, None, None] * torch.arange(k.shape[2]).to(q.dtype)
    return (scores + bias + causal(q.shape[2]).log()).softmax(-1).matmul(v)


def with_sinks(model, q, k, v):
    scores = q @ k.transpose(-1, -2)
    sinks = model.bias[:NUM_HEADS].reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v


def heads_flattened_into_the_batch(model, q, k, v):
    batch, heads, length, size = q.shape
    flat = [tensor.reshape(batch * heads, length, size) for tensor in (q, k, v)]
    bias = model.bias[:NUM_HEADS, None, None].repeat(batch, 1, length)
    scores = torch.baddbmm(bias, flat[0], flat[1].transpose(1, 2), beta=0.5, alpha=0.7)
    probabilities = scores.view(batch, heads, length, length).softmax(-1)
    mixed = torch.bmm(probabilities.view(batch * heads, length, length), flat[2])
    return mixed.view(batch, heads, length, size)


AS_WRITTEN = tuple(item for item in PROGRAM_PASSES if item.name != "recognise-attention")


@pytest.mark.parametrize(
    "attention",
    [plain, soft_capped_with_a_bias_per_head, with_sinks, heads_flattened_into_the_batch],
)
def test_handwritten_attention_runs_on_head_shards(attention):
    assert_right(SmallModel(attention=attention), passes=AS_WRITTEN)


def soft_capped(model, q, k, v):
    scores = 2.0 * torch.tanh(q @ k.transpose(2, 3) * 0.7 / 2.0)
    return (scores + causal(q.shape[2]).log()).softmax(-1).matmul(v)


def as_transformers_writes_it(model, q, k, v):
    batch, heads, length, size = k.shape
    k, v = (
        t[:, :, None].expand(batch, heads, 3, length, size).reshape(batch, -1, length, size)
        for t in (k, v)
    )
    least = torch.full((length, length), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.3 + least[None, None]
    probabilities = F.softmax(scores, dim=-1, dtype=q.dtype).to(q.dtype)
    return torch.matmul(F.dropout(probabilities, 0.0, training=True), v)


def folded_and_selected(model, q, k, v):
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)) / 2
    scores = torch.where(causal(q.shape[2]), scores, float("-inf"))
    return scores.softmax(-1).bmm(v.flatten(0, 1)).view(q.shape)


@pytest.mark.parametrize("choice", ["ulysses", "ring"])
@pytest.mark.parametrize("attention", [soft_capped, as_transformers_writes_it, folded_and_selected])
def test_recognised_attention_takes_every_form(attention, choice):
    grouped = {"num_kv_heads": 4} if attention is as_transformers_writes_it else {}
    model = SmallModel(attention=attention, **grouped)
    assert_right(model, cases=((2, 5, 3),), attention=choice)
    assert not any(is_operator(node, aten.softmax.int) for node in after_passes(model))


def after_passes(model):
    found = []

    def use(captured, _):
        program = captured.program
        for item in PROGRAM_PASSES:
            program = item.run(program, PassContext(Mesh(sp=3)))
        found.extend(program.graph.nodes)

    with_captured(model, tokens(1, 6), {}, use)
    return found


def probabilities_used_twice(model, q, k, v):
    probabilities = plain_probabilities(q, k)
    return probabilities @ v + probabilities.sum(-1, keepdim=True)


def weighted_after_the_softmax(model, q, k, v):
    return (plain_probabilities(q, k) * causal(q.shape[2])) @ v


def a_bias_that_is_scaled(model, q, k, v):
    bias = model.bias[:NUM_HEADS, None, None]
    return ((q @ k.transpose(2, 3) + bias * torch.arange(k.shape[2])) * 0.5).softmax(-1) @ v


def plain_probabilities(q, k):
    return (q @ k.transpose(2, 3)).softmax(-1)


@pytest.mark.parametrize(
    "attention", [probabilities_used_twice, weighted_after_the_softmax, a_bias_that_is_scaled]
)
def test_what_means_something_else_stays_as_it_is_written(attention):
    model = SmallModel(attention=attention)
    assert_right(model, cases=((1, 6, 3),))
    assert any(is_operator(node, aten.softmax.int) for node in after_passes(model))


def test_keys_shared_by_all_heads_are_whole():
    def attention(model, q, k, v):
        return (q @ k.mean(1, keepdim=True).transpose(2, 3)).softmax(-1) @ v

    assert_right(SmallModel(attention=attention), max_fallbacks=None)


def test_heads_that_cannot_be_dealt_out_are_right():
    def attention(model, q, k, v):
        mixed = (q[:, :5] @ k[:, :5].transpose(2, 3)).softmax(-1) @ v[:, :5]
        return torch.cat([mixed, q[:, 5:]], 1)

    assert_right(SmallModel(attention=attention), max_fallbacks=None)


def test_a_softmax_of_no_product_is_no_attention():
    class Router(SmallModel):
        def attend(self, x):
            return F.linear(x, self.query).softmax(-1) * x

    with pytest.raises(ShardingError, match="found no attention"):
        prove(Router())


def test_the_sequence_is_found_behind_rows_flattened_for_a_linear_layer():
    class Flattened(SmallModel):
        def attend(self, x):
            batch, length, _ = x.shape

            def heads(weight):
                rows = torch.addmm(self.bias, x.view(-1, WIDTH), weight)
                return rows.view(batch, length, NUM_HEADS, -1).transpose(1, 2)

            q, k, v = (heads(w) for w in (self.query, self.key, self.value))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).reshape(batch, length, WIDTH)

    assert_right(Flattened())


def test_ids_flattened_before_the_lookup_are_cut_row_by_row():
    class FlatIds(SmallModel):
        def forward(self, ids, labels):
            self.ids, self.labels = ids, labels
            x = F.embedding(ids.view(-1), self.embedding).view(*ids.shape, WIDTH)
            loss = F.cross_entropy(
                self.logits(x + self.attend(x)).view(-1, VOCABULARY), labels.view(-1)
            )
            return loss

    assert_right(FlatIds(), cases=((2, 6, 3), (2, 5, 4)))


def test_patches_are_cut_after_the_class_token_is_put_before_them():
    class Patches(SmallModel):
        def forward(self, pixels):
            kernel = self.weight[:, :12].reshape(WIDTH, 3, 2, 2)
            patches = F.conv2d(pixels, kernel, stride=2).flatten(2).transpose(1, 2)
            first = self.positions[:, :1].expand(pixels.shape[0], -1, -1)
            x = torch.cat([first, patches], 1)
            x = x + self.attend(x)
            return x[:, 0].sin().sum() + x.cos().sum()

    def pixels(batch, length):
        generator = torch.Generator().manual_seed(3)
        return (torch.randn(batch, 3, 6, length, generator=generator, dtype=torch.float64),)

    assert_right(Patches(), inputs=pixels, cases=((2, 8, 3), (2, 6, 4)), max_fallbacks=None)


def test_queries_from_another_sequence_than_the_keys():
    class Cross(SmallModel):
        def forward(self, ids, source):
            x = F.embedding(ids, self.embedding)
            memory = F.embedding(source, self.embedding)
            memory = memory + self.attend(memory)

            def heads(tensor, weight):
                rows = F.linear(tensor, weight)
                return rows.view(*tensor.shape[:2], NUM_HEADS, -1).transpose(1, 2)

            scores = heads(x, self.query) @ heads(memory, self.key).transpose(2, 3)
            y = scores.softmax(-1) @ heads(memory, self.value)
            return (x + y.transpose(1, 2).reshape(x.shape)).sin().sum()

    def inputs(batch, length):
        return tokens(batch, length)[0], tokens(batch, length + 2, seed=5)[0]

    assert_right(Cross(), inputs=inputs)
