"""Failures that sequence parallelism is known for in the field, one named test for each.

From the description and the tests of DeepSpeed's pull request 8457: shapes are right and the
number is wrong at shard edges, masks, padding and token counts. Where a faulty form gives a
number of its own, the test computes it too: the inputs would show the fault.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autosp.dry_run import dry_run
from autosp.errors import HeadCountError, ShardingError
from autosp.graph import collective_kind
from autosp.oracle import check_module
from tests.support.dry_runs import request_for
from tests.support.programs import (
    HEAD_SIZE,
    NUM_HEADS,
    VOCABULARY,
    WIDTH,
    SmallModel,
    assert_right,
    prove,
    tokens,
)

sdpa = F.scaled_dot_product_attention
IGNORED = -100


def shifted_by_padding(model, x):
    """The loss of transformers' causal models."""
    labels = F.pad(model.labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    return F.cross_entropy(model.logits(x).view(-1, VOCABULARY), labels.view(-1))


def shifted_by_slicing(model, x):
    logits, labels = model.logits(x)[:, :-1], model.labels[:, 1:]
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))


def plain_mean(model, x):
    return F.cross_entropy(model.logits(x).view(-1, VOCABULARY), model.labels.view(-1))


def logits_of(ids, labels):
    model = SmallModel(loss=lambda model, x: model.logits(x))
    with torch.no_grad():
        return model(ids, labels)


def labels_kept_at(*positions):
    """Inputs whose only valid labels are at these positions."""

    def inputs(batch, length):
        ids, _ = tokens(batch, length)
        labels = torch.full_like(ids, IGNORED)
        for position in positions:
            labels[:, position] = (ids[:, position] + 1) % VOCABULARY
        return ids, labels

    return inputs


# ---------------------------------------------------------------- 1: targets at shard edges


@pytest.mark.parametrize("loss", [shifted_by_padding, shifted_by_slicing])
def test_the_target_across_a_shard_edge_is_paired_with_the_right_logit(loss):
    edge = labels_kept_at(4)  # of 8 tokens on 2 ranks: predicted by the last token of rank 0
    assert_right(SmallModel(loss=loss), inputs=edge, cases=((2, 8, 2),))
    ids, labels = edge(2, 8)
    kept = [block[:, 1:] for block in labels.chunk(2, 1)]  # labels cut before they are shifted
    assert not any((block != IGNORED).any() for block in kept)


def test_both_ends_of_the_sequence_at_every_degree():
    cases = ((2, 12, 2), (2, 12, 3), (1, 7, 4))
    assert_right(SmallModel(loss=shifted_by_padding), inputs=labels_kept_at(0, 1, -1), cases=cases)


# ---------------------------------------------------------------- 1b, 1c: token counts


def mean_of_local_means(logits, labels, num_ranks):
    means = [
        F.cross_entropy(rows.flatten(0, 1), targets.flatten())
        for rows, targets in zip(
            logits.chunk(num_ranks, 1), labels.chunk(num_ranks, 1), strict=True
        )
    ]
    return torch.stack(means).mean()


def test_ranks_with_different_counts_of_valid_tokens_weigh_by_them():
    uneven = labels_kept_at(0, 1, 2, 3, 5)  # four on rank 0, one on rank 1
    assert_right(SmallModel(loss=plain_mean), inputs=uneven, cases=((2, 8, 2),))
    ids, labels = uneven(2, 8)
    logits = logits_of(ids, labels)
    right = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert (mean_of_local_means(logits, labels, 2) - right).abs() > 1e-3 * right


def test_the_ignore_index_of_the_program_is_the_one_that_counts():
    def loss(model, x):
        labels = model.labels.clamp(min=0)
        return F.cross_entropy(
            model.logits(x).view(-1, VOCABULARY), labels.view(-1), ignore_index=0
        )

    assert_right(SmallModel(loss=loss), cases=((2, 8, 2), (2, 5, 4)))


@pytest.mark.parametrize("position", [0, -1])
def test_a_shard_of_only_ignored_labels_contributes_nothing(position):
    one_shard = labels_kept_at(position)
    assert_right(SmallModel(loss=plain_mean), inputs=one_shard, cases=((1, 8, 2), (2, 5, 4)))
    ids, labels = one_shard(1, 8)
    assert mean_of_local_means(logits_of(ids, labels), labels, 2).isnan()


def test_a_batch_of_only_ignored_labels_is_nan_as_in_the_model():
    def nothing(batch, length):
        ids, labels = tokens(batch, length)
        return ids, torch.full_like(labels, IGNORED)

    assert_right(SmallModel(loss=plain_mean), inputs=nothing, cases=((1, 8, 2),))


# ---------------------------------------------------------------- 1e: other losses


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_class_weights(reduction):
    weight = torch.linspace(0.2, 3, VOCABULARY, dtype=torch.float64)

    def loss(model, x):
        logits = model.logits(x).view(-1, VOCABULARY)
        return F.cross_entropy(logits, model.labels.view(-1), weight, reduction=reduction)

    assert_right(SmallModel(loss=loss), max_fallbacks=None)


