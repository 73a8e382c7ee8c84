"""Whole values of which a rank reads its own block are computed on that block."""

from __future__ import annotations

from math import prod

import torch

from autosp.capture import capture
from autosp.dry_run import dynamo_graph
from autosp.events import SilentRecorder
from autosp.graph import tensor_of
from autosp.lowering import lower_to_rank
from autosp.mesh import Mesh
from autosp.pipeline import PassContext
from tests.support.programs import WIDTH, SmallModel, assert_right, tokens

LENGTH = 12


def _rank_program(model):
    graph = dynamo_graph(model, tokens(1, LENGTH), {}, None)
    context = PassContext(Mesh(sp=4), SilentRecorder())
    return lower_to_rank(graph, context).sharded.program


def _rotary_table(model, length):
    inverse = torch.linspace(0.1, 1.0, WIDTH // 2, dtype=torch.float64)
    positions = torch.arange(length)[None].expand(1, -1)
    angles = (inverse[None, :, None] @ positions[:, None, :].double()).transpose(1, 2)
    table = torch.cat((angles, angles), -1).permute(0, 1, 2)
    return table.cos() * 0.9, table.sin()[..., :WIDTH]


def test_tables_of_positions_are_computed_on_the_block():
    def body(model, x):
        cos, sin = _rotary_table(model, x.shape[1])
        return x * cos + x.flip(-1) * sin

    model = SmallModel(before=body)
    assert_right(model)
    whole = [
        node.name
        for node in _rank_program(model).graph.nodes
        if node.op == "call_function"
        and (tensor := tensor_of(node)) is not None
        and tensor.is_floating_point()
        and LENGTH in tensor.shape
        and prod(tensor.shape) >= LENGTH * WIDTH
        and "attention" not in node.name
        and "wait" not in node.name
    ]
    heads_of_all_tokens = [name for name in whole if not name.startswith(("reshape", "permute"))]
    assert heads_of_all_tokens == []


def test_a_value_may_be_read_whole_and_in_blocks():
    def body(model, x):
        cos, sin = _rotary_table(model, x.shape[1])
        return x * cos + cos.mean() + (x * sin) @ (sin.transpose(1, 2) @ cos)

    assert_right(SmallModel(after=body))


def test_parameters_on_the_way_get_their_gradient():
    def body(model, x):
        length = x.shape[1]
        scaled = model.positions[:, :length].sin() * model.bias + model.positions[:, :length]
        return x * scaled + scaled.unsqueeze(1).transpose(1, 2).squeeze(2)

    assert_right(SmallModel(after=body))


def test_a_block_keeps_the_precision_of_its_autocast_region():
    def body(model, x):
        with torch.autocast("cpu", enabled=False):
            cos, _ = _rotary_table(model, x.shape[1])
            cos = cos.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = torch.matmul(x.float(), model.weight.float())
            return product * cos.to(torch.bfloat16) + x

    assert_right(SmallModel(after=body))


def test_captures_stay_as_they_were():
    """The blocks are made in the rank's program; the user's is not touched."""
    model = SmallModel(before=lambda m, x: x * _rotary_table(m, x.shape[1])[0])
    graph = dynamo_graph(model, tokens(1, LENGTH), {}, None)
    before = [node.name for node in capture(graph).program.graph.nodes]
    lower_to_rank(graph, PassContext(Mesh(sp=4), SilentRecorder()))
    assert [node.name for node in capture(graph).program.graph.nodes] == before
