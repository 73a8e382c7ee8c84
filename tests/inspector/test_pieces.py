"""Programs that were compiled in pieces: totals count all, lists show one and say which."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosp_inspector.queries.pieces import list_pieces
from autosp_inspector.trace import open_trace
from tests.support.command_line import CommandLine
from tests.support.pieces import NUM_BYTES, write_pieces


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pieces(tmp_path_factory.mktemp("pieces") / "run.autosp")


def test_a_program_in_one_piece_has_none(synthetic: Path) -> None:
    with open_trace(synthetic) as trace:
        assert list_pieces(trace) == ()


def test_totals_count_every_run_of_every_piece(cli: CommandLine, pieces: Path) -> None:
    data = cli("summary", pieces, "--json").json
    totals = {(row["phase"], row["kind"]): row for row in data["collectives"]}
    assert totals["forward", "all_to_all"]["count"] == 3
    assert totals["backward", "all_to_all"]["bytes"] == 3 * NUM_BYTES
    assert totals["forward", "all_reduce"]["count"] == 1
    assert [piece["runs"] for piece in data["pieces"]] == [3, 1]
    assert "2; piece 1 runs 3 times in a step" in cli("summary", pieces).out


def test_collectives_are_those_of_all_pieces_or_of_one(cli: CommandLine, pieces: Path) -> None:
    rows = cli("collectives", pieces, "--json").json["collectives"]
    assert [(row["name"], row["piece"], row["runs"]) for row in rows] == [
        ("move", 1, 3),
        ("sum", 2, 1),
        ("move_back", 1, 3),
    ]
    text = cli("collectives", pieces).out
    assert "7 collectives of one step, in several pieces" in text
    (row,) = cli("collectives", pieces, "--piece", "2", "--json").json["collectives"]
    assert row["name"] == "sum"


def test_nodes_are_those_of_the_largest_piece_or_of_the_chosen_one(
    cli: CommandLine, pieces: Path
) -> None:
    assert "program, piece 1 of 2" in cli("nodes", pieces).out
    data = cli("nodes", pieces, "--piece", "2", "--json").json
    assert [node["name"] for node in data["nodes"]] == ["x", "loss"]
    assert data["piece"] == "piece 2 of 2"
    by_pass = cli("nodes", pieces, "--pass", "3", "--json").json
    assert (by_pass["piece"], by_pass["total"]) == ("piece 2 of 2", 2)
    outcome = cli("nodes", pieces, "--piece", "3")
    assert outcome.status == 2
    assert "there is no piece 3. The program is in 2 pieces" in outcome.err


def test_explain_finds_a_node_in_any_piece_and_says_in_which(
    cli: CommandLine, pieces: Path
) -> None:
    assert cli("explain", pieces, "loss", "--json").json["piece"] == "piece 2 of 2"
    first = cli("explain", pieces, "x", "--json").json
    assert first["piece"] == "piece 1 of 2"
    assert {row["chosen"] for row in first["decisions"]} == {"of piece 1"}
    second = cli("explain", pieces, "x", "--piece", "2", "--json").json
    assert {row["chosen"] for row in second["decisions"]} == {"of piece 2"}
    assert cli("explain", pieces, "loss", "--piece", "1").status == 2


def test_passes_of_one_piece_and_what_one_changed(cli: CommandLine, pieces: Path) -> None:
    passes = cli("passes", pieces, "--piece", "1", "--json").json["passes"]
    assert [row["name"] for row in passes] == ["capture", "partition", "split"]
    assert "program, piece 2 of 2" in cli("passes", pieces, "--diff", "3").out
    assert "program, piece 1 of 2" in cli("passes", pieces, "--diff", "capture").out


@pytest.mark.parametrize("view", ["timeline", "memory"])
def test_what_has_no_estimate_says_that_the_pieces_are_why(
    cli: CommandLine, pieces: Path, view: str
) -> None:
    text = " ".join(cli(view, pieces).out.split())
    assert "not estimated: the program is compiled in 2 pieces" in text
    assert "--gpu" not in text


def test_a_drawing_says_which_piece_it_is_of(
    cli: CommandLine, pieces: Path, tmp_path: Path
) -> None:
    drawing = tmp_path / "graph.dot"
    assert cli("export", pieces, "--dot", drawing, "--piece", "2").status == 0
    assert "piece 2 of 2" in drawing.read_text()
