"""Each check finds the fault that it is for, planted on purpose, and nothing without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

import autosp.checks.whole_tensors as whole_tensors
from autosp.dry_run import DryRunRequest, DryRunResult, dry_run
from autosp.events import Finding
from autosp.findings import check_compilation
from autosp.graph import collective_kind, functional
from autosp.hardware import find_device
from autosp.mesh import Mesh
from autosp.sharding.operation import NoRule
from autosp.sharding.rules import RULES
from autosp_inspector.target.fake_build import fake_build, new_fake_mode
from tests.support.dry_runs import request_for

aten = torch.ops.aten
WIDTH, NUM_HEADS = 32, 4


class Decoder(torch.nn.Module):
    """Two attention layers of equal shapes and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(64, WIDTH)
        self.first = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.second = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, 64)

    def attend(self, projection: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = projection(x).view(batch, length, 3, NUM_HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return x + mixed.transpose(1, 2).reshape(x.shape)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.attend(self.second, self.attend(self.first, x)))
        return logits

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.logits(self.table(input_ids))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def compiled(model: Callable[[], torch.nn.Module] = Decoder) -> DryRunResult:
    device = find_device("a100-80gb")
    return dry_run(request_for(model, sp=2, seq=64, device=device))


def found_again(result: DryRunResult) -> list[Finding]:
    """What the checks say now, after a graph was changed."""
    return list(check_compilation(result.compilation, result.estimate))


def the(code: str, findings: Sequence[Finding]) -> Finding:
    """The first finding of this code; it has all that a reader needs."""
    found = next(finding for finding in findings if finding.code == code)
    assert found.hint and found.node and "\n" not in found.message
    return found


def codes(findings: Sequence[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def exchanges(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if collective_kind(node) == "all_to_all"]


def take_out(node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, Node)
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)


def copy_of(node: Node, graph: Graph, name: str | None = None) -> Node:
    """The same operator once more, at the end of a graph."""
    with graph.inserting_before(next(iter(reversed(graph.nodes)))):
        copy = graph.create_node("call_function", node.target, node.args, node.kwargs, name)
    copy.meta.update(node.meta)
    return copy


def without_rule(operation: object) -> None:
    raise NoRule("planted")


def test_a_decoder_has_no_findings() -> None:
    result = compiled()
    assert result.findings == ()
    assert found_again(result) == []


def test_attention_without_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, aten.scaled_dot_product_attention.default, without_rule)
    finding = the("attention-not-sharded", compiled().findings)
    assert finding.severity == "error"
    assert finding.source is not None and "scaled_dot_product_attention" in finding.source.text


def test_attention_with_one_exchange_too_few() -> None:
    result = compiled()
    for node in exchanges(result.compilation.sharded.program.graph)[1:4]:
        take_out(node)
    assert "only one all-to-all" in the("attention-not-sharded", found_again(result)).message


@pytest.mark.parametrize("graph", ["forward", "backward"])
def test_more_exchanges_than_attention_needs(graph: str) -> None:
    result = compiled()
    module = getattr(result.compilation.graphs, graph)
    node = exchanges(module.graph)[0]
    copy_of(node, module.graph)
    finding = the("excess-all-to-alls", found_again(result))
    assert f"5 all-to-alls in the {graph}" in finding.message
    assert finding.cost_bytes == 64 // 2 * WIDTH * 4


def test_layers_that_differ_in_their_exchanges() -> None:
    result = compiled()
    forward = result.compilation.graphs.forward
    assert forward is not None
    take_out(exchanges(forward.graph)[0])
    finding = the("uneven-all-to-alls", found_again(result))
    assert "all-to-alls in the forward of this attention" in finding.message
    assert "2 attentions with the same shapes" in finding.message


def test_a_collective_that_the_partition_lost() -> None:
    result = compiled()
    forward = result.compilation.graphs.forward
    assert forward is not None
    lost = exchanges(forward.graph)[2]
    name = lost.name
    take_out(lost)
    finding = the("dropped-collective", found_again(result))
    assert finding.severity == "error"
    assert f"all_to_all {name} " in finding.message
    assert "missing in the forward and the backward" in finding.message
    assert finding.cost_bytes


def test_a_collective_that_autograd_lost() -> None:
    result = compiled()
    joint = result.compilation.graphs.joint
    assert joint is not None
    take_out(exchanges(joint.graph)[0])
    assert "missing in the joint graph" in the("dropped-collective", found_again(result)).message


def test_equal_gathers_that_torch_merges_are_not_lost() -> None:
    class Twice(Decoder):
        def attend(self, projection: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
            mixed = super().attend(projection, x).clone()
            mixed[:, 0] = 0.0
            mixed[:, 1] = 0.0
            return mixed

    assert "dropped-collective" not in codes(compiled(Twice).findings)


def test_a_collective_that_is_there_twice() -> None:
    result = compiled()
    joint = result.compilation.graphs.joint
    assert joint is not None
    copy_of(exchanges(joint.graph)[0], joint.graph)
    finding = the("duplicated-collective", found_again(result))
    assert "in the joint graph 2 times" in finding.message
    assert finding.cost_bytes


def test_collectives_that_run_again_in_the_backward() -> None:
    result = compiled()
    graphs = result.compilation.graphs
    assert graphs.forward is not None and graphs.backward is not None
    node = exchanges(graphs.forward.graph)[0]
    copy_of(node, graphs.backward.graph, node.name)
    finding = the("recomputed-collective", found_again(result))
    assert "1 collective of the forward run again" in finding.message
    assert finding.cost_bytes == 64 // 2 * WIDTH * 4


def test_a_collective_that_nobody_understands() -> None:
    result = compiled()
    forward = result.compilation.graphs.forward
    assert forward is not None
    copy_of(exchanges(forward.graph)[0], forward.graph).target = functional.all_reduce_.default
    assert "does not know how" in the("unclassified-collective", found_again(result)).message


def test_work_that_every_rank_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, aten.linear.default, without_rule)
    finding = the("replicated-work", compiled().findings)
    assert "% of the FLOPs of a step are computed on every rank" in finding.message
    assert "out " in finding.message and "first " in finding.message
    assert finding.cost_ns


def test_saved_tensors_that_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosp.checks.replicated_work.LARGE_BYTES", 1)
    assert "replicated-saved" not in codes(compiled().findings)
    monkeypatch.setitem(RULES, aten.linear.default, without_rule)
    monkeypatch.setattr("autosp.sharding.propagate.cut_again", lambda operation, whole: whole)
    finding = the("replicated-saved", compiled().findings)
    assert "bytes saved for the backward" in finding.message
    assert finding.cost_bytes


def test_whole_tensors_say_where_they_were_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_tensors, "LARGE_BYTES", 1)
    assert "replicated-sequence" not in codes(compiled().findings)
    monkeypatch.setitem(RULES, aten.linear.default, without_rule)
    monkeypatch.setattr("autosp.sharding.propagate.cut_again", lambda operation, whole: whole)
    finding = the("replicated-sequence", compiled().findings)
    assert finding.severity == "warning"
    assert "gathered at linear (aten.linear.default: planted)" in finding.message
    assert "They are in " in finding.message
    assert finding.cost_bytes


