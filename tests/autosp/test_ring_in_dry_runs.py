"""What a dry run of ring attention shows: steps, skipped blocks, work, memory, choices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autosp.cost.flops import is_attention, node_flops
from autosp.dry_run import dry_run
from autosp.events import GraphSnapshot, ListRecorder
from autosp.graph import collective_kind, is_wait, ring_note
from autosp.hardware import H100
from tests.support.dry_runs import dry_run_sample, request_for
from tests.support.programs import FourHeads, SmallModel

RANKS = 4


@pytest.fixture(scope="module")
def observed():
    recorder = ListRecorder()
    request = request_for("llama", sp=RANKS, seq=64, attention="ring", device=H100)
    return dry_run(request, recorder=recorder), recorder


@pytest.fixture(params=["min-cut", "default"], scope="module")
def graphs(request):
    made = dry_run_sample("llama", sp=RANKS, seq=64, attention="ring", partitioner=request.param)
    return made.compilation.graphs


def in_order(module):
    """Sends, waits and tiles of the first attention that the graph runs, in program order."""
    found = []
    for node in module.graph.nodes:
        kind = "send" if collective_kind(node) == "send_recv" else ""
        kind = kind or ("wait" if is_wait(node) and ring_note(node) else "")
        kind = kind or ("tile" if is_attention(node) else "")
        if kind:
            found.append(kind)
    return found[: len(found) // 2]


def test_a_block_is_sent_on_before_the_rank_computes_with_it(graphs):
    assert in_order(graphs.forward) == ["send", "tile", "wait"] * (RANKS - 1) + ["tile"]


def test_the_backward_sends_blocks_and_gradients_that_follow_them(graphs):
    first = ["send", "tile", "wait", "send", "tile", "send", "wait"]
    middle = ["send", "tile", "wait", "send", "wait"]
    last = ["tile", "wait", "send", "wait"]
    assert in_order(graphs.backward) == first + middle * (RANKS - 3) + last


def test_no_block_of_another_rank_is_kept_for_the_backward(graphs):
    """Saved: what the rank itself projected, the output and the log-sum-exp."""
    names = {node.name for node in graphs.backward.graph.find_nodes(op="placeholder")}
    sent_or_received = {
        node.name
        for node in graphs.forward.graph.nodes
        if collective_kind(node) == "send_recv" or (is_wait(node) and ring_note(node))
    }
    assert not names & sent_or_received


def test_the_trace_tells_what_each_node_does_in_the_ring(observed):
    result, recorder = observed
    del result
    snapshots = [e for e in recorder.events if isinstance(e, GraphSnapshot)]
    last = {snapshot.graph: snapshot for snapshot in snapshots}
    for phase, sends in (("forward", RANKS - 1), ("backward", 2 * (RANKS - 1))):
        ring = [c for c in last[phase].collectives if c.kind == "send_recv"]
        assert len(ring) == 2 * sends  # two layers
        assert {c.group_size for c in ring} == {RANKS}
        assert all(c.reason.startswith("ring step ") for c in ring)
        assert {c.cause for c in ring} == {
            "scaled_dot_product_attention",
            "scaled_dot_product_attention_1",
        }
        tiles = [n.reason for n in last[phase].nodes if "flash" in n.target]
        assert "ring step 1 of 4: 16 queries with 16 keys of ring rank 0, causal" in tiles
        assert "ring step 2 of 4: 8 queries with 16 keys of ring rank 3, nothing masked" in tiles


def decisions(result, topic):
    return [d for d in result.compilation.context.decisions if d.topic == topic]


def test_the_choice_is_recorded_with_what_it_beat(observed):
    result, _ = observed
    (first, _) = decisions(result, "attention")
    assert first.chosen == "ring of 4 ranks, all 8 query heads on each"
    assert "--attention ring asks for it" in first.reason
    (ulysses,) = [a for a in first.alternatives if a.name == "Ulysses"]
    assert "per rank and step" in ulysses.cost


def test_steps_and_work_are_recorded(observed):
    result, _ = observed
    steps, work = decisions(result, "ring-steps")[0], decisions(result, "ring-work")[0]
    assert steps.chosen.startswith("4 steps, 0 skipped: block of 0 16x16 causal; block of 3 8x16")
    assert work.chosen == "zigzag order: 520, 520, 520, 520 (busiest 1.00 of the mean)"
    (contiguous,) = work.alternatives
    assert contiguous.name == "contiguous order"
    assert contiguous.cost == "136, 392, 648, 904 (busiest 1.74 of the mean)"


def test_nothing_is_found_wrong_with_a_ring(observed):
    result, _ = observed
    assert not [f for f in result.findings if f.severity != "info"], result.findings


def test_ring_blocks_have_a_memory_category_and_a_time(observed):
    result, _ = observed
    points = result.estimate.memory.points
    assert max(point.categories["ring_kv"] for point in points) > 0
    assert all(sum(p.categories.values()) == p.live_bytes for p in points)
    sends = [e for e in result.estimate.timeline.events if "all_to_all" in e.node]
    assert sends and all(event.duration_ns > 0 for event in sends)


def test_causal_work_of_the_ranks_is_within_five_percent():
    work = []
    for rank in range(RANKS):
        request = request_for(OfIds, sp=RANKS, seq=70, attention="ring")
        mesh = replace(request.mesh, rank=rank)
        graphs = dry_run(replace(request, mesh=mesh)).compilation.graphs
        nodes = [*graphs.forward.graph.nodes, *graphs.backward.graph.nodes]
        work.append(sum(node_flops(node) for node in nodes if is_attention(node)))
    mean = sum(work) / RANKS
    assert all(abs(flops / mean - 1) < 0.05 for flops in work), work


class OfIds(torch.nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner or FourHeads()

    def forward(self, input_ids):
        return self.inner(input_ids, input_ids)


def test_auto_takes_what_sends_least_where_heads_do_not_fit():
    result = dry_run(request_for(OfIds, sp=8, seq=64))
    (chosen,) = decisions(result, "attention")
    assert chosen.chosen.startswith("Ulysses 4 x ring 2: 1 of 4 query heads per rank")
    assert "the least; 4 query heads cannot be dealt out to 8 ranks" in chosen.reason
    assert {a.name for a in chosen.alternatives} == {"ring", "Ulysses 2 x ring 4"}
    assert not [f for f in result.findings if f.severity != "info"], result.findings


def test_auto_takes_ulysses_where_heads_fit():
    result = dry_run_sample("llama", sp=4, seq=64)
    for decision in decisions(result, "attention"):
        assert decision.chosen == "Ulysses: 2 of 8 query heads per rank"
        assert "ring" in {a.name for a in decision.alternatives}
    assert not decisions(result, "ring-steps")


def test_ulysses_of_a_split_is_priced_for_the_ranks_that_exchange():
    request = request_for(OfIds, sp=8, seq=4096, attention="hybrid", device=H100)
    result = dry_run(request)
    exchanges = [
        node
        for node in result.compilation.graphs.forward.graph.nodes
        if collective_kind(node) == "all_to_all"
    ]
    assert len(exchanges) == 4
    assert all(sum(1 for n in node.args[2] if n) == 4 for node in exchanges)
    costs = {e.node: e for e in result.estimate.events if hasattr(e, "memory_bytes")}
    assert all("4 ranks" in costs[node.name].source for node in exchanges)


def bidirectional(model, q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(
    ("attention", "partitioner"), [(None, "default"), (bidirectional, "min-cut")]
)
def test_all_ranks_send_alike_also_when_they_skip_blocks(attention, partitioner):
    """With five tokens the last of four ranks holds nothing but padding."""
    sent = []
    for rank in range(RANKS):
        request = request_for(
            lambda: OfIds(SmallModel(attention=attention)),
            sp=RANKS,
            seq=5,
            attention="ring",
            partitioner=partitioner,
        )
        mesh = replace(request.mesh, rank=rank)
        graphs = dry_run(replace(request, mesh=mesh)).compilation.graphs
        nodes = [*graphs.forward.graph.nodes, *graphs.backward.graph.nodes]
        sent.append(
            [(kind, n.args[0].meta["val"].shape) for n in nodes if (kind := collective_kind(n))]
        )
    assert sum(kind == "send_recv" for kind, _ in sent[0]) == 3 * (RANKS - 1)
    assert all(other == sent[0] for other in sent[1:])
