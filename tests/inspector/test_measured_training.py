"""Steps of real trainings, measured: what is counted, what the trace then holds."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.profiler import profile

from autosp.verification_processes import run_on_ranks
from tests.support.command_line import CommandLine
from tests.support.measured_training import STEPS, train, train_on_ranks


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def rows(folder: Path, statement: str, *, rank: int = 0) -> list[Any]:
    connection = sqlite3.connect(folder / f"rank-{rank}.autosp")
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, group: None) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    train(folder, gpu="h100")
    return folder


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_on_ranks(partial(train_on_ranks, folder), num_ranks=2)
    return folder


def test_steps_are_timed_after_the_warm_up(measured: Path) -> None:
    steps = rows(measured, "SELECT * FROM measured_step ORDER BY step_index")
    assert [step[0] for step in steps] == [3, 4, 5]
    for _, step_ns, forward_ns, backward_ns, optimizer_ns in steps:
        assert min(forward_ns, backward_ns, optimizer_ns) > 0
        assert forward_ns + backward_ns + optimizer_ns <= step_ns
    ((num_steps, median_ns, notes),) = rows(
        measured, "SELECT steps, step_ns, notes FROM measurement"
    )
    assert num_steps == STEPS
    assert median_ns == sorted(step[1] for step in steps)[1]
    assert notes == "[]"


def test_every_node_of_both_graphs_has_a_time(measured: Path) -> None:
    both = rows(
        measured, "SELECT graph, estimated_ns, measured_ns, runs FROM estimated_and_measured"
    )
    assert {graph for graph, *_ in both} == {"forward", "backward"}
    assert all(estimated is not None and taken > 0 for _, estimated, taken, _ in both)
    assert {runs for *_, runs in both} == {1}
    ((total, half_ns),) = rows(
        measured,
        "SELECT sum(measured_ns), (SELECT forward_ns + backward_ns FROM measurement)"
        " FROM estimated_and_measured",
    )
    assert total > half_ns / 4, "the nodes are where a step spends its time"


def test_measuring_changes_nothing_and_finds_the_estimated_peak(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", measured_steps=0)
    assert torch.equal(plain, train(tmp_path / "measured"))
    assert rows(tmp_path / "plain", "SELECT count(*) FROM measurement") == [(0,)]
    ((estimated, measured_bytes, source),) = rows(
        tmp_path / "measured",
        "SELECT peak_live_bytes, peak_bytes, peak_source FROM estimate, measurement",
    )
    assert source == "profiler"
    assert measured_bytes == pytest.approx(estimated, rel=0.01)


def test_nothing_is_hooked_afterwards(tmp_path: Path) -> None:
    hooks = sys.modules[Optimizer.__module__]._global_optimizer_pre_hooks
    before = len(hooks)
    train(tmp_path / "short", num_steps=2)
    assert len(hooks) == before
    assert rows(tmp_path / "short", "SELECT count(*) FROM measurement") == [(0,)]


def test_micro_batches_are_one_step(tmp_path: Path) -> None:
    train(tmp_path, micro_batches=2)
    assert rows(tmp_path, "SELECT steps FROM measurement") == [(STEPS,)]
    assert rows(tmp_path, "SELECT DISTINCT runs FROM measured_node") == [(2,)]


def test_without_an_optimizer_a_step_ends_with_the_backward(tmp_path: Path) -> None:
    train(tmp_path, optimizer=None)
    assert rows(tmp_path, "SELECT steps, optimizer_ns FROM measurement") == [(STEPS, None)]


def test_a_training_that_ends_early_has_what_was_measured(tmp_path: Path) -> None:
    train(tmp_path, num_steps=4)
    ((steps, detail, peak, notes),) = rows(
        tmp_path, "SELECT steps, detail, peak_bytes, notes FROM measurement"
    )
    assert (steps, detail, peak) == (1, "steps", None)
    assert "ended before a step ran under the profiler" in notes


def test_steps_of_another_length_do_not_count(tmp_path: Path) -> None:
    train(tmp_path, lengths=(12, 16), num_steps=16)
    indices = [index for (index,) in rows(tmp_path, "SELECT step_index FROM measured_step")]
    assert len(indices) == STEPS
    assert len({index % 2 for index in indices}) == 1
    ((compilation,),) = rows(tmp_path, "SELECT compilation FROM measurement")
    assert rows(
        tmp_path, "SELECT DISTINCT compilation FROM estimated_and_measured WHERE runs IS NOT NULL"
    ) == [(compilation,)]


def test_the_profiler_of_a_script_is_left_alone(tmp_path: Path) -> None:
    profiler = profile()
    train(tmp_path, profiler=profiler)
    profiler.stop()
    assert any(event.name.startswith("aten::") for event in profiler.events())
    ((steps, notes),) = rows(tmp_path, "SELECT steps, notes FROM measurement")
    assert steps == STEPS
    assert "a profiler of the script's own was running" in notes


def test_each_rank_measures_its_collectives(on_ranks: Path, cli: CommandLine) -> None:
    for rank in range(2):
        found = rows(
            on_ranks,
            "SELECT count(*), count(measured_node.runs) FROM collective"
            " JOIN graph ON graph.id = collective.graph_id"
            " LEFT JOIN measured_node ON measured_node.graph_id = collective.graph_id"
            " AND measured_node.node_text = collective.node_text"
            " WHERE died_pass IS NULL AND graph.name IN ('forward', 'backward')",
            rank=rank,
        )
        assert found[0][0] == found[0][1] >= 8
    done = cli("check", on_ranks)
    assert "ranks-differ" not in done.out and done.status == 0


def test_views_show_estimated_beside_measured(measured: Path, cli: CommandLine) -> None:
    summary = cli("summary", measured)
    assert "Estimated | measured (median of 3 steps on cpu" in summary.out
    assert "Not comparable: measured on cpu" in summary.out and "estimated for h100" in summary.out
    figures = cli("summary", measured, "--json").json["measured"]
    ((step_ns, peak_bytes),) = rows(measured, "SELECT step_ns, peak_bytes FROM measurement")
    assert (figures["step_ns"], figures["peak_bytes"]) == (step_ns, peak_bytes)
    assert (figures["comparable"], figures["detail"]) == (False, "nodes")

    timeline = cli("timeline", measured, "--json").json
    events = [event for stream in timeline["streams"] for event in stream["events"]]
    unmatched = [event["node"] for event in events if event["measured_ns"] is None]
    assert unmatched == ["optimizer_step"]
    assert "have no measured time" in cli("timeline", measured).out
    assert timeline["measured"] == figures

    nodes = cli("nodes", measured, "--graph", "forward", "--json").json["nodes"]
    calls = [node for node in nodes if node["op"] == "call_function"]
    assert calls and all(node["measured_ns"] and node["estimated_ns"] is not None for node in calls)
    assert "Not comparable" in cli("nodes", measured, "--graph", "forward").out


def test_collectives_show_what_was_waited_for(on_ranks: Path, cli: CommandLine) -> None:
    collectives = cli("collectives", on_ranks, "--json").json["collectives"]
    assert collectives and all(row["measured_ns"] > 0 for row in collectives)
    own, waits = rows(
        on_ranks,
        "SELECT sum(measured_ns) FROM estimated_and_measured AS times JOIN nodes"
        " ON nodes.graph = times.graph AND nodes.name = times.node AND died_pass IS NULL"
        " WHERE role IN ('collective', 'wait') GROUP BY role ORDER BY role",
    )
    assert sum(row["measured_ns"] for row in collectives) == own[0] + waits[0]
    assert "to wait for it, for the other ranks too" in cli("collectives", on_ranks).out


def test_estimates_are_comparable_on_their_own_device(
    tmp_path: Path, measured: Path, cli: CommandLine
) -> None:
    copy = tmp_path / "rank-0.autosp"
    copy.write_bytes((measured / "rank-0.autosp").read_bytes())
    connection = sqlite3.connect(copy)
    connection.execute(
        "UPDATE measurement SET device_type = 'cuda', device = 'NVIDIA H100 80GB HBM3'"
    )
    connection.commit()
    connection.close()
    assert cli("summary", copy, "--json").json["measured"]["comparable"] is True
    assert "Not comparable" not in cli("summary", copy).out


def test_nothing_is_said_of_measurements_where_there_are_none(
    synthetic: Path, cli: CommandLine
) -> None:
    assert cli("summary", synthetic, "--json").json["measured"] is None
    for view in ("summary", "timeline", "collectives", "nodes"):
        assert "easured" not in cli(view, synthetic).out
