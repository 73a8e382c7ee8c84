"""A million tokens under masks: nothing grows with the square of the length."""

from __future__ import annotations

import importlib

import pytest
import torch

from autosp.cost.flops import is_attention, node_flops
from autosp.dry_run import DryRunRequest, dry_run
from autosp.mesh import Mesh
from autosp.runtime.blockwise_attention import BLOCKWISE_ATTENTION
from autosp.sizes import examples
from autosp_inspector.target.fake_build import fake_build, new_fake_mode
from tests.support.dry_runs import sample_factory
from tests.support.masks import FACTORED, attention_under
from tests.support.programs import SmallModel

MILLION = 2**20
RANKS = 8


def sample(name, **options):
    """One layer, on the inputs that the sample suggests."""
    build = sample_factory(name)
    model = build(
        vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=8, num_key_value_heads=4, dtype="float32", **options,
    )  # fmt: skip
    return model, (), importlib.import_module(name).example_inputs(1, MILLION)


def padded():
    model, args, inputs = sample("packed")
    del inputs["position_ids"]
    return model, args, {**inputs, "attention_mask": torch.ones(1, MILLION, dtype=torch.long)}


def prefix():
    model = SmallModel(attention=attention_under({"": FACTORED["prefix of each row"]}))
    del model.positions
    ids = torch.ones(1, MILLION, dtype=torch.long)
    return model, (ids, ids.clone()), {}


SUBJECTS = {
    "packed": lambda: sample("packed"),
    "padded": padded,
    "window and padding": lambda: sample("mistral_window", sliding_window=4096),
    "prefix": prefix,
}


def run(name, attention):
    fake_mode = new_fake_mode()
    with fake_build(fake_mode):
        model, args, kwargs = SUBJECTS[name]()
    request = DryRunRequest(
        model=model.train(), args=args, kwargs=kwargs, fake_mode=fake_mode,
        mesh=Mesh(sp=RANKS), model_name=name, attention=attention,
    )  # fmt: skip
    return dry_run(request)


def nodes_of(result):
    graphs = result.compilation.graphs
    return [node for module in (graphs.forward, graphs.backward) for node in module.graph.nodes]


def squares(nodes):
    found = []
    for node in nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else [values]:
            if isinstance(value, torch.Tensor):
                long = sum(size >= MILLION // RANKS for size in examples(value.shape))
                found += [node] if long > 1 else []
    return found


CASES = [
    ("packed", "ulysses"),
    ("packed", "ring"),
    ("padded", "ring"),
    ("window and padding", "ulysses"),
    ("window and padding", "ring"),
    ("prefix", "hybrid"),
]


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_no_tensor_has_two_dims_of_the_sequence(name, attention):
    """Of a rank's part of the sequence, even."""
    result = run(name, attention)
    nodes = nodes_of(result)
    assert any(node.target is BLOCKWISE_ATTENTION for node in nodes)
    assert squares(nodes) == []
    assert not [f for f in result.findings if f.code == "square-tensor"]
    if name == "window and padding":
        assert_counts_what_the_window_leaves(nodes, attention)


def assert_counts_what_the_window_leaves(nodes, attention):
    """The window of 4096 is a 256th of all keys; causal attention would be half."""
    forward = [n for n in nodes if is_attention(n) and n.target is BLOCKWISE_ATTENTION]
    share_of_rank = 4 * MILLION**2 * 8 * 8 / RANKS  # 8 heads of size 8
    work = sum(node_flops(node) for node in forward)
    assert work == pytest.approx(share_of_rank / 256, rel=0.5 if attention == "ring" else 0.2)
