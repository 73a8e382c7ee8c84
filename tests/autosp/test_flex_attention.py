"""``flex_attention``: heads dealt out, functions that count heads, masks without S x S."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._higher_order_ops.flex_attention import flex_attention_backward
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
    noop_mask,
)
from torch.utils._python_dispatch import TorchDispatchMode

from autosp.errors import AutoSPError, ShardingError
from autosp.flex_attention import FlexAttention
from autosp.inner import Inductor
from autosp.runtime import block_tables
from tests.support.dry_runs import dry_run, request_for
from tests.support.programs import NUM_HEADS, SmallModel, assert_right, prove


def windows_per_head(model, q, k, v):
    """A soft cap, a learned slope per head, and a window on every other head of each document."""
    slopes, document = model.bias, (model.ids > 8).cumsum(-1)

    def score(score, batch, head, query, key):
        return torch.tanh(score / 2) * 2 + slopes[head] * (query - key)

    def mask(batch, head, query, key):
        seen = (query >= key) & ((query - key < 3) | (head % 2 == 0))
        return seen & (document[batch, query] == document[batch, key])

    blocks = create_block_mask(mask, q.shape[0], NUM_HEADS, q.shape[2], k.shape[2], device="cpu")
    return flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True, scale=0.3)


def sinks(model, q, k, v):
    """A logit per head that takes part in the softmax and in nothing else."""
    out, more = flex_attention(q, k, v, return_aux=AuxRequest(lse=True))
    return out * torch.sigmoid(more.lse - model.bias[:NUM_HEADS, None])[..., None].to(out.dtype)


@pytest.mark.parametrize(
    ("attention", "options"),
    [(windows_per_head, {"num_kv_heads": 4}), (sinks, {})],
)
def test_on_ranks(attention, options):
    assert_right(SmallModel(attention=attention, **options), cases=((2, 5, 3),))


def test_a_block_mask_from_outside_with_blocks_of_its_own_for_each_head():
    class FromOutside(SmallModel):
        def forward(self, ids, labels, blocks):
            self.blocks = blocks
            return super().forward(ids, labels)

    def mask(batch, head, query, key):
        return query >= key - head

    def inputs(batch, length):
        blocks = create_block_mask(mask, None, NUM_HEADS, length, length, device="cpu")
        ids = torch.arange(batch * length).view(batch, length) % 17
        return ids, ids, blocks

    def attention(model, q, k, v):
        return flex_attention(q, k, v, block_mask=model.blocks)

    assert_right(FromOutside(attention=attention), inputs=inputs, cases=((1, 6, 2),))


@pytest.mark.parametrize(("queries", "keys"), [(300, 300), (256, 513)])
def test_tables_of_blocks_are_those_of_torch(queries, keys):
    def mask(b, h, i, j):
        return (i + 40 * h >= j) & (j + 200 * b >= 0)

    expected = create_block_mask(mask, 2, 3, queries, keys, device="cpu").as_tuple()[2:10]
    name = block_tables.name_of(torch.fx.symbolic_trace(mask))
    sizes = (2, 3, queries, keys, 128, 128)
    with DoesNothing():
        tables = block_tables.BLOCK_TABLES([], name, *sizes, torch.device("cpu"))
    for one, other in zip(tables, expected, strict=True):
        assert torch.equal(one, other)


class DoesNothing(TorchDispatchMode):
    """Torch runs the first call of a compiled program under a mode."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_long_sequences_have_larger_blocks():
    assert [block_tables.block_rows(length, 128) for length in (7, 2**17, 2**20)] == [
        128, 128, 1024,
    ]  # fmt: skip


def heads(first, count, dtype=torch.float64):
    generator = torch.Generator().manual_seed(first)
    return torch.randn(1, count, 6, 4, generator=generator, dtype=dtype)


def test_some_heads_are_a_part_of_all_and_equal_a_softmax_written_out():
    q, k, v = (heads(seed, 4).requires_grad_() for seed in range(3))
    slopes = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    tables = create_block_mask(noop_mask, None, None, 6, 6, device="cpu").as_tuple()[2:-3]
    call = partial(
        FlexAttention,
        lambda score, b, h, i, j, slopes: score + slopes[h] * (i - j),
        lambda b, h, i, j: i >= j - h,
        (1, 1), (1 << 30, 1 << 30), 0.5, {},
    )  # fmt: skip
    parts = []
    for first in (0, 2):
        own = [tensor[:, first : first + 2] for tensor in (q, k, v)]
        parts.append(call(first_head=first)(*own, tables, [slopes], [])[0])
    index = torch.arange(6)
    distance = index[:, None] - index
    scores = 0.5 * q @ k.transpose(2, 3) + slopes[:, None, None] * distance
    seen = distance >= -torch.arange(4)[:, None, None]
    expected = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
    actual = torch.cat(parts, 1)
    torch.testing.assert_close(actual, expected)
    towards = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(actual, (q, k, v), towards),
        torch.autograd.grad(expected, (q, k, v), towards),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_rings_are_refused():
    model = SmallModel(attention=sinks)
    with pytest.raises(ShardingError, match="ring does not run the score_mod and mask_mod"):
        prove(model, cases=((1, 10, 5),), attention="ring")


def test_blocks_that_are_chosen_inside_the_forward_are_refused():
    def attention(model, q, k, v):
        number = torch.ones(1, 1, 1, dtype=torch.int32)
        blocks = BlockMask.from_kv_blocks(number, number[..., None] * 0, seq_lengths=(6, 6))
        return flex_attention(q, k, v, block_mask=blocks)

    with pytest.raises(AutoSPError, match="blocks are chosen inside the forward") as caught:
        prove(SmallModel(attention=attention), cases=((1, 6, 2),))
    assert "create_block_mask" in str(caught.value)


def test_inductor_says_that_it_has_no_backward_for_a_cpu():
    graph = torch.fx.Graph()
    query = graph.placeholder("query")
    query.meta["val"] = torch.empty(1, 2, 3, 4)
    graph.output(graph.call_function(flex_attention_backward, (query,)))
    with pytest.raises(AutoSPError, match="no backward of flex_attention on a CPU") as caught:
        Inductor().prepare_joint(torch.fx.GraphModule({}, graph))
    assert 'inner="eager"' in str(caught.value)


class OneAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 32)
        self.project = torch.nn.Linear(32, 96)

    def forward(self, input_ids):
        x, length = self.embedding(input_ids), input_ids.shape[1]
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        blocks = create_block_mask(
            lambda b, h, i, j: i >= j, None, None, length, length, device=x.device
        )
        return flex_attention(q, k, v, block_mask=blocks).square().mean()


def test_a_million_tokens_have_no_tensor_of_their_square():
    length = 2**20
    result = dry_run(request_for(OneAttention, sp=4, seq=length))
    assert not result.findings
    graphs = result.compilation.graphs
    for graph in (graphs.forward.graph, graphs.backward.graph):
        for node in graph.nodes:
            values = node.meta.get("val")
            for value in values if isinstance(values, (tuple, list)) else (values,):
                if isinstance(value, torch.Tensor):
                    assert sum(size >= length for size in value.shape) < 2, node.format_node()
