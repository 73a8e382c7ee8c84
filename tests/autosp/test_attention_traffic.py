"""Bytes on the wire: what the compiled graphs send is the least that each form can send."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from autosp.cost.attention_traffic import AttentionShape, exchange_bytes, ring_bytes
from autosp.graph import collective_kind
from autosp.mesh import Mesh
from tests.support.dry_runs import dry_run, request_for

LENGTH, HEAD_SIZE = 32, 4

ULYSSES = [(8, 8, 2), (8, 8, 8), (8, 4, 4), (8, 2, 4), (8, 1, 8), (12, 4, 4), (12, 3, 12)]
UNEVEN = [(12, 3, 2, 0), (12, 2, 3, 0), (12, 2, 3, 1), (24, 8, 12, 1)]
"""Query heads, KV heads that some ranks share and others do not, ranks, and the rank."""
RING = [(8, 8, 2), (8, 2, 4), (4, 1, 8), (4, 4, 8), (3, 3, 2), (5, 1, 4)]
HYBRID = [(4, 4, 8, 4), (4, 2, 8, 2), (2, 2, 4, 2), (6, 2, 4, 2), (6, 3, 9, 3)]
"""Query heads, KV heads, ranks, and ranks that exchange heads."""


class OneAttention(torch.nn.Module):
    def __init__(self, heads, kv_heads):
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 8)
        self.queries = torch.nn.Linear(8, heads * HEAD_SIZE)
        self.keys, self.values = (torch.nn.Linear(8, kv_heads * HEAD_SIZE) for _ in range(2))

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        q, k, v = (
            project(x).unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2)
            for project in (self.queries, self.keys, self.values)
        )
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        return y.square().mean()


def sent_bytes(heads, kv_heads, ranks, attention, rank=0):
    """Kind of collective -> bytes that leave a rank, forward and backward, of q, k, v and y."""
    model = request_for(
        lambda: OneAttention(heads, kv_heads), sp=ranks, seq=LENGTH, attention=attention
    )
    found: Counter[str] = Counter()
    graphs = dry_run(replace(model, mesh=Mesh(sp=ranks, rank=rank))).compilation.graphs
    for module in (graphs.forward, graphs.backward):
        for node in module.graph.nodes:
            kind = collective_kind(node)
            if kind not in ("all_to_all", "send_recv"):
                continue
            packed = node.args[0].meta["val"]
            row = packed.numel() // packed.shape[0] * packed.element_size()
            found[kind] += sum(row * n for to, n in enumerate(node.args[2]) if to != rank)
    return found


def heads_needed(heads, kv_heads, num_ranks, rank):
    """KV heads that a rank's share of the query heads reads."""
    own = range(rank * heads // num_ranks, (rank + 1) * heads // num_ranks)
    return len({head * kv_heads // heads for head in own})


def least_exchange(heads, kv_heads, num_ulysses, rows):
    """Elements that a rank must get to hold all rows of its heads, and to give back its output.

    Every rank gets the rows of the others for its query heads and for the KV heads they
    read, and the output of its own rows for the heads of the others.
    """
    others = (num_ulysses - 1) * rows
    queries = heads // num_ulysses * others
    keys = heads_needed(heads, kv_heads, num_ulysses, 0) * others
    return (2 * queries + 2 * keys) * HEAD_SIZE


def shape(heads, kv_heads, ranks):
    rows = LENGTH // ranks + (1 if LENGTH % ranks else 0)
    return AttentionShape(1, heads, kv_heads, rows, rows, HEAD_SIZE, HEAD_SIZE, 4, 4)


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), ULYSSES)
def test_ulysses_sends_the_least(heads, kv_heads, ranks):
    rows = -(-LENGTH // ranks)
    least = 2 * 4 * least_exchange(heads, kv_heads, ranks, rows)
    assert sent_bytes(heads, kv_heads, ranks, "ulysses") == {"all_to_all": least}
    assert exchange_bytes(shape(heads, kv_heads, ranks), num_ulysses=ranks) == least


@pytest.mark.parametrize(("heads", "kv_heads", "ranks", "rank"), UNEVEN)
def test_ulysses_sends_each_rank_the_kv_heads_that_its_queries_read(heads, kv_heads, ranks, rank):
    rows = -(-LENGTH // ranks)
    needed = [heads_needed(heads, kv_heads, ranks, other) for other in range(ranks)]
    queries = (ranks - 1) * heads // ranks * rows
    given = (sum(needed) - needed[rank]) * rows
    received = (ranks - 1) * needed[rank] * rows
    least = 4 * HEAD_SIZE * (4 * queries + 2 * given + 2 * received)
    assert sent_bytes(heads, kv_heads, ranks, "ulysses", rank) == {"all_to_all": least}
    all_ranks = 2 * HEAD_SIZE * (ranks * queries + (ranks - 1) * sum(needed) * rows)
    mean = 2 * 4 * (all_ranks // ranks)
    assert exchange_bytes(shape(heads, kv_heads, ranks), num_ulysses=ranks) == mean


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), RING)
def test_a_ring_sends_every_block_once_to_every_rank(heads, kv_heads, ranks):
    """Forward and backward keys and values, and in the backward their gradients."""
    block = 2 * kv_heads * LENGTH // ranks * HEAD_SIZE * 4
    least = 3 * (ranks - 1) * block
    assert sent_bytes(heads, kv_heads, ranks, "ring") == {"send_recv": least}
    assert ring_bytes(shape(heads, kv_heads, ranks), num_ulysses=1, num_ring=ranks) == least


@pytest.mark.parametrize(("heads", "kv_heads", "ranks", "num_ulysses"), HYBRID)
def test_both_together(heads, kv_heads, ranks, num_ulysses):
    found = sent_bytes(heads, kv_heads, ranks, "hybrid")
    pad = -LENGTH % (2 * ranks)
    rows = (LENGTH + pad) // ranks
    least = 2 * 4 * least_exchange(heads, kv_heads, num_ulysses, rows)
    own_heads = heads_needed(heads, kv_heads, num_ulysses, 0)
    block = 2 * own_heads * num_ulysses * rows * HEAD_SIZE * 4
    assert found == {"all_to_all": least, "send_recv": 3 * (ranks // num_ulysses - 1) * block}


def test_a_ring_of_bf16_sends_gradients_in_float32():
    bf16 = AttentionShape(1, 4, 2, 16, 16, 8, 8, element_bytes=2, wide_bytes=4)
    block = 2 * 16 * (8 + 8)
    assert ring_bytes(bf16, num_ulysses=1, num_ring=4) == 3 * block * (2 + 2 + 4)
