"""What the user checkpoints is computed again in the backward, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from autosp.compilation import recomputed_nodes, saved_tensors
from autosp.dry_run import dry_run
from autosp.errors import AutoSPError
from autosp.graph import REGION_KEY, collective_kind
from autosp.hardware import find_device
from autosp.oracle.check import with_captured
from tests.support.checkpointed import (
    PRODUCTS,
    Decoder,
    checkpointed,
    nested,
    plainly,
    selectively,
    tokens,
)
from tests.support.dry_runs import request_for
from tests.support.programs import SmallModel, assert_right, prove

KEPT = torch.ops.aten.ge.Scalar
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class Partition:
    """The forward and backward of a decoder on two ranks."""

    def __init__(self, call, *, partitioner="min-cut", length=64, **options):
        request = request_for(
            lambda: Decoder(call), sp=2, seq=length, partitioner=partitioner, **options
        )
        self.result = dry_run(request)
        graphs = self.result.compilation.graphs
        again = recomputed_nodes(graphs.forward, graphs.backward)
        self.backward = list(graphs.backward.graph.nodes)
        self.again = Counter(n.target for n in self.backward if n.name in again)
        saved = saved_tensors(graphs.forward, graphs.num_forward_outputs)
        values = [n.meta["val"] for n in saved if n.op != "placeholder"]
        self.saved_bytes = sum(int(v.numel()) * v.element_size() for v in values)
        self.all_to_alls = sum(collective_kind(n) == "all_to_all" for n in self.backward)
        self.findings = {f.code: f for f in self.result.findings}
        decisions = self.result.compilation.context.decisions
        self.decisions = [d for d in decisions if d.topic == "checkpoint"]


@pytest.fixture(scope="module", params=["min-cut", "default"])
def partitions(request):
    return {
        call.__name__: Partition(call, partitioner=request.param)
        for call in (plainly, checkpointed, nested, selectively)
    }


def test_a_checkpointed_layer_is_recomputed_and_its_tensors_are_not_saved(partitions):
    plain, region = partitions["plainly"], partitions["checkpointed"]
    assert plain.again[ATTENTION] == 0
    assert region.again[ATTENTION] == 2
    assert sum(region.again[product] for product in PRODUCTS) == 4
    assert region.saved_bytes < plain.saved_bytes / 8
    assert plain.decisions == []
    assert [d.status for d in region.decisions] == ["applied", "applied"]
    assert "recompute all of it" in region.decisions[0].chosen


def test_a_checkpoint_inside_another_changes_nothing(partitions):
    outer, inner = partitions["checkpointed"], partitions["nested"]
    assert inner.again[ATTENTION] == outer.again[ATTENTION]
    assert inner.saved_bytes == outer.saved_bytes
    assert len(inner.decisions) == 2


def test_dropout_of_a_region_draws_its_numbers_again_from_the_keys():
    request = request_for(lambda: Decoder(checkpointed, dropout=0.2), sp=2, seq=64)
    graphs = dry_run(request).compilation.graphs
    again = recomputed_nodes(graphs.forward, graphs.backward)
    drawn = [n for n in graphs.backward.graph.nodes if n.target is KEPT and n.name in again]
    assert len(drawn) == 4, "attention and feed-forward of two layers"
    saved = saved_tensors(graphs.forward, graphs.num_forward_outputs)
    shapes = [tuple(n.meta["val"].shape) for n in saved if n.op == "call_function"]
    assert (4, 3) in shapes, "the keys are saved"
    assert not any(len(shape) == 4 and shape[-1] > 1 for shape in shapes), "numbers are not"


def test_a_policy_chooses_what_is_saved(partitions):
    region = partitions["selectively"]
    assert sum(region.again[product] for product in PRODUCTS) == 0
    assert region.again[torch.ops.aten.gelu.default] == 2
    assert region.again[ATTENTION] == 2
    assert region.all_to_alls == partitions["plainly"].all_to_alls == 8
    assert "recomputed-collective" not in region.findings
    saved = [partitions[name].saved_bytes for name in ("checkpointed", "selectively", "plainly")]
    assert saved == sorted(set(saved))


def test_collectives_of_a_region_run_again_and_the_finding_says_what_they_cost():
    region = Partition(checkpointed, length=2048, device=find_device("a100-80gb"))
    assert region.all_to_alls == 16
    finding = region.findings["recomputed-collective"]
    assert "8 collectives of the forward run again" in finding.message
    assert finding.cost_bytes == 2**20
    assert finding.cost_ns
    assert "create_selective_checkpoint_contexts" in finding.hint
    assert finding.source.file.endswith("checkpointed.py")
    (alternative,) = region.decisions[0].alternatives
    assert alternative.cost == "0.5 MiB more saved, 4 all_to_all fewer"


def test_attention_without_dropout_keeps_no_state_of_a_generator(partitions):
    names = {str(node.target) for node in partitions["checkpointed"].backward}
    assert "run_with_rng_state" not in names


def test_what_leaves_a_region_can_be_saved_outside_so_that_only_the_region_runs_again():
    def after(model, x):
        y = checkpoint(lambda t: F.linear(t, model.weight).sin(), x, use_reentrant=False)
        return y.cos()

    class Model(SmallModel):
        def forward(self, input_ids, labels):
            return super().forward(input_ids, labels)

    result = dry_run(request_for(lambda: Model(after=after), sp=2, seq=16))
    graphs = result.compilation.graphs
    again = recomputed_nodes(graphs.forward, graphs.backward)
    targets = [n.target for n in graphs.backward.graph.nodes if n.name in again]
    assert torch.ops.aten.mm.default in targets
    assert torch.ops.aten.cos.default in [n.target for n in graphs.backward.graph.nodes]
    assert torch.ops.aten.sin.default not in targets


def test_every_node_made_for_a_region_belongs_to_it():
    nodes = Partition(checkpointed).result.compilation.sharded.program.graph.nodes
    regions = [n.meta.get(REGION_KEY) for n in nodes if collective_kind(n) == "all_to_all"]
    assert regions == [1] * 4 + [2] * 4


@pytest.mark.parametrize("call", [checkpointed, nested, selectively])
def test_values_and_cotangents_of_regions_are_right(call):
    def body(model, x):
        def region(y):
            return F.gelu(F.linear(y, model.weight)) * y.mean(1, keepdim=True)

        return call(lambda y: region(y) + model.attend(y), call(region, x))

    found = []
    with_captured(SmallModel(after=body), tokens(1, 6), {}, lambda c, _: found.append(c))
    assert len(found[0].checkpoints) == 2
    assert all(region.where.partition(":")[0].endswith(".py") for region in found[0].checkpoints)
    assert_right(SmallModel(after=body))


def test_a_context_that_changes_what_a_region_computes_is_refused():
    def contexts():
        return torch.autocast("cpu", torch.bfloat16), nullcontext()

    def body(model, x):
        return checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts)

    with pytest.raises(AutoSPError, match="context_fn of a checkpoint returns a autocast"):
        prove(SmallModel(after=body), cases=((1, 6, 2),))


def test_contexts_that_do_nothing_are_a_plain_checkpoint():
    contexts = partial(lambda: (nullcontext(), nullcontext()))
    assert_right(
        SmallModel(
            after=lambda m, x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts)
        )
    )
