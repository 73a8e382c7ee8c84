"""Programs that dynamo breaks: refused, or compiled piece by piece."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from autosp.dry_run import dry_run
from autosp.errors import AutoSPError, GraphBreakError
from autosp.events import Finding, GraphSnapshot, ListRecorder, PassStarted
from autosp.placement import Shard
from tests.support.break_cases import WIDTH, Branching, FromNothing, Layer, Stack, nothing
from tests.support.dry_runs import request_for
from tests.support.gloo_cases import Broken


def test_a_break_is_an_error_that_names_the_line_and_the_option():
    with pytest.raises(GraphBreakError, match=r"gloo_cases\.py:\d+.*--allow-breaks"):
        dry_run(request_for(Broken, sp=2, seq=8))


def test_pieces_hand_blocks_on():
    recorder = ListRecorder()
    result = dry_run(request_for(Broken, sp=2, seq=7, allow_breaks=True), recorder=recorder)
    first, second, third = result.pieces
    assert result.estimate is None
    assert isinstance(first.sharded.output_placements[-1], Shard)
    taken = [given for given in second.captured.inputs if given.cut is not None]
    assert [given.cut for given in taken] == [first.sharded.output_placements[-1]]
    assert any(given.cut is not None for given in third.captured.inputs)
    assert [piece.sharded.num_attention_sites for piece in result.pieces] == [1, 1, 0]
    assert {e.compilation for e in recorder.events if isinstance(e, PassStarted)} >= {0, 1, 2}
    collectives = [
        record.kind
        for event in recorder.events
        if isinstance(event, GraphSnapshot) and event.graph == "forward"
        for record in event.collectives
    ]
    assert "all_gather" not in collectives
    assert collectives.count("all_to_all") == 2 * 4


def test_every_break_is_a_finding_with_its_line():
    recorder = ListRecorder()
    dry_run(request_for(Broken, sp=2, seq=8, allow_breaks=True), recorder=recorder)
    breaks = [e for e in recorder.events if isinstance(e, Finding) and e.code == "graph-break"]
    assert len(breaks) == 2
    assert all(found.source and "graph_break" in found.source.text for found in breaks)


def test_a_program_without_breaks_is_estimated_as_always():
    allowed = dry_run(request_for("gpt", sp=2, seq=8, allow_breaks=True))
    whole = dry_run(request_for("gpt", sp=2, seq=8))
    assert len(allowed.pieces) == 1
    assert allowed.estimate is not None and whole.estimate is not None
    live = allowed.estimate.summary.peak_live_bytes
    assert live == whole.estimate.summary.peak_live_bytes > 0


def test_grad_mode_and_garbage_collection_are_left_as_they_were():
    dry_run(request_for(Broken, sp=2, seq=8, allow_breaks=True))
    assert torch.is_grad_enabled()


def test_layers_of_a_loop_that_breaks_share_a_compilation_and_hand_blocks_on():
    recorder = ListRecorder()
    result = dry_run(
        request_for(partial(Stack, nothing), sp=2, seq=8, allow_breaks=True), recorder=recorder
    )
    first, later = result.pieces
    assert [piece.sharded.num_attention_sites for piece in result.pieces] == [1, 1]
    assert isinstance(later.captured.inputs[0].cut, Shard)
    assert later.captured.inputs[0].cut == first.sharded.output_placements[0]
    (runs,) = [e for e in recorder.events if isinstance(e, PassStarted) and e.name == "pieces"]
    assert runs.options == {"runs": [1, 2]}


def test_the_border_of_two_pieces_is_no_border_of_the_program():
    result = dry_run(request_for(Broken, sp=2, seq=8, allow_breaks=True))
    codes = {found.code for found in result.findings}
    assert "graph-break" in codes
    assert not codes & {"partial-input-gradient", "loss-outside"}


def test_what_a_break_in_a_loop_leaves_uncompiled_is_reported():
    result = dry_run(request_for(partial(Stack, nothing), sp=2, seq=8, allow_breaks=True))
    (break_,) = [f for f in result.findings if f.code == "graph-break"]
    assert "only the modules it calls" in break_.message
    (read,) = [f for f in result.findings if f.code == "read-between-pieces"]
    assert read.source is not None and "self.head(x)" in read.source.text
    assert read.cost_bytes == 8 * WIDTH * 4


class Indexed(Layer):
    index = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 + self.index)


class ManyDifferentLayers(Stack):
    def __init__(self) -> None:
        super().__init__(nothing, num_layers=0)
        self.layers = torch.nn.ModuleList(Indexed() for _ in range(10))
        for index, layer in enumerate(self.layers):
            layer.index = index


def test_layers_that_know_their_index_are_all_compiled():
    result = dry_run(request_for(ManyDifferentLayers, sp=2, seq=8, allow_breaks=True))
    assert [piece.sharded.num_attention_sites for piece in result.pieces] == [1] * 10


def test_a_piece_without_tensor_inputs_runs_as_it_is():
    result = dry_run(request_for(FromNothing, sp=2, seq=8, allow_breaks=True))
    assert [piece.sharded.num_attention_sites for piece in result.pieces] == [0, 3, 0]


def test_a_number_that_code_between_pieces_reads_is_taken_for_zero_and_reported():
    result = dry_run(request_for(Branching, sp=2, seq=8, allow_breaks=True))
    assert len(result.pieces) == 2
    (found,) = [f for f in result.findings if f.code == "unknown-value"]
    assert "takes it for 0" in found.message
    assert found.source is not None and "x.abs().mean() > 0.5" in found.source.text


class Waiting(Stack):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](self.embedding(input_ids))
        torch._dynamo.graph_break()
        while not bool(x.sum() > 1):
            x = x + 1
        return x.sum() + labels.sum()


def test_a_loop_that_waits_for_a_value_is_an_error_that_names_its_line():
    with pytest.raises(AutoSPError, match=r"test_graph_breaks\.py:\d+.*ends only for some"):
        dry_run(request_for(Waiting, sp=2, seq=8, allow_breaks=True))
