"""``explain`` goes from a node back to where the sequence was cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosp_inspector.queries.causes import Cause, placement_causes
from autosp_inspector.queries.nodes import find_node, list_nodes
from autosp_inspector.trace import Trace, open_trace
from tests.support.command_line import CommandLine

MODEL = """
import torch
import torch.nn.functional as F

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(32, 16)
        self.out = torch.nn.Linear(16, 32)

    def forward(self, input_ids, labels):
        x = self.table(input_ids)
        heads = x.view(*x.shape[:2], 4, 4).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape)
        length = x.shape[1]
        mixing = torch.ones(length, length).tril()
        x = x + (mixing @ x).sin()
        x = x.permute(0, 2, 1).exp().permute(0, 2, 1)
        return F.cross_entropy(self.out(x).flatten(0, 1), labels.flatten())

def build():
    return Model()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import contextlib
    import io

    from autosp_inspector.cli.main import main

    folder = tmp_path_factory.mktemp("causes")
    (folder / "model.py").write_text(MODEL)
    path = folder / "run.autosp"
    with contextlib.redirect_stderr(io.StringIO()):
        arguments = ["record", str(folder / "model.py"), "--sp", "2", "--seq", "16"]
        assert main([*arguments, "-o", str(path)]) == 0
    return path


@pytest.fixture
def trace(recorded: Path):  # type: ignore[no-untyped-def]
    with open_trace(recorded) as opened:
        yield opened


def causes_of(trace: Trace, name: str, graph: str | None = None) -> tuple[Cause, ...]:
    node = find_node(trace, name, graph=graph)
    assert node is not None
    return placement_causes(trace, node)


def test_a_sharded_node_leads_back_to_the_seed(trace: Trace) -> None:
    causes = causes_of(trace, "transpose")
    assert [cause.node.name for cause in causes] == ["transpose", "view", "embedding"]
    assert [cause.node.placement for cause in causes] == ["S(2:seq)", "S(1:seq)", "S(1:seq)"]
    assert causes[0].why == "rule views.transpose"
    seed = causes[-1]
    assert seed.rule == "seeds.find_seeds"
    assert "cut on dim 1" in seed.why
    assert seed.node.source is not None and "self.table(input_ids)" in seed.node.source.text


def test_operators_that_keep_the_placement_are_counted_not_listed(trace: Trace) -> None:
    causes = causes_of(trace, "add")
    assert causes[-1].node.name == "embedding"
    assert len(causes) == 2
    attention = causes_of(trace, "reshape")
    assert any("attention output back" in cause.why for cause in attention)
    assert any(cause.rule == "attention.scaled_dot_product" for cause in attention)


def test_a_loss_leads_through_its_rule_to_the_seed(trace: Trace) -> None:
    causes = causes_of(trace, "cross_entropy_loss")
    assert causes[0].node.placement == "P(sum)"
    assert causes[0].rule == "loss.class_loss"
    assert causes[-1].node.name == "embedding"


def test_a_whole_node_leads_to_what_it_is_computed_from(trace: Trace) -> None:
    causes = causes_of(trace, "flatten_1" if find_node(trace, "flatten_1") else "view_3")
    assert causes[0].node.placement == "R"
    assert causes[-1].node.name == "labels"
    assert "until they meet sharded data" in causes[-1].why


def test_a_node_of_the_backward_has_the_cause_of_its_origin(trace: Trace) -> None:
    node = next(node for node in list_nodes(trace, graph="backward") if "embedding" in node.origins)
    seed = placement_causes(trace, node)[-1]
    assert seed.rule == "seeds.find_seeds"
    assert "embedding" in seed.node.origins


def reason_of_collective(causes: tuple[Cause, ...]) -> str:
    return next(cause.why for cause in causes if cause.node.role == "collective")


@pytest.mark.parametrize("graph", ["program", "joint", "forward"])
def test_packs_of_the_query_lead_to_its_own_collective(trace: Trace, graph: str) -> None:
    nodes = {node.name: node for node in list_nodes(trace, graph=graph)}
    attention = next(n for n in nodes.values() if "scaled_dot_product" in n.target)
    query = nodes[attention.inputs[0]]
    way_in = [query]
    while way_in[-1].role in ("unpack", "wait", "collective", "pack"):
        causes = placement_causes(trace, way_in[-1])
        assert causes[0].node.placement == "S(1:head)"
        assert "sequence shards -> head shards" in reason_of_collective(causes)
        way_in.append(nodes[way_in[-1].inputs[0]])
    assert len(way_in) > 5
    assert query.placement == "S(1:head)"
    assert {node.placement for node in way_in[1:-1]} == {None}


def test_a_derived_node_has_nothing_of_a_program_node_of_the_same_name(
    cli: CommandLine, recorded: Path, trace: Trace
) -> None:
    program = {node.name: node for node in list_nodes(trace, graph="program")}
    same_name = [
        node
        for node in list_nodes(trace, graph="joint")
        if node.name in program and node.origins and node.name not in node.origins
    ]
    assert same_name
    for node in same_name:
        known = cli("explain", recorded, node.name, "--graph", "joint", "--json").json
        assert known["derived"] == []
        assert {row["node"] for row in known["decisions"]} <= {*node.origins}
        for cause in known["placement_causes"][:1]:
            assert {*program[cause["node"]].origins} & {*node.origins}


def test_explain_says_that_a_buffer_has_no_global_tensor(
    cli: CommandLine, recorded: Path, trace: Trace
) -> None:
    pack = next(node for node in list_nodes(trace, graph="forward") if node.role == "pack")
    text = cli("explain", recorded, pack.name, "--graph", "forward").out
    assert "none: a buffer of this rank on the way between two placements" in text


def test_before_sharding_there_is_no_cause(synthetic: Path) -> None:
    with open_trace(synthetic) as opened:
        node = list_nodes(opened, graph="program", pass_index=0)[0]
        assert all(cause.node.placement for cause in placement_causes(opened, node))


def test_explain_prints_the_chain_and_what_is_saved(cli: CommandLine, recorded: Path) -> None:
    text = cli("explain", recorded, "transpose").out
    assert "Why it is placed so" in text
    assert "  <- S(1:seq) embedding" in text
    data = cli("explain", recorded, "transpose", "--json").json
    assert data["placement_causes"][-1]["rule"] == "seeds.find_seeds"
    assert data["placement_causes"][-1]["source"].endswith("model.py:12")
    saved = cli("explain", recorded, "linear").out
    assert "the partition that moves the fewest bytes" in saved
