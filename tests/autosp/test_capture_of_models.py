"""What models of libraries do beside computing, and what the capture makes of it."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import autosp
from autosp.capture import capture
from autosp.dry_run import dynamo_graph
from autosp.errors import AutoSPError
from autosp.output_hooks import MODULE, install_output_hooks
from tests.support.programs import SmallModel, assert_right, prove, tokens


def test_promises_about_values_are_dropped_with_the_reads_they_need():
    def before(model, x):
        torch._check((model.ids.max() < 10_000).item())
        return x

    assert_right(SmallModel(before=before))


def test_a_read_that_is_used_is_still_refused():
    def before(model, x):
        return x * model.ids.max().item()

    with pytest.raises(AutoSPError, match="reads the value of a tensor"):
        prove(SmallModel(before=before))


def test_a_length_read_from_data_is_refused_with_its_line():
    class Split(SmallModel):
        def forward(self, ids, labels):
            self.ids, self.labels = ids, labels
            parts = torch.split(self.positions[0], ids[0, :2].tolist())
            return parts[0].sum()

    with pytest.raises(AutoSPError, match="reads the value of a tensor"):
        prove(Split())


def test_constants_without_contents_are_refused():
    graph_module = dynamo_graph(SmallModel(), tokens(1, 6), {}, None)
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    fake = next(
        node.meta["example_value"]
        for node in placeholders
        if node.meta["example_value"].is_floating_point()
    )
    first = next(node for node in graph_module.graph.nodes if node.op == "call_function")
    graph_module.unseen = fake.detach()
    with graph_module.graph.inserting_before(first):
        constant = graph_module.graph.get_attr("unseen")
    output = next(iter(reversed(graph_module.graph.nodes)))
    with graph_module.graph.inserting_before(output):
        total = graph_module.graph.call_method("sum", (constant,))
        moved = graph_module.graph.call_function(torch.add, (output.args[0][0], total))
    output.args = ((moved,),)
    graph_module.recompile()

    with pytest.raises(AutoSPError, match="cannot follow"):
        capture(graph_module)


@pytest.fixture
def installed(monkeypatch):
    """The modules on which transformers was asked to install its hooks."""
    found = []
    library = types.ModuleType(MODULE)
    library.maybe_install_capturing_hooks = found.append
    monkeypatch.setitem(sys.modules, MODULE, library)
    return found


def recording_model():
    model = SmallModel()
    model.part = torch.nn.Linear(2, 2)
    model.part._can_record_outputs = {}
    return model


def test_hooks_of_transformers_are_installed_before_the_model_is_traced(installed):
    model = recording_model()

    install_output_hooks(model)

    assert installed == [model.part]


def test_the_entry_for_training_installs_the_hooks(installed, monkeypatch):
    monkeypatch.setattr("autosp.torch_backend.backend", lambda *_, **__: "eager")
    model = recording_model()

    autosp.compile(model, loss=lambda output, targets: output)

    assert installed == [model.part]


def test_scalars_in_float64_do_not_stop_a_dry_run():
    from autosp.dry_run import DryRunRequest, dry_run
    from autosp.mesh import Mesh
    from autosp_inspector.target.fake_build import fake_build, new_fake_mode

    class Scaled(SmallModel):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(8.0, dtype=torch.float64))

        def forward(self, ids, labels):
            return super().forward(ids, labels) * self.scale

    fake_mode = new_fake_mode()
    with fake_build(fake_mode):
        model = Scaled()
        ids = torch.zeros(1, 8, dtype=torch.long)
    request = DryRunRequest(model, (ids, ids), {}, fake_mode, Mesh(sp=2), "scaled")

    assert dry_run(request).step.backward is not None