def test_a_sum_divided_by_a_count_from_outside():
    def loss(model, x):
        logits = model.logits(x).view(-1, VOCABULARY)
        total = F.cross_entropy(logits, model.labels.view(-1), reduction="sum")
        return total / 7

    assert_right(SmallModel(loss=loss))


def test_losses_per_token_with_weights_of_the_program():
    def loss(model, x):
        logits = model.logits(x).view(-1, VOCABULARY)
        losses = F.cross_entropy(logits, model.labels.view(-1), reduction="none")
        weights = torch.linspace(0, 1, losses.shape[0], dtype=losses.dtype)
        return (losses * weights).sum() / weights.sum()

    assert_right(SmallModel(loss=loss), max_fallbacks=1)


def test_direct_and_shifted_losses_in_one_model():
    def loss(model, x):
        return plain_mean(model, x) + 0.5 * shifted_by_padding(model, x)

    assert_right(SmallModel(loss=loss))


def test_shift_of_a_flattened_batch():
    """``logits[:-1]`` over flattened rows: neighbours at the borders of sequences, too."""

    def loss(model, x):
        logits, labels = model.logits(x).view(-1, VOCABULARY), model.labels.view(-1)
        return F.cross_entropy(logits[:-1], labels[1:])

    assert_right(SmallModel(loss=loss), cases=((1, 8, 2), (2, 6, 3), (2, 5, 4)), max_fallbacks=None)


# ---------------------------------------------------------------- 2: another sequence dim


class SequenceFirst(SmallModel):
    """Activations are ``[sequence, batch, width]``."""

    def forward(self, ids, labels):
        x = F.embedding(ids.t(), self.embedding)
        q, k, v = (
            F.linear(x, weight).view(*x.shape[:2], NUM_HEADS, HEAD_SIZE).permute(1, 2, 0, 3)
            for weight in (self.query, self.key, self.value)
        )
        mixed = sdpa(q, k, v, is_causal=True).permute(2, 0, 1, 3).reshape(x.shape)
        logits = self.logits(x + mixed)[:-1]
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.t()[1:].reshape(-1))


def test_a_model_with_the_sequence_first():
    assert_right(SequenceFirst(), cases=((2, 8, 2), (3, 6, 3), (2, 5, 4)))


def test_a_batch_as_long_as_the_sequence():
    """Sizes tell nothing: batch, length and width may be equal."""
    for model in (SmallModel(loss=shifted_by_padding), SequenceFirst()):
        assert_right(model, cases=((8, 8, 2), (12, 12, 4)))


# ---------------------------------------------------------------- 3, 4: what does not divide


@pytest.mark.parametrize("length", [5, 7, 9, 15])
def test_a_length_that_the_ranks_do_not_divide_loses_no_token(length):
    cases = tuple((2, length, num_ranks) for num_ranks in (2, 4))
    assert_right(SmallModel(loss=shifted_by_padding), inputs=labels_kept_at(-1), cases=cases)


@pytest.mark.parametrize(("num_kv_heads", "num_ranks"), [(12, 5), (4, 5), (3, 8)])
def test_heads_that_do_not_divide_run_in_a_ring(num_kv_heads, num_ranks):
    assert_right(SmallModel(num_kv_heads=num_kv_heads), cases=((1, 8, num_ranks),))


@pytest.mark.parametrize(("num_kv_heads", "num_ranks"), [(12, 5), (4, 5), (3, 8)])
def test_heads_that_do_not_divide_are_one_clear_line_for_ulysses(num_kv_heads, num_ranks):
    model = SmallModel(num_kv_heads=num_kv_heads)
    with pytest.raises(HeadCountError) as caught:
        prove(model, cases=((1, 8, num_ranks),), attention="ulysses")
    text = str(caught.value)
    assert "\n" not in text
    assert f"12 query heads and {num_kv_heads} key/value heads" in text
    assert "Ulysses can use SP degree" in text


# ---------------------------------------------------------------- 5, 6: masks


def rows_from_activations(x):
    return x.sum(-1)[:, None, :, None].expand(-1, 1, -1, x.shape[1])


def keys_from_activations(x):
    return x.sum(-1)[:, None, None, :].expand(-1, 1, x.shape[1], -1)


@pytest.mark.parametrize(
    "make",
    [
        rows_from_activations,
        keys_from_activations,
        lambda x: rows_from_activations(x) * keys_from_activations(x),
        lambda x: torch.zeros(1, NUM_HEADS, 1, 1, dtype=x.dtype) + rows_from_activations(x),
    ],
    ids=["rows", "keys", "rows and keys", "rows of each head"],
)
def test_a_mask_built_from_sharded_activations_is_whole_in_attention(make):
    class Masked(SmallModel):
        def attend(self, x):
            self.bias_of_pairs = make(x).sin()
            return super().attend(x)

    def attention(model, q, k, v):
        return sdpa(q, k, v, attn_mask=model.bias_of_pairs)

    assert_right(Masked(attention=attention), max_fallbacks=None)


