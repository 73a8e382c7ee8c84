"""Experts that sort tokens: each rank sorts its own, or all of them where that matters."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import MixtralConfig, MixtralForCausalLM

from autosp.dry_run import dry_run
from autosp.errors import AutoSPError, GraphBreakError
from autosp.graph import local_tag
from autosp.mesh import Mesh
from autosp.oracle import check_module
from autosp.oracle.check import with_captured
from autosp.pipeline import PassContext
from autosp.sharding.propagate import shard
from tests.support.dry_runs import request_for
from tests.support.programs import WIDTH, SmallModel, assert_right, prove, tokens

NUM_EXPERTS = 4
PER_TOKEN = 2


def routed(model, x):
    """Experts and their weights of every token, ``[tokens, PER_TOKEN]``."""
    probabilities = F.linear(x.flatten(0, 1), model.weight[:NUM_EXPERTS]).softmax(-1)
    weights, ids = probabilities.topk(PER_TOKEN, -1)
    return ids, weights


def scaled(model, rows, ids):
    """What an expert does to a row, by lookup of the expert's weights."""
    return torch.tanh(rows * model.weight[:NUM_EXPERTS][ids] + model.query[:NUM_EXPERTS][ids])


def sorted_experts(model, x, experts=scaled):
    ids, weights = routed(model, x)
    sorted_ids, order = torch.sort(ids.reshape(-1))
    rows = x.flatten(0, 1)[order // PER_TOKEN]
    rows = experts(model, rows, sorted_ids) * weights.reshape(-1)[order].unsqueeze(-1)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.shape[0])
    return rows[inverse].view(-1, PER_TOKEN, WIDTH).sum(1).view(x.shape)


def test_tokens_sorted_by_expert_stay_on_their_rank():
    assert_right(SmallModel(after=sorted_experts))


def test_rows_multiplied_by_their_experts_weights():
    def experts(model, rows, ids):
        counts = torch.histc(ids.to(torch.float32), NUM_EXPERTS, 0, NUM_EXPERTS - 1)
        ends = counts.cumsum(0).to(torch.int32)
        weights = torch.stack([model.weight * (i + 1) for i in range(NUM_EXPERTS)])
        return torch.nn.functional.grouped_mm(
            rows.to(torch.bfloat16), weights.to(torch.bfloat16), offs=ends
        ).to(rows.dtype)

    def after(model, x):
        return x + sorted_experts(model, x, experts)

    assert_right(SmallModel(after=after))


def test_experts_that_look_at_the_rows_of_other_tokens_see_all_of_them():
    def experts(model, rows, ids):
        return scaled(model, rows, ids) + rows.cumsum(0) * 0.1

    for proof in prove(SmallModel(after=lambda m, x: sorted_experts(m, x, experts))):
        assert proof.report.ok, proof.report.first_wrong


def test_a_count_that_leaves_the_region_is_that_of_all_tokens():
    def after(model, x):
        ids, _ = routed(model, x)
        sorted_ids, order = torch.sort(ids.reshape(-1))
        counts = torch.histc(sorted_ids.to(torch.float64), NUM_EXPERTS, 0, NUM_EXPERTS - 1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.shape[0])
        rows = x.flatten(0, 1)[order // PER_TOKEN][inverse]
        return rows.view(-1, PER_TOKEN, WIDTH).sum(1).view(x.shape) * counts.max()

    for proof in prove(SmallModel(after=after)):
        assert proof.report.ok, proof.report.first_wrong


def test_rows_in_the_order_of_a_rank_have_no_placement():
    placements = {}

    def look(captured, inputs):
        with torch._guards.tracing(None), captured.fake_mode, torch.no_grad():
            program = shard(captured.program, PassContext(Mesh(sp=2))).program
        for node in program.graph.nodes:
            if (tag := local_tag(node)) is not None:
                placements.setdefault(tag.origin, []).append((tag.placement, tag.global_shape))

    with_captured(SmallModel(after=sorted_experts), tokens(2, 12), {}, look)
    assert placements["tanh"] == [(None, None)]
    assert all(placement is None for placement, _ in placements["sort"])
    assert placements["topk"] and all(placement for placement, _ in placements["topk"][1:])


def test_a_loop_over_experts_is_refused_with_the_way_out():
    def loop(model, x):
        rows = x.flatten(0, 1)
        ids, weights = routed(model, x)
        expert_mask, y = F.one_hot(ids, NUM_EXPERTS).permute(2, 1, 0), torch.zeros_like(rows)
        for expert in range(NUM_EXPERTS):
            place, token = torch.where(expert_mask[expert])
            y.index_add_(0, token, rows[token].tanh() * weights[token, place, None])
        return y.view(x.shape)

    with pytest.raises(AutoSPError, match="depends on data") as refused:
        prove(SmallModel(after=loop))
    assert "test_token_regions.py" in str(refused.value)
    assert "grouped_mm" in str(refused.value)


@pytest.mark.parametrize("allow_breaks", [False, True])
def test_experts_of_a_library_in_a_loop_are_refused_with_the_way_out(allow_breaks):
    request = request_for(mixtral, sp=2, seq=8, allow_breaks=allow_breaks)
    with pytest.raises(GraphBreakError) as refused:
        dry_run(request)
    assert "modeling_mixtral.py:" in str(refused.value)
    assert 'experts_implementation="grouped_mm"' in str(refused.value)
    assert "\n" not in str(refused.value)


def mixtral(experts="eager"):
    config = MixtralConfig(
        vocab_size=17, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=NUM_EXPERTS,
        attn_implementation="sdpa", experts_implementation=experts,
    )  # fmt: skip
    return MixtralForCausalLM(config)


def test_experts_whose_weights_are_looked_up_for_every_token_are_right():
    """And with a cache of keys and values, which begins as an empty vector."""
    ids, labels = tokens(2, 7)
    inputs = {"input_ids": ids, "labels": labels, "use_cache": True}
    report = check_module(mixtral("batched_mm").double(), (), inputs, num_ranks=2)
    assert report.ok, report.first_wrong
    assert report.num_fallbacks == 0
