"""Writes in place: assignments to parts of sharded values, and writes to buffers and inputs."""

from __future__ import annotations

import pytest
import torch

from autosp.dry_run import dry_run
from autosp.errors import MutationError, ShardingError
from autosp.graph import is_write, output_node
from autosp.oracle.check import with_captured
from tests.support import writing
from tests.support.dry_runs import request_for
from tests.support.programs import (
    ALL_CASES,
    NUM_HEADS,
    WIDTH,
    SmallModel,
    assert_right,
    prove,
    tokens,
)

# ------------------------------------------------------------------ parts of sharded values


def image_rows(model, x):
    rows = x * 1
    rows[:, 2:4] = model.bias.sin()
    return rows.sin()


def rows_of_another_place(model, x):
    rows = torch.zeros_like(x)
    rows[:, 1:] = x[:, :-1]
    return rows.sin()


def strided_rows(model, x):
    rows = x * 1
    rows[:, -3:100:2] = model.bias
    rows[:, 1:1] = model.bias
    rows[:, 4:3] = 0.0
    return rows.sin()


def view_of_a_view(model, x):
    rows = x * 1
    heads = rows.view(*x.shape[:2], NUM_HEADS, -1).transpose(1, 2)
    heads[:, :4, 1:3] = 0.5
    heads[..., 0].mul_(2)
    heads[:, 2] = model.bias[:2]
    return rows.sin()


def one_row(model, x):
    rows = x * 1
    rows[:, -1] = model.bias
    rows[:, 0] = 1.0
    return rows.sin()


def other_dims(model, x):
    rows = x * 1
    rows.transpose(1, 2)[:, 3:5].add_(1)
    rows.view(*x.shape[:2], NUM_HEADS, 2)[:, :, 3].copy_(x[..., :2])
    rows[..., :4] = x[..., 4:8]
    return rows.sin()


def through_aliases(model, x):
    rows = x.clone()
    flat = rows.view(-1, WIDTH)
    flat.add_(1)
    flat[:, :3].mul_(3)
    rows.unsqueeze(0).mul_(2)
    rows += model.bias
    rows *= x
    rows.masked_fill_(model.ids[..., None] > 5, 0.0).addcmul_(x, x)
    return (rows + flat.view_as(rows)).sin()


IN_SHARDS = [image_rows, view_of_a_view, other_dims, through_aliases]
WITH_FALLBACKS = [rows_of_another_place, strided_rows, one_row]


@pytest.mark.parametrize("body", [*IN_SHARDS, *WITH_FALLBACKS], ids=lambda body: body.__name__)
def test_assignments_are_right(body):
    assert_right(SmallModel(after=body), max_fallbacks=None, cases=ALL_CASES)


@pytest.mark.parametrize("body", [image_rows, other_dims, through_aliases])
def test_assignments_keep_the_shards(body):
    assert_right(SmallModel(after=body), max_fallbacks=0)


def test_padding_rows_never_keep_rows_that_were_overwritten_because_they_were_zero():
    def body(model, x):
        rows = torch.zeros_like(x)
        rows[:, -1] = x[:, 0] + model.bias
        rows[:, :-1] = x[:, 1:]
        return rows / rows.norm(dim=-1, keepdim=True) * model.bias

    assert_right(SmallModel(after=body), max_fallbacks=None, cases=ALL_CASES)


@pytest.mark.parametrize(
    "edit",
    [
        lambda m, r, x: r.index_put_((torch.tensor([0]), torch.tensor([1])), m.bias[None]),
        lambda m, r, x: r.__setitem__(m.ids > 5, 0.0),
        lambda m, r, x: r.scatter_(1, m.ids.argsort(1)[..., None].expand_as(x), x * 2),
        lambda m, r, x: r.scatter_(2, m.ids[..., None] % NUM_HEADS, 1.0),
        lambda m, r, x: r.index_add_(1, torch.tensor([0, 3]), x[:, :2]),
        lambda m, r, x: r.index_copy_(2, torch.tensor([1]), x[..., :1]),
        lambda m, r, x: r.diagonal(dim1=1, dim2=2).zero_(),
        lambda m, r, x: r.cumsum_(1),
        lambda m, r, x: r.view(-1, WIDTH)[1:3].mul_(2),
    ],
    ids=["index_put", "mask", "scatter along", "scatter", "index_add", "index_copy", "diagonal",
         "cumsum", "flattened rows"],
)  # fmt: skip
def test_edits_in_place_are_right(edit):
    def body(model, x):
        rows = x * 1
        edit(model, rows, x)
        return rows.sin()

    assert_right(SmallModel(after=body), max_fallbacks=None)