def test_a_mask_passed_by_position():
    def attention(model, q, k, v):
        padding = (model.ids != 3)[:, None, None, :].expand(-1, 1, q.shape[2], -1)
        return sdpa(q, k, v, padding | torch.eye(q.shape[2], dtype=torch.bool))

    assert_right(SmallModel(attention=attention))


def test_queries_keys_and_values_passed_by_keyword():
    def attention(model, q, k, v):
        return sdpa(value=v, key=k, query=q, is_causal=True)

    assert_right(SmallModel(attention=attention, loss=plain_mean))


def test_one_tensor_as_key_and_value_is_exchanged_once():
    def attention(model, q, k, v):
        return sdpa(q, k, k, is_causal=True)

    assert_right(SmallModel(attention=attention, loss=plain_mean))

    class Shared(SmallModel):
        def forward(self, input_ids, labels):
            return super().forward(input_ids, labels)

    request = request_for(lambda: Shared(attention=attention, loss=plain_mean), sp=2, seq=16)
    program = dry_run(request).compilation.sharded.program
    kinds = [collective_kind(node) for node in program.graph.nodes]
    assert kinds.count("all_to_all") == 3  # query, key as value, output


# ---------------------------------------------------------------- 8, 9: nothing by name or truth


def test_names_of_inputs_mean_nothing():
    class Renamed(SmallModel):
        def forward(self, s27, mask):
            return super().forward(s27, mask)

    def before(model, x):
        return x + F.embedding(torch.arange(x.shape[1]), model.positions[0])

    model = Renamed(before=before, loss=shifted_by_padding)
    assert_right(model, cases=((2, 8, 2),))


def test_one_tensor_as_ids_and_labels():
    def same(batch, length):
        ids, _ = tokens(batch, length)
        return ids, ids

    assert_right(SmallModel(loss=shifted_by_padding), inputs=same, cases=((2, 8, 2), (1, 7, 4)))


def test_a_model_that_cannot_be_sharded_is_never_left_whole_in_silence():
    class NoAttention(SmallModel):
        def attend(self, x):
            return x.cumsum(1)

    with pytest.raises(ShardingError, match="found no attention"):
        prove(NoAttention(loss=plain_mean), cases=((1, 8, 2),))


def test_constants_that_are_false_in_python():
    """A zero and a scalar among the tensors: their truth is never asked."""

    class WithScalars(SmallModel):
        def __init__(self, **options):
            super().__init__(**options)
            self.register_buffer("nothing", torch.zeros((), dtype=torch.float64))
            self.register_buffer("one", torch.ones(1, dtype=torch.float64))

        def attend(self, x):
            return super().attend(x * self.one + self.nothing)

    assert_right(WithScalars(loss=plain_mean), cases=((2, 8, 2), (1, 1 + 6, 4)))


# ---------------------------------------------------------------- operators over the sequence


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x.cumsum(1),
        lambda x: x.roll(1, 1),
        lambda x: x.mean(1, keepdim=True).expand_as(x),
        lambda x: x.softmax(1),
        lambda x: F.conv1d(F.pad(x.mT, (2, 0)), x.new_ones(WIDTH, 1, 3), groups=WIDTH).mT,
    ],
    ids=["cumsum", "roll", "mean", "softmax", "conv1d"],
)
def test_operators_that_mix_positions_are_not_local(mix):
    model = SmallModel(after=lambda model, x: x + mix(x).sin(), loss=plain_mean)
    assert_right(model, cases=((2, 8, 2), (2, 5, 4)), max_fallbacks=None)
    x = torch.randn(2, 8, WIDTH, dtype=torch.float64)
    local = torch.cat([mix(block) for block in x.chunk(2, 1)], 1)
    assert not torch.allclose(local, mix(x))


def test_labels_that_are_not_contiguous():
    def transposed(batch, length):
        ids, labels = tokens(batch, length)
        return ids, labels.t().contiguous().t()

    assert_right(SmallModel(loss=shifted_by_slicing), inputs=transposed)


def test_positions_given_or_counted_by_the_model():
    class Given(SmallModel):
        def forward(self, ids, labels, positions):
            self.given = positions
            return super().forward(ids, labels)

    def inputs(batch, length):
        return (*tokens(batch, length), torch.arange(length)[None].expand(batch, -1) % 5)

    def looked_up(model, x):
        return x + F.embedding(model.given, model.positions[0])

    def counted(model, x):
        return x + F.embedding(torch.arange(x.shape[1]), model.positions[0])

    assert_right(Given(before=looked_up, loss=plain_mean), inputs=inputs)
    assert_right(SmallModel(before=counted, loss=plain_mean))


def test_every_length_is_compiled_for_itself():
    model = SmallModel(loss=shifted_by_padding)
    for length in (8, 12, 8, 7):
        report = check_module(model, tokens(2, length, seed=length), num_ranks=2)
        assert report.ok, report.first_wrong
