"""One program serves every length, also those that the ranks do not divide."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.distributed.fake_pg import FakeStore

import autosp
from autosp.collective_order import collective_list
from autosp.errors import AutoSPError
from autosp.events import Decision, GraphSnapshot, ListRecorder
from autosp.graph import functional
from autosp.oracle import check_lengths
from tests.support.dynamic_cases import BODIES, convolved, marked, sample_call, small_call
from tests.support.gloo_cases import sample
from tests.support.programs import SmallModel, tokens

LENGTHS = (16, 17, 23)


@pytest.mark.parametrize(("name", "num_ranks"), [("llama", 4)])
def test_one_program_of_a_sample_is_right_at_every_length(name, num_ranks):
    model = sample(name, batch=2, length=16, dtype="float64").module
    calls = [sample_call(name, 2, length) for length in LENGTHS]
    found = check_lengths(model, calls, num_ranks=num_ranks)
    assert found.num_programs == 1
    assert [str(report.first_wrong) for report in found.reports if not report.ok] == []
    fills = {length: report.fills for length, report in zip(LENGTHS, found.reports, strict=True)}
    assert fills[17] == fills[23] == ("last", "first")
    assert all(report.num_fallbacks == 0 for report in found.reports)


@pytest.mark.parametrize("name", BODIES)
def test_operators_along_the_sequence_are_right_at_every_length(name):
    calls = [small_call(2, length) for length in (14, 9)]
    found = check_lengths(BODIES[name], calls, num_ranks=4)
    assert found.num_programs == 1
    assert [str(report.first_wrong) for report in found.reports if not report.ok] == []


def test_a_first_length_that_equals_other_sizes_ties_nothing():
    """Of 12 heads, 12 tokens: their equality must not become part of the program."""
    calls = [small_call(2, length) for length in (12, 13, 16)]
    found = check_lengths(BODIES["shifted loss"], calls, num_ranks=2)
    assert found.ok and found.num_programs == 1


def test_neighbours_exchange_rows_at_every_length():
    calls = [small_call(1, length) for length in (16, 13, 15)]
    found = check_lengths(SmallModel(after=convolved), calls, num_ranks=4)
    assert found.ok and found.num_programs == 1


def test_sizes_that_may_be_equal_or_not_are_refused():
    """Batch and length of two inputs are marked: only their products are known to agree."""
    args, kwargs = small_call(2, 12)
    for given in args:
        torch._dynamo.mark_dynamic(given, 0)
    with pytest.raises(AutoSPError, match="cannot stay dynamic: torch cannot tell which sizes"):
        check_lengths(BODIES["shifted loss"], [(args, kwargs)], num_ranks=4)


def test_unmarked_inputs_are_a_program_a_length():
    calls = [(tokens(2, length), {}) for length in (12, 9)]
    found = check_lengths(BODIES["sum"], calls, num_ranks=2)
    assert found.ok and found.num_programs == 2


def test_what_ties_the_program_to_a_length_is_refused_in_one_line():
    model = SmallModel(after=lambda m, x: F.interpolate(x.mT, scale_factor=2.0).mT)
    with pytest.raises(AutoSPError) as caught:
        check_lengths(model, [small_call(2, 12)], num_ranks=2)
    text = str(caught.value)
    assert "\n" not in text
    assert "test_dynamic_lengths.py:" in text
    assert "dim 1 of ids" in text and "cannot stay dynamic" in text
    assert "upsample" in text and "Remove torch._dynamo.mark_dynamic" in text


@pytest.mark.parametrize(
    ("heads", "choice", "message"),
    [
        (4, "ring", "--attention ring: a ring serves one length"),
        (4, "hybrid", "--attention hybrid: a ring serves one length"),
        (3, "auto", "SP degree 2 does not fit .* No ring instead: a ring serves one length"),
    ],
)
def test_a_ring_is_refused_for_a_length_that_stays_dynamic(heads, choice, message):
    model = SmallModel(attention=lambda m, q, k, v: with_heads(q, k, v, heads))
    with pytest.raises(AutoSPError, match=message) as caught:
        check_lengths(model, [small_call(2, 12)], num_ranks=2, attention=choice)
    assert "\n" not in str(caught.value)


def test_a_flip_of_a_dynamic_length_gathers_and_says_so():
    calls = [small_call(2, length) for length in (14, 9)]
    found = check_lengths(SmallModel(after=lambda m, x: x.flip(1)), calls, num_ranks=2)
    assert found.ok and found.num_programs == 1
    assert [report.num_fallbacks for report in found.reports] == [1, 1]


def test_ranks_describe_their_collectives_alike_whatever_lengths_are_called():
    fake_mode = torch._subclasses.FakeTensorMode(shape_env=ShapeEnv())
    described = []
    for name in ("a", "b"):
        length = fake_mode.shape_env.create_symintnode(
            fake_mode.shape_env.create_symbol(12, ConstantSource(name)), hint=12
        )
        graph = torch.fx.Graph()
        sent = graph.placeholder("sent")
        with fake_mode:
            sent.meta["val"] = torch.empty(length, 3)
        graph.call_function(functional.all_reduce.default, (sent, "sum", "sp"))
        described.append(collective_list(torch.fx.GraphModule({}, graph), None, "sp"))
    assert described[0] == described[1]
    assert "[12, 3]" in described[0][0]


def test_pieces_of_a_broken_program_serve_one_length():
    from autosp.capture import capture

    def backend(graph, inputs):
        capture(graph, allow_breaks=True)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(BODIES["sum"], backend=backend)
    with pytest.raises(Exception, match="dim 1 of ids .* cannot stay dynamic: pieces"):
        compiled(*marked(*tokens(1, 6)))


def test_an_observer_sees_numbers_and_what_the_program_serves(fake_ranks):
    recorder = ListRecorder()
    model = sample("llama", batch=2, length=17, dtype="float64").module
    backend = autosp.backend(autosp.Mesh(sp=2), inner="eager", recorder=recorder)
    _, inputs = sample_call("llama", 2, 17)
    torch.compile(model, backend=backend, fullgraph=True)(**inputs)
    chosen = {e.topic: e for e in recorder.events if isinstance(e, Decision)}
    assert chosen["dynamic-sizes"].chosen == "dim 1 of input_ids stays dynamic"
    assert "from 3 up; what is recorded of it is at 17" in chosen["dynamic-sizes"].reason
    snapshots = [event for event in recorder.events if isinstance(event, GraphSnapshot)]
    shapes = {
        shape
        for snapshot in snapshots
        for node in snapshot.nodes
        for shape in (node.global_shape, node.local_shape)
        if shape is not None
    }
    assert (2, 17, 64) in shapes and (2, 9, 64) in shapes
    assert all(type(size) is int for shape in shapes for size in shape)
    assert {s.graph for s in snapshots} >= {"program", "joint", "forward", "backward"}


def with_heads(q, k, v, heads):
    given = (x[:, :heads] for x in (q, k, v))
    out = F.scaled_dot_product_attention(*given, is_causal=True)
    return torch.cat([out, q[:, heads:]], 1)


@pytest.fixture
def fake_ranks():
    torch._dynamo.reset()
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()
    torch._dynamo.reset()
