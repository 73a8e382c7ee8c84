"""Random operators: numbers that depend on positions, and not on the number of ranks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from autosp.compilation import derive_graphs, saved_tensors
from autosp.dry_run import dynamo_graph
from autosp.errors import RandomnessError
from autosp.events import SilentRecorder
from autosp.findings import check_compilation
from autosp.graph import collective_kind, shape_of, tensor_of
from autosp.lowering import lower_to_rank
from autosp.mesh import Mesh
from autosp.pipeline import PassContext
from autosp.runtime.groups import RankGroup
from autosp.torch_backend import Backend
from tests.support.programs import ALL_CASES, SmallModel, assert_right, prove, tokens

sdpa = F.scaled_dot_product_attention

KEYED = {
    "dropout": lambda m, x: F.dropout(x, 0.3),
    "dropout in place": lambda m, x: F.dropout(x.clone(), 0.3, inplace=True),
    "dropout of flattened rows": lambda m, x: F.dropout(x.flatten(0, 1), 0.3).view(x.shape),
    "dropout of transposed": lambda m, x: F.dropout(x.transpose(1, 2), 0.3).transpose(1, 2),
    "dropout of a sum": lambda m, x: x + F.dropout(x.sum(1, keepdim=True), 0.5),
    "native dropout": lambda m, x: torch.native_dropout(x, 0.3, True)[0],
    "feature dropout": lambda m, x: F.dropout1d(x, 0.3),
    "dropout of everything": lambda m, x: x + F.dropout(x, 1.0),
    "rand_like": lambda m, x: x * torch.rand_like(x),
    "randn_like": lambda m, x: x + torch.randn_like(x),
    "randint_like": lambda m, x: x * torch.randint_like(x, 5),
    "rand": lambda m, x: x * torch.rand(x.shape, dtype=x.dtype),
    "randn": lambda m, x: x + torch.randn(x.shape[1], 1, dtype=x.dtype),
    "randint": lambda m, x: x + torch.randint(-3, 9, (x.shape[1], 1)),
    "normal": lambda m, x: x + torch.normal(0.0, 1.0, (x.shape[1], 1)),
    "bernoulli": lambda m, x: x * torch.bernoulli(x.sigmoid()),
    "bernoulli_": lambda m, x: x * torch.empty_like(x).bernoulli_(0.5),
    "bernoulli_ of a tensor": lambda m, x: x * torch.empty_like(x).bernoulli_(x.sigmoid()),
    "drop path": lambda m, x: x * x.new_empty((x.shape[0], 1, 1)).bernoulli_(0.5),
    "uniform_": lambda m, x: x * torch.empty_like(x).uniform_(0.5, 1.5),
    "normal_": lambda m, x: x + torch.empty_like(x).normal_(0.5, 1.5),
    "gumbel softmax": lambda m, x: F.gumbel_softmax(x),
    "dropout in a checkpointed region": lambda m, x: checkpoint(
        lambda y: F.dropout(F.linear(y, m.weight), 0.3) + m.attend(F.dropout(y, 0.2)),
        x,
        use_reentrant=False,
    ),
    "a scalar": lambda m, x: x * torch.rand((), dtype=x.dtype),
    "dropout of a replicated value": lambda m, x: x * F.dropout(m.weight[:1], 0.3),
    "dropout of positions": lambda m, x: (
        x + F.dropout(torch.arange(x.shape[1], dtype=x.dtype)[:, None] / 7, 0.3)
    ),
}


@pytest.mark.parametrize("name", KEYED)
def test_random_numbers_do_not_depend_on_the_ranks(name):
    assert_right(SmallModel(after=KEYED[name]))


def test_dropout_before_and_after_attention_on_all_layouts():
    model = SmallModel(before=KEYED["dropout"], after=KEYED["dropout"])
    assert_right(model, cases=ALL_CASES)


@pytest.mark.parametrize(
    "attention",
    [
        lambda m, q, k, v: sdpa(q, k, v, dropout_p=0.3, is_causal=True),
        lambda m, q, k, v: sdpa(q, k, v, dropout_p=0.3, scale=0.3),
        lambda m, q, k, v: sdpa(q, k, v, attn_mask=causal(q), dropout_p=0.3),
        lambda m, q, k, v: sdpa(q, k, v, attn_mask=1.0 * window(q), dropout_p=0.3),
        lambda m, q, k, v: sdpa(q, k, v, attn_mask=window(q), dropout_p=0.3),
        lambda m, q, k, v: sdpa(q, k, v, dropout_p=1.0, is_causal=True) + q,
    ],
    ids=["causal", "scale", "causal mask", "bias", "mask", "all"],
)
def test_attention_dropout_does_not_depend_on_the_ranks(attention):
    assert_right(SmallModel(attention=attention), cases=ALL_CASES)


def test_attention_dropout_with_shared_heads():
    def attention(model, q, k, v):
        return sdpa(q, k, v, dropout_p=0.3, is_causal=True, enable_gqa=True)

    for num_kv_heads in (1, 6):
        cases = ((2, 5, 2), (1, 7, 3))
        assert_right(SmallModel(attention=attention, num_kv_heads=num_kv_heads), cases=cases)


def causal(q):
    return torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()


def window(q):
    rows = torch.arange(q.shape[-2])
    return (rows[:, None] - rows[None, :]).abs() < 3


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: F.dropout(x, 0.3, training=False),
        lambda m, x: F.dropout(x, 0.0),
        lambda m, x: F.dropout1d(x, 0.3, training=False),
        lambda m, x: F.alpha_dropout(x, 0.3, training=False),
        lambda m, x: F.rrelu(x, training=False),
    ],
)
def test_what_drops_nothing_draws_nothing(body):
    model = SmallModel(after=body)
    assert_right(model)
    before = torch.get_rng_state()
    on_one_rank(model)(*tokens(1, 6))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: x[:, torch.randperm(x.shape[1])],
        lambda m, x: x * torch.multinomial(x[0].sigmoid(), 2).sum(),
        lambda m, x: F.rrelu(x, training=True),
        lambda m, x: F.alpha_dropout(x, 0.3, training=True),
        lambda m, x: x * torch.empty_like(x).cauchy_(),
    ],
    ids=["randperm", "multinomial", "rrelu", "alpha dropout", "cauchy"],
)
def test_operators_without_a_keyed_form_are_refused(body):
    with pytest.raises(RandomnessError, match="draws random numbers") as caught:
        prove(SmallModel(after=body))
    assert "test_randomness.py:" in str(caught.value) or "programs.py:" in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------ one rank, for real


def on_one_rank(model, *, partitioner="min-cut", inner="eager", dp=1, dp_rank=0):
    group = RankGroup(Mesh(sp=1, dp=dp, rank=dp_rank), SimpleNamespace(group_name="alone"))
    entry = Backend(
        group,
        inner=inner,
        partitioner=partitioner,
        recorder=SilentRecorder(),
        padding_fill="last",
    )
    torch._dynamo.reset()
    return torch.compile(model, backend=entry, fullgraph=True, dynamic=False)


class Dropped(torch.nn.Module):
    """What dropout makes of ones; the gradient shows what the backward thinks of it."""

    def __init__(self, p=0.25):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 64, 64))
        self.p = p

    def forward(self, x):
        return F.dropout(x * self.weight, self.p)


@pytest.mark.parametrize("partitioner", ["min-cut", "default"])
def test_forward_and_backward_see_the_same_numbers(partitioner):
    model = Dropped()
    y = on_one_rank(model, partitioner=partitioner)(torch.ones(2, 64, 64))
    y.sum().backward()
    assert torch.equal(model.weight.grad, y.detach())
    assert y.unique().tolist() == pytest.approx([0, 1 / 0.75])


def test_torchs_seed_makes_a_step_reproducible_and_steps_differ():
    compiled, x = on_one_rank(Dropped()), torch.ones(2, 64, 64)
    torch.manual_seed(5)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(5)
    assert torch.equal(compiled(x), first)
    assert 0.3 < (first != second).double().mean() < 0.45  # 2 p (1 - p) = 0.375


def test_data_parallel_groups_draw_other_numbers_from_one_seed():
    x, outputs = torch.ones(2, 64, 64), []
    for dp_rank in (0, 1):
        torch.manual_seed(5)
        outputs.append(on_one_rank(Dropped(), dp=2, dp_rank=dp_rank)(x))
    assert 0.3 < (outputs[0] != outputs[1]).double().mean() < 0.45


# ------------------------------------------------------------------ the graphs


def compiled_for(model, inputs, *, num_ranks, partitioner):
    graph = dynamo_graph(model, inputs, {}, None)
    compilation = lower_to_rank(graph, PassContext(Mesh(sp=num_ranks)))
    captured = compilation.captured
    tracing = torch._guards.tracing(torch._guards.TracingContext(captured.fake_mode))
    with tracing, captured.fake_mode:
        derive_graphs(compilation, captured.fake_inputs, partitioner=partitioner)
    return compilation


@pytest.mark.parametrize("partitioner", ["min-cut", "default"])
def test_a_rank_draws_only_its_own_numbers_and_saves_one_byte_for_each(partitioner):
    def attention(model, q, k, v):
        return sdpa(q, k, v, dropout_p=0.1, is_causal=True)

    model = SmallModel(before=KEYED["dropout"], attention=attention, after=KEYED["dropout"])
    compilation = compiled_for(model, tokens(2, 12), num_ranks=4, partitioner=partitioner)
    graphs = compilation.graphs
    words = Counter(
        shape_of(node)
        for graph in (graphs.forward, graphs.backward)
        for node in graph.graph.nodes
        if (tensor := tensor_of(node)) is not None
        and tensor.dtype == torch.int64
        and tensor.numel() > 2 * 12
        and tensor.shape[-1] > 1
    )
    assert set(words) == {(2, 3, 24), (2, 3, 12, 12)}
    saved = saved_tensors(graphs.forward, graphs.num_forward_outputs)
    large = {tensor_of(n).dtype for n in saved if shape_of(n) in words}
    assert torch.int64 not in large


@pytest.mark.parametrize("partitioner", ["min-cut", "default"])
def test_ranks_agree_once_and_the_backward_does_not_again(partitioner):
    model = SmallModel(after=KEYED["dropout"])
    compilation = compiled_for(model, tokens(2, 12), num_ranks=4, partitioner=partitioner)

    def sent_keys(graph):
        return [
            node
            for node in graph.graph.nodes
            if collective_kind(node) == "all_reduce" and tensor_of(node).dtype == torch.int64
        ]

    assert len(sent_keys(compilation.graphs.forward)) == 1
    assert sent_keys(compilation.graphs.backward) == []
    reasons = [d.reason for d in compilation.context.decisions if d.topic == "randomness"]
    assert any("keys of its first rank" in reason for reason in reasons)


def test_attention_dropout_is_a_finding_with_its_bytes():
    model = SmallModel(attention=lambda m, q, k, v: sdpa(q, k, v, dropout_p=0.1))
    compilation = compiled_for(model, tokens(1, 12), num_ranks=2, partitioner="min-cut")
    found = {f.code: f for f in check_compilation(compilation, None)}
    finding = found["attention-dropout"]
    assert finding.severity == "info"
    assert "[1, 12, 12, 12]" in finding.message and "KiB" in finding.message
    assert "square-tensor" not in found
