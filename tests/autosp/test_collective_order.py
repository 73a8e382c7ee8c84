"""All ranks issue the same collectives, or say where they do not, instead of waiting for ever."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.exc import BackendCompilerFailed

import autosp
from autosp.collective_order import check_same_collectives, collective_list
from autosp.compilation import derive_graphs
from autosp.dry_run import dry_run, dynamo_graph
from autosp.errors import CollectiveOrderError, RankError
from autosp.events import Decision, ListRecorder
from autosp.lowering import lower_to_rank
from autosp.mesh import Mesh
from autosp.pipeline import PassContext
from autosp.runtime.agreement import agree_on_collectives
from autosp.verification_processes import run_on_ranks
from tests.support.custom_functions import some
from tests.support.dry_runs import request_for
from tests.support.gloo_cases import mean_loss, run_cases
from tests.support.gloo_sequences import moving_rows
from tests.support.programs import SmallModel, tokens

GATHER = "forward all_gather of torch.float64 [1, 4] over sp"
REDUCE = "forward all_reduce of torch.float64 [4] over sp, sum"


class Model(SmallModel):
    def forward(self, input_ids, labels):
        return super().forward(input_ids, labels)


def list_of_rank(rank, *, after, length, num_ranks):
    request = request_for(lambda: Model(after=after, loss=mean_loss), sp=num_ranks, seq=length)
    graph = dynamo_graph(request.model, request.args, request.kwargs, request.fake_mode)
    context = PassContext(Mesh(sp=num_ranks, rank=rank))
    compilation = lower_to_rank(graph, context)
    fake_mode = compilation.captured.fake_mode
    with torch._guards.tracing(torch._guards.TracingContext(fake_mode)), fake_mode:
        inputs = compilation.captured.fake_inputs
        derive_graphs(compilation, inputs, partitioner="min-cut")
    graphs = compilation.graphs
    return collective_list(graphs.forward, graphs.backward, context.group_name)


@pytest.mark.parametrize(
    ("after", "length"),
    [(moving_rows, 12), (moving_rows, 13), (some, 13)],
    ids=["moving rows", "padded moving rows", "custom functions"],
)
def test_the_programs_of_all_ranks_list_the_same_collectives(after, length):
    lists = [list_of_rank(r, after=after, length=length, num_ranks=3) for r in range(3)]
    check_same_collectives(lists)
    assert any(entry.startswith("backward all_to_all of torch.float") for entry in lists[0])
    assert len(lists[0]) > 12


def test_an_entry_says_what_is_sent_and_how_it_is_reduced():
    graphs = dry_run(request_for(lambda: Model(loss=mean_loss), sp=2, seq=8)).compilation.graphs
    entries = collective_list(graphs.forward, graphs.backward, "autosp-dry-run")
    assert "forward all_reduce of torch.float64 [] over sp, sum" in entries
    assert not any("another group" in entry for entry in entries)
    others = collective_list(graphs.forward, None, "a group of this name does not exist")
    assert all("another group" in entry for entry in others)


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        (
            [[GATHER, REDUCE], [GATHER, REDUCE], [GATHER, GATHER]],
            f"collective 2 of the step is {GATHER} on SP rank 2, but {REDUCE} on SP rank 0",
        ),
        (
            [[GATHER, REDUCE], [GATHER]],
            f"collective 2 of the step is no more on SP rank 1, but {REDUCE} on SP rank 0",
        ),
        ([[], [GATHER]], f"collective 1 of the step is {GATHER} on SP rank 1, but no more on"),
    ],
)
def test_the_error_names_the_rank_and_the_first_difference(lists, words):
    with pytest.raises(CollectiveOrderError) as caught:
        check_same_collectives(lists)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------ real processes


def lists_that_differ():
    """Rank 1 has one collective more."""
    entries = [GATHER, REDUCE, *[GATHER] * dist.get_rank()]
    agree_on_collectives(entries, dist.group.WORLD, torch.device("cpu"))


def compiled_decision():
    recorder = ListRecorder()
    compiled = autosp.compile(SmallModel(loss=mean_loss), inner="eager", recorder=recorder)
    compiled(*tokens(2, 7)).backward()
    found = [e for e in recorder.events if isinstance(e, Decision)]
    return [d.chosen for d in found if d.topic == "collective-order"]


def of_other_lengths():
    """A script whose ranks do not pad alike."""
    compiled = autosp.compile(SmallModel(loss=mean_loss), inner="eager")
    try:
        compiled(*tokens(2, 8 + 4 * dist.get_rank()))
    except BackendCompilerFailed as failure:
        return str(failure.inner_exception)
    return "no error"


def alone():
    """Rank 0 compiles, the other ranks do not."""
    if dist.get_rank() == 0:
        group, device = dist.group.WORLD, torch.device("cpu")
        agree_on_collectives([], group, device, timeout=timedelta(seconds=1))


CASES = {
    "differ": lists_that_differ,
    "decision": compiled_decision,
    "lengths": of_other_lengths,
}


@pytest.fixture(scope="module")
def two():
    return run_on_ranks(partial(run_cases, CASES), num_ranks=2)


def test_ranks_that_differ_raise_instead_of_hanging(two):
    assert two["differ"].startswith("CollectiveOrderError")
    assert f"collective 3 of the step is {GATHER} on SP rank 1, but no more" in two["differ"]


def test_a_compilation_compares_the_lists_once_and_records_it(two):
    (chosen,) = two["decision"]
    assert chosen.endswith("collectives, the same on all 2 ranks")


def test_ranks_with_inputs_of_different_lengths_say_so(two):
    assert "of torch.float64 [" in two["lengths"]
    assert "pass inputs of the same shapes" in two["lengths"]


def test_a_rank_that_compiles_alone_stops_waiting():
    with pytest.raises(RankError, match="did not compile this step within 1 s.*on another rank"):
        run_on_ranks(alone, num_ranks=2)
