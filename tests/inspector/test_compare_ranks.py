"""``check`` of a run's folder: the first place where its ranks differ."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.synthetic import write_synthetic_trace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for rank in range(2):
        write_synthetic_trace(tmp_path / f"rank-{rank}.autosp", sp=2, rank=rank)
    return tmp_path


def doctor(run: Path, *statements: str) -> None:
    """Change the trace of rank 1."""
    connection = sqlite3.connect(run / "rank-1.autosp")
    for statement in statements:
        assert connection.execute(statement).rowcount != 0, statement
    connection.commit()
    connection.close()


def errors(cli: CommandLine, run: Path) -> list[dict[str, str]]:
    """The errors of a check; its status says whether there are any."""
    done = cli("check", run, "--json")
    found = [row for row in done.json["findings"] if row["severity"] == "error"]
    assert done.status == (1 if found else 0)
    return found


OF_SDPA = (
    "graph_id = (SELECT id FROM graph WHERE name = 'program') AND died_pass IS NULL AND "
    "name_text = (SELECT id FROM text WHERE value LIKE 'sdpa%' ORDER BY value LIMIT 1)"
)


def test_equal_ranks_are_fine(cli: CommandLine, run: Path) -> None:
    assert errors(cli, run) == []


def test_ranks_are_compared_only_when_none_is_chosen(cli: CommandLine, run: Path) -> None:
    doctor(run, 'UPDATE run SET mesh = \'{"dp": 2, "sp": 1}\'')
    assert len(errors(cli, run)) == 1
    assert cli("check", run, "--rank", "1").status == 0
    assert cli("check", run / "rank-1.autosp").status == 0


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("placement_text", "S(2:heads)"),
        ("target_text", "aten.other.default"),
        ("global_shape_text", "[7, 5]"),
        ("local_shape_text", "[7, 5]"),
        ("name_text", "sdpa_renamed"),
        ("module_text", "elsewhere"),
        ("dtype_text", "float64"),
    ],
)
def test_the_first_node_that_differs_is_named(
    cli: CommandLine, run: Path, column: str, text: str
) -> None:
    doctor(
        run,
        f"INSERT OR IGNORE INTO text (value) SELECT '{text}' UNION SELECT 'unused'",
        f"UPDATE node SET {column} = (SELECT id FROM text WHERE value = '{text}') WHERE {OF_SDPA}",
    )
    (error,) = errors(cli, run)
    assert error["code"] == "ranks-differ"
    assert "rank 1 differs from rank 0 in node " in error["message"]
    assert error["node"].startswith("sdpa")
    assert error["source"].startswith("samples/gpt.py:")


def test_the_order_of_nodes_counts(cli: CommandLine, run: Path) -> None:
    doctor(run, f"UPDATE node SET order_key = 1 << 60 WHERE {OF_SDPA}")
    (error,) = errors(cli, run)
    assert "in node " in error["message"]
    assert "sdpa" in error["message"].partition(" on rank 0")[0]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_the_first_collective_that_differs_is_named(
    cli: CommandLine, run: Path, phase: str
) -> None:
    doctor(
        run,
        "UPDATE collective SET kind = 'all_gather' WHERE id = (SELECT max(collective.id) FROM "
        "collective JOIN graph ON graph.id = graph_id WHERE died_pass IS NULL "
        f"AND kind = 'all_to_all' AND graph.name = '{phase}')",
    )
    (error,) = errors(cli, run)
    assert f"in {phase} collective " in error["message"]
    assert ": all_gather of " in error["message"]
    assert ", all_to_all of " in error["message"]


def test_a_collective_that_one_rank_lacks_is_named(cli: CommandLine, run: Path) -> None:
    doctor(
        run,
        "UPDATE collective SET died_pass = born_pass WHERE id = (SELECT min(collective.id) FROM "
        "collective JOIN graph ON graph.id = graph_id WHERE died_pass IS NULL "
        "AND graph.name = 'backward')",
    )
    (error,) = errors(cli, run)
    assert ": no more on rank 1, " in error["message"]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            'UPDATE run SET mesh = \'{"dp": 2, "sp": 1}\'',
            "the mesh: dp = 2 on rank 1, dp = 1 on rank 0",
        ),
        (
            "UPDATE run SET config = json_set(config, '$.partitioner', 'default')",
            "the configuration: partitioner = default on rank 1, partitioner = nothing on rank 0",
        ),
        (
            "UPDATE run SET torch_version = '2.12.0'",
            "the run: torch_version = 2.12.0 on rank 1, torch_version = 2.13.0 on rank 0",
        ),
    ],
)
def test_another_mesh_or_option_is_named(
    cli: CommandLine, run: Path, statement: str, words: str
) -> None:
    doctor(run, statement)
    (error,) = errors(cli, run)
    assert words in error["message"]


def test_times_of_start_may_differ(cli: CommandLine, run: Path) -> None:
    doctor(run, "UPDATE run SET config = json_set(config, '$.started_ns', 17)")
    assert errors(cli, run) == []


def test_a_rank_that_failed_says_so(cli: CommandLine, run: Path) -> None:
    doctor(
        run,
        "UPDATE run SET status = 'failed', message = 'out of memory'",
        "DELETE FROM collective",
    )
    (error,) = errors(cli, run)
    assert error["hint"] == "Rank 1 is failed: out of memory"


def test_a_rank_of_a_training_without_a_trace_is_a_warning(cli: CommandLine, run: Path) -> None:
    (run / "rank-1.autosp").unlink()
    assert "missing-rank" not in cli("check", run).out
    connection = sqlite3.connect(run / "rank-0.autosp")
    connection.execute("UPDATE run SET mode = 'training'")
    connection.commit()
    connection.close()
    done = cli("check", run)
    assert "warning missing-rank: no finished trace of rank 1 of 2" in done.out
    assert done.status == 0