def test_strides_of_a_gathered_tensor_are_those_of_the_users():
    def body(model, x):
        rows = x * 1
        batch, length, _ = x.shape
        rows.as_strided((batch, length, 4), (length * WIDTH, WIDTH, 1)).mul_(2)
        return rows.sin()

    assert_right(SmallModel(after=body), max_fallbacks=None)


def test_strides_of_the_memory_behind_a_view_are_refused():
    def body(model, x):
        return (x * 1).transpose(1, 2).as_strided((3, 4), (1, 2)).sin()

    with pytest.raises(
        ShardingError, match=r"test_mutation.py:\d+.*reads the memory behind a view"
    ):
        prove(SmallModel(after=body), cases=((2, 5, 2),))


# ------------------------------------------------------------------ buffers and inputs


@pytest.mark.parametrize("kind", writing.WRITING)
@pytest.mark.parametrize("case", [(1, 12, 3), (2, 5, 4)])
def test_values_that_are_written_are_right(kind, case):
    found = []
    with_captured(kind(), tokens(*case[:2]), {}, lambda c, _: found.append(c))
    writes = [node for node in found[0].program.graph.nodes if is_write(node)]
    assert len(writes) == len(found[0].writes) > 0
    assert_right(kind(), max_fallbacks=None, cases=(case,))


def dry(kind):
    class Named(kind):
        def forward(self, input_ids, labels):
            return super().forward(input_ids, labels)

    return dry_run(request_for(Named, sp=2, seq=12, batch=2))


@pytest.mark.parametrize("kind", writing.WRITING)
def test_a_dry_run_knows_the_writes(kind):
    result = dry(kind)
    names = result.compilation.captured.writes
    assert names
    rank = [n for n in result.compilation.sharded.program.graph.nodes if is_write(n)]
    assert len(rank) == len(names)
    assert result.estimate.summary.peak_live_bytes > 0
    if kind is not writing.KeepingSums:  # its buffer leaves as an output: it carries a gradient
        assert [str(n.args[0]) for n in result.step.forward.graph.nodes if is_write(n)]


class KeepingTokens(SmallModel):
    """Keeps its last hidden states whole."""

    def __init__(self):
        super().__init__(after=self.kept)
        self.register_buffer("last", torch.zeros(2, 12, WIDTH, dtype=torch.float64))

    def kept(self, model, x):
        self.last.copy_(x.detach())
        return x


def test_a_sharded_value_is_gathered_before_it_is_written_and_the_decision_says_so():
    decisions = dry(KeepingTokens).compilation.context.decisions
    (decision,) = [d for d in decisions if d.topic == "write"]
    assert decision.chosen == "S(1:seq) -> R before it is written"
    assert "every rank keeps the same last: 0.0 MiB whole" in decision.reason
    assert_right(KeepingTokens(), cases=((2, 12, 2), (2, 12, 3)))


@pytest.mark.parametrize("kind", [writing.RunningStatistics, writing.CheckpointedStatistics])
def test_the_backward_reads_what_a_buffer_held_before_the_write(kind):
    graphs = dry(kind).compilation.graphs
    read = {n.name for n in graphs.backward.graph.find_nodes(op="placeholder")}
    written = [str(n.args[0]) for n in graphs.forward.graph.nodes if is_write(n)]
    assert written and not read & set(written)


def test_a_buffer_that_the_backward_does_not_read_is_not_copied():
    forward = dry(writing.Caching).compilation.graphs.forward
    (cache,) = [n.args[0] for n in forward.graph.nodes if is_write(n)]
    copies = [n for n in cache.users if n.target is torch.ops.aten.clone.default]
    assert copies == []
    assert output_node(forward.graph) not in cache.users


def refused(model, *words, batch=1):
    with pytest.raises(MutationError) as caught:
        prove(model, cases=((batch, 6, 2),))
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_writing_to_a_parameter_that_is_trained_is_refused():
    class Decaying(SmallModel):
        def forward(self, ids, labels):
            with torch.no_grad():
                self.bias.mul_(0.9)
            return super().forward(ids, labels)

    refused(Decaying(), "writes in place to bias", "test_mutation.py:", "trained")


def test_writing_to_an_input_that_shares_its_memory_is_refused():
    class Halves(SmallModel):
        def __init__(self):
            super().__init__()
            both = torch.zeros(6, dtype=torch.float64)
            self.register_buffer("left", both[:3])
            self.register_buffer("right", both[2:])

        def forward(self, ids, labels):
            self.left.add_(1)
            return super().forward(ids, labels) * self.right.sum().cos()

    refused(Halves(), "left", "share memory")


def test_a_buffer_that_keeps_the_graph_of_an_earlier_step_is_refused():
    model = writing.KeepingSums()
    prove(model, cases=((1, 6, 2),))
    refused(model, "needs a gradient", "writing.py:", "detach()", batch=2)
