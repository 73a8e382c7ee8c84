"""Experts that sort tokens: each rank sorts its own, or all of them where that matters."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from autosp.graph import local_tag
from autosp.mesh import Mesh
from autosp.oracle.check import with_captured
from autosp.pipeline import PassContext
from autosp.sharding.propagate import shard
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
