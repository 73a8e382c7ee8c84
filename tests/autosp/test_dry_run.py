"""A dry run does what training would do, for any number of ranks, and allocates nothing."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from autosp.dry_run import dry_run
from autosp.errors import GraphBreakError, HeadCountError, ShardingError
from autosp.events import GraphSnapshot, ListRecorder, RunFinished, RunStarted
from autosp.graph import collective_kind, tensor_of
from tests.support.dry_runs import dry_run_sample, request_for

SAMPLES = ("gpt", "llama", "hf_llama")


def kinds(graph: torch.fx.Graph) -> Counter[str]:
    return Counter(kind for node in graph.nodes if (kind := collective_kind(node)))


@pytest.mark.parametrize("sample", SAMPLES)
def test_four_all_to_alls_per_layer_forward_and_backward(sample: str) -> None:
    result = dry_run_sample(sample, sp=4, seq=64)
    graphs = result.compilation.graphs
    assert graphs.forward is not None and graphs.backward is not None
    assert kinds(graphs.forward.graph)["all_to_all"] == 2 * 4
    assert kinds(graphs.backward.graph)["all_to_all"] == 2 * 4
    assert kinds(graphs.forward.graph)["all_gather"] == 0
    assert not result.compilation.sharded.fallbacks


def test_all_to_all_bytes_are_the_minimum_for_grouped_queries() -> None:
    """Q and O send all heads once, K and V their own few: nothing is repeated before."""
    sp, seq, batch, heads, kv_heads, size = 2, 128, 1, 8, 4, 8
    result = dry_run_sample("hf_llama", sp=sp, seq=seq)
    graph = result.compilation.graphs.forward
    assert graph is not None
    sent = sum(
        tensor.numel()
        for node in graph.graph.nodes
        if collective_kind(node) == "all_to_all" and (tensor := tensor_of(node)) is not None
    )
    per_layer = batch * seq // sp * size * (2 * heads + 2 * kv_heads)
    assert sent == 2 * per_layer


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_tensor_has_two_dims_of_the_sequence_length(sample: str) -> None:
    seq = 1024  # longer than every width of the tiny models
    result = dry_run_sample(sample, sp=4, seq=seq)
    graphs = result.compilation.graphs
    for module in (graphs.forward, graphs.backward):
        assert module is not None
        for node in module.graph.nodes:
            tensor = tensor_of(node)
            assert tensor is None or sum(dim >= seq for dim in tensor.shape) < 2, node.name
    assert "square-tensor" not in {finding.code for finding in result.findings}


def test_recording_does_not_change_the_graphs() -> None:
    silent = dry_run(request_for("llama", sp=4, seq=62))
    recorded = dry_run(request_for("llama", sp=4, seq=62), recorder=ListRecorder())
    for name in ("joint", "forward", "backward"):
        first = getattr(silent.compilation.graphs, name).graph
        second = getattr(recorded.compilation.graphs, name).graph
        assert [n.format_node() for n in first.nodes] == [n.format_node() for n in second.nodes]


def test_every_stage_is_recorded_with_lineage() -> None:
    recorder = ListRecorder()
    dry_run(request_for("llama", sp=2, seq=64), recorder=recorder)
    assert isinstance(recorder.events[0], RunStarted)
    assert isinstance(recorder.events[-1], RunFinished)
    snapshots = [e for e in recorder.events if isinstance(e, GraphSnapshot)]
    assert {s.graph for s in snapshots} == {"program", "joint", "forward", "backward"}
    rank_program = [s for s in snapshots if s.graph == "program"][-1]
    user_names = {n.name for n in snapshots[0].nodes}
    attention = [n for n in rank_program.nodes if "scaled_dot_product" in n.target]
    assert [n.placement for n in attention] == ["S(1:head)"] * 2
    assert all(set(n.origins) <= user_names for n in rank_program.nodes)
    for graph in ("forward", "backward"):
        derived = next(s for s in snapshots if s.graph == graph)
        computed = [n for n in derived.nodes if n.op == "call_function"]
        assert all(n.origins for n in computed), graph
        assert {c.cause for c in derived.collectives} <= user_names


def test_placements_describe_the_local_shapes() -> None:
    recorder = ListRecorder()
    dry_run(request_for("gpt", sp=4, seq=62), recorder=recorder)
    program = [e for e in recorder.events if isinstance(e, GraphSnapshot) and e.graph == "program"][
        -1
    ]
    embedded = next(n for n in program.nodes if n.target == "aten.embedding.default")
    assert embedded.placement == "S(1:seq,pad=2)"
    assert embedded.global_shape == (1, 62, 64)
    assert embedded.local_shape == (1, 16, 64)
    inputs = {n.name: n.target for n in program.nodes if n.role == "input"}
    assert inputs["input_ids"] == "input_ids"
    assert "blocks.1.mlp.down.weight" in inputs.values()


def test_one_rank_needs_no_collective() -> None:
    result = dry_run_sample("llama", sp=1, seq=64)
    assert result.compilation.graphs.forward is not None
    assert not kinds(result.compilation.graphs.forward.graph)


def test_head_counts_that_cannot_work_name_the_degrees_that_can() -> None:
    with pytest.raises(HeadCountError, match=r"SP degree 3 .* 8 query heads .*1, 2, 4, 8"):
        dry_run_sample("llama", sp=3, seq=64, attention="ulysses")


def test_a_graph_break_names_the_users_line() -> None:
    class Breaks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(16, 8)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()  # the construct
            return self.table(input_ids).sum()

    with pytest.raises(GraphBreakError, match=r"test_dry_run.py:\d+ in forward: .*the construct"):
        dry_run(request_for(Breaks, sp=2, seq=8))


def test_a_model_without_attention_is_refused() -> None:
    class NoAttention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(16, 8)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.table(input_ids).sum()

    with pytest.raises(ShardingError, match="no attention"):
        dry_run(request_for(NoAttention, sp=2, seq=8))


def test_a_dry_run_that_fails_is_closed_in_the_trace() -> None:
    recorder = ListRecorder()
    with pytest.raises(HeadCountError):
        dry_run(request_for("llama", sp=3, seq=64, attention="ulysses"), recorder=recorder)
    last = recorder.events[-1]
    assert isinstance(last, RunFinished) and last.status == "failed"
    assert "SP degree 3" in last.message
