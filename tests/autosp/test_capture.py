"""What the capture makes functional or refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autosp.capture import capture
from autosp.errors import AutoSPError, RandomnessError, ShardingError
from autosp.graph import is_mutation, module_path, source_location
from autosp.oracle.check import with_captured
from tests.support.programs import SmallModel, assert_right, prove, tokens

aten = torch.ops.aten


def captured(model, batch=1, length=6):
    found = []
    with_captured(model, tokens(batch, length), {}, lambda c, _: found.append(c))
    return found[0]


def test_composite_operators_stay_whole_and_know_their_source():
    def loss(model, x):
        return F.cross_entropy(model.logits(x).flatten(0, 1), model.labels.flatten())

    program = captured(SmallModel(loss=loss)).program
    targets = [node.target for node in program.graph.nodes]
    for operator in (
        aten.scaled_dot_product_attention.default,
        aten.linear.default,
        aten.cross_entropy_loss.default,
    ):
        assert operator in targets
    node = program.graph.find_nodes(op="call_function", target=aten.cross_entropy_loss.default)[0]
    assert source_location(node).file.endswith("test_capture.py")


def test_inputs_have_the_users_names_and_kinds():
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = SmallModel()

        def forward(self, ids, labels):
            return self.inner(ids, labels)

    found = captured(Outer())
    kinds = {i.name: (i.kind, i.trainable) for i in found.inputs}
    assert kinds["inner.query"] == ("parameter", True)
    assert ("input", False) in kinds.values()
    linear = found.program.graph.find_nodes(op="call_function", target=aten.linear.default)[0]
    assert module_path(linear) == "inner"


def test_in_place_operators_become_functional_and_right():
    def body(model, x):
        rows = x * 1
        rows[:, 2:4] = model.bias
        rows.masked_fill_(model.ids[..., None] > 5, 0.0).add_(1).mul_(model.bias)
        rows[:, 0] += 1
        rows[..., :4] = 0
        rows.view(-1, rows.shape[-1])[1:3].mul_(2)
        shifted = torch.zeros_like(x)
        shifted[:, 1:] = x[:, :-1]
        return rows.sin(), shifted.sin()

    found = captured(SmallModel(after=body))
    assert len(found.mutations) >= 6
    assert not any(is_mutation(node) for node in found.program.graph.nodes)
    assert_right(SmallModel(after=body), max_fallbacks=None)


def refused(model, error, *words):
    with pytest.raises(error) as caught:
        prove(model, cases=((1, 6, 2),))
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_branching_on_data_is_refused():
    def body(model, x):
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))

    refused(SmallModel(after=body), AutoSPError, "branches on data")


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: x[m.ids > 5].sin(),
        lambda m, x: x + m.ids.nonzero().shape[0],
    ],
    ids=["boolean index", "nonzero"],
)
def test_shapes_that_depend_on_data_are_refused(body):
    refused(SmallModel(after=body), AutoSPError, "depends on data")


def test_random_numbers_without_a_keyed_form_are_refused():
    def body(model, x):
        return x[:, torch.randperm(x.shape[1])]

    refused(SmallModel(after=body), RandomnessError, "draws random numbers", "test_capture.py:")


def test_a_model_without_attention_is_refused():
    model = SmallModel()
    model.attend = lambda x: F.linear(x, model.weight)
    refused(model, ShardingError, "found no attention", "scaled_dot_product_attention")


def test_a_piece_of_a_broken_program_is_refused():
    def backend(graph, inputs):
        capture(graph)
        return graph

    model = SmallModel(after=lambda m, x: broken(x))
    torch._dynamo.reset()
    with pytest.raises(Exception) as caught:
        torch.compile(model, backend=backend, dynamic=False)(*tokens(1, 6))
    text = str(caught.value)
    assert "graph break" in text
    assert "test_capture.py" in text


def broken(x):
    torch._dynamo.graph_break()
    return x.sin()
