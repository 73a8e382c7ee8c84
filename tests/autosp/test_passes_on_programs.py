"""The rewrites before sharding: masks that are causal, KV heads that are repeated."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from autosp.events import SilentRecorder
from autosp.graph import collective_kind, local_tag
from autosp.lowering import lower_to_rank
from autosp.mesh import Mesh
from autosp.oracle.check import with_captured
from autosp.passes.drop_causal_masks import DropCausalMasks
from autosp.passes.share_kv_heads import ShareKvHeads
from autosp.pipeline import PassContext
from autosp.placement import Shard
from tests.support.gloo_cases import loss_and_logits, sample
from tests.support.programs import NUM_HEADS, SmallModel, assert_right, tokens

aten = torch.ops.aten
SDPA = aten.scaled_dot_product_attention.default


def after_passes(model, *passes, inputs=None, kwargs=None):
    """(program, decisions) after ``passes``."""
    found = []

    def use(captured, _):
        context = PassContext(Mesh(sp=2))
        program = captured.program
        for item in passes:
            program = item.run(program, context)
        found.append((program, context.decisions))

    with_captured(model, inputs or (), kwargs or {}, use)
    return found[0]


def sites(program):
    return program.graph.find_nodes(op="call_function", target=SDPA)


def squares(program, length):
    shapes = [tuple(n.meta["val"].shape) for n in program.graph.nodes if is_tensor(n)]
    return [s for s in shapes if s[-2:] == (length, length)]


def is_tensor(node):
    return isinstance(node.meta.get("val"), torch.Tensor)


def test_the_mask_of_transformers_is_removed_with_all_its_squares():
    subject = sample("hf_llama", batch=2, length=13, dtype="float64")
    program, decisions = after_passes(subject.module, DropCausalMasks(), kwargs=subject.kwargs)
    assert squares(program, 13) == []
    assert all(site.args[3] is None and site.args[5] is True for site in sites(program))
    masks = [d for d in decisions if d.topic == "mask"]
    assert [d.status for d in masks] == ["applied", "applied"]
    assert "-q+k <= 0" in masks[0].reason


def test_other_masks_are_left_to_the_next_pass():
    def attention(model, q, k, v):
        index = torch.arange(q.shape[2])
        window = (index[None] <= index[:, None]) & (index[:, None] - index[None] < 3)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=window)

    model = SmallModel(attention=attention)
    program, decisions = after_passes(model, DropCausalMasks(), inputs=tokens(1, 6))
    assert sites(program)[0].args[3] is not None
    assert [d for d in decisions if d.topic == "mask"] == []


def test_a_causal_mask_for_fewer_queries_than_keys_stays():
    def attention(model, q, k, v):
        mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k[:, :, :-1], v[:, :, :-1], mask[:, :-1])

    program, _ = after_passes(
        SmallModel(attention=attention), DropCausalMasks(), inputs=tokens(1, 6)
    )
    assert sites(program)[0].args[3] is not None
    assert_right(SmallModel(attention=attention), max_fallbacks=None)


def repeating(repeat):
    def attention(model, q, k, v):
        k, v = repeat(k), repeat(v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return SmallModel(num_kv_heads=4, attention=attention)


def test_repeated_kv_heads_are_shared_in_both_spellings():
    def expanded(x):
        batch, heads, length, size = x.shape
        wide = x[:, :, None].expand(batch, heads, 3, length, size)
        return wide.reshape(batch, NUM_HEADS, length, size)

    for repeat in (expanded, lambda x: x.repeat_interleave(3, dim=1)):
        program, _ = after_passes(repeating(repeat), ShareKvHeads(), inputs=tokens(1, 6))
        (site,) = sites(program)
        assert site.args[1].meta["val"].shape[1] == 4
        assert site.kwargs["enable_gqa"] is True
        assert_right(repeating(repeat), cases=((2, 5, 2),))


def test_heads_tiled_in_another_order_are_not_shared():
    def tiled(x):
        return x.repeat(1, 3, 1, 1)

    program, _ = after_passes(repeating(tiled), ShareKvHeads(), inputs=tokens(1, 6))
    assert sites(program)[0].args[1].meta["val"].shape[1] == NUM_HEADS
    assert_right(repeating(tiled), cases=((2, 5, 2),), max_fallbacks=None)


def lowered(model, num_ranks, inputs):
    found = []

    def backend(graph, example_inputs):
        context = PassContext(Mesh(sp=num_ranks), SilentRecorder())
        found.append(lower_to_rank(graph, context))
        return graph

    torch._dynamo.reset()
    torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(*inputs)
    return found[0]


def test_kv_heads_travel_once_and_queries_too():
    compilation = lowered(SmallModel(num_kv_heads=4), 2, tokens(1, 6))
    sizes = sorted(
        node.meta["val"].numel()
        for node in compilation.sharded.program.graph.nodes
        if collective_kind(node) == "all_to_all"
    )
    rows, head_size = 3, 2  # of one rank
    assert sizes == [rows * 4 * head_size] * 2 + [rows * 12 * head_size] * 2


def test_logits_beside_a_loss_leave_as_blocks_without_gradient():
    compilation = lowered(SmallModel(loss=loss_and_logits), 2, tokens(2, 7))
    loss, logits = compilation.outputs.leaves
    assert str(loss.placement) == "R" and loss.differentiable
    assert isinstance(logits.placement, Shard) and not logits.differentiable
    assert logits.shape == (2, 7, 17)
    assert compilation.outputs.any_sharded


def test_logits_alone_keep_their_gradient():
    compilation = lowered(SmallModel(loss=lambda m, x: m.logits(x)), 2, tokens(2, 7))
    (logits,) = compilation.outputs.leaves
    assert logits.differentiable and isinstance(logits.placement, Shard)


def test_every_value_has_the_shape_of_its_placement():
    compilation = lowered(SmallModel(num_kv_heads=4, loss=loss_and_logits), 4, tokens(2, 7))
    tags = [local_tag(node) for node in compilation.sharded.program.graph.nodes]
    placed = [tag for tag in tags if tag is not None and tag.placement is not None]
    assert {str(tag.placement) for tag in placed} >= {"R", "P(sum)", "S(1:seq,pad=1)", "S(1:head)"}