def test_whole_tensors_say_what_they_are_computed_from(monkeypatch: pytest.MonkeyPatch) -> None:
    class Read(Decoder):
        """Positions whose cumulative product over the sequence has no block by block form."""

        def logits(self, x: torch.Tensor) -> torch.Tensor:
            angles = (torch.arange(x.shape[1])[:, None] * torch.ones(WIDTH)).cos()
            return super().logits(x * angles.cumprod(0))

    monkeypatch.setattr(whole_tensors, "LARGE_BYTES", 1)
    finding = the("replicated-sequence", compiled(Read).findings)
    assert finding.severity == "info"
    assert "computed from positions that the program counts itself" in finding.message


def test_a_loss_outside_reads_the_whole_output() -> None:
    class NoLoss(Decoder):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return self.logits(self.table(input_ids))

    finding = the("loss-outside", compiled(NoLoss).findings)
    assert finding.cost_bytes == 2 * 64 * 64 * 4
    assert "autosp.compile(model, loss=fn)" in finding.hint


def from_embeddings(*, gradient: bool) -> tuple[Finding, ...]:
    class FromEmbeddings(Decoder):
        def forward(  # type: ignore[override]
            self, inputs_embeds: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            return F.cross_entropy(self.logits(inputs_embeds).flatten(0, 1), labels.flatten())

    fake_mode = new_fake_mode()
    with fake_build(fake_mode):
        model = FromEmbeddings()
        inputs = {
            "inputs_embeds": torch.randn(1, 64, WIDTH).requires_grad_(gradient),
            "labels": torch.randint(0, 64, (1, 64)),
        }
    request = DryRunRequest(model, (), inputs, fake_mode, Mesh(sp=2), "from embeddings")
    return dry_run(request).findings


def test_a_gradient_of_an_input_is_that_of_the_own_tokens() -> None:
    finding = the("partial-input-gradient", from_embeddings(gradient=True))
    assert "inputs_embeds" in finding.message
    assert "partial-input-gradient" not in codes(from_embeddings(gradient=False))
