"""The headless views on a recorded trace: text, JSON, CSV, Markdown, statuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from autosp.events import MEMORY_CATEGORIES, Finding
from autosp_inspector.recorder import TraceRecorder
from tests.support.command_line import CommandLine
from tests.support.synthetic import record_synthetic_run, write_synthetic_trace

VIEWS = (
    "summary",
    "check",
    "findings",
    "passes",
    "decisions",
    "nodes",
    "collectives",
    "attention",
    "memory",
    "timeline",
)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_prints_in_every_format(cli: CommandLine, synthetic: Path, view: str) -> None:
    text = cli(view, synthetic)
    assert (text.status, text.err) == (0, "")
    assert len(text.out.splitlines()) >= 3
    as_json = cli(view, synthetic, "--json")
    assert as_json.status == 0
    assert as_json.json["schema"] == "autosp-inspect/1"
    as_csv = cli(view, synthetic, "--csv")
    rows = list(csv.reader(io.StringIO(as_csv.out)))
    assert as_csv.status == 0
    assert len({len(row) for row in rows}) == 1
    markdown = cli(view, synthetic, "--md")
    assert markdown.status == 0
    assert "\x1b" not in text.out + markdown.out


def test_a_trace_as_the_only_argument_prints_the_summary(cli: CommandLine, synthetic: Path) -> None:
    assert cli(synthetic).out == cli("summary", synthetic).out
    assert cli(synthetic, "--no-tui", "--json").json == cli("summary", synthetic, "--json").json


def test_the_summary_answers_the_first_questions(cli: CommandLine, synthetic: Path) -> None:
    out = cli("summary", synthetic).out
    for line in (
        "mesh      sp 4  (4 ranks)",
        "Memory per rank (estimate): FITS,",
        "Time of one step (estimate)",
        "per layer, 2 of them: 4 in forward (4 MiB), 4 in backward (4 MiB)",
        "attention            2 of 2 sites sharded",
        "Not modelled",
        f"autosp-inspect collectives {synthetic}",
    ):
        assert line in out


def test_memory_has_the_documented_fields(cli: CommandLine, synthetic: Path) -> None:
    data = cli("memory", synthetic, "--json").json
    assert data.keys() == {"schema", "ranks", "capacity_bytes", "fits", "not_modelled"}
    (rank,) = data["ranks"]
    assert rank.keys() == {"rank", "peak", "categories"}
    assert rank["peak"].keys() == {
        "live_bytes",
        "allocated_bytes",
        "reserved_bytes",
        "device_bytes",
        "phase",
        "node",
        "module",
        "source",
    }
    assert set(rank["categories"]) == set(MEMORY_CATEGORIES)
    assert sum(rank["categories"].values()) == rank["peak"]["live_bytes"]
    assert rank["peak"]["device_bytes"] is None
    assert rank["peak"]["source"] == "samples/gpt.py:70"


def test_memory_shows_tensors_and_curve_when_asked(cli: CommandLine, synthetic: Path) -> None:
    (rank,) = cli("memory", synthetic, "--json", "--tensors", "--curve").json["ranks"]
    assert max(point["live_bytes"] for point in rank["curve"]) == rank["peak"]["live_bytes"]
    assert rank["live_at_peak"][0].keys() >= {"node", "category", "bytes", "created_by"}


def test_memory_lists_every_rank_of_a_folder(cli: CommandLine, tmp_path: Path) -> None:
    for rank in (1, 0):
        write_synthetic_trace(tmp_path / f"of{rank}.autosp", rank=rank)
    data = cli("memory", tmp_path, "--json").json
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1]
    assert cli("summary", tmp_path, "--rank", "1").status == 0
    missing = cli("summary", tmp_path, "--rank", "5")
    assert missing.status == 2
    assert "has no trace of rank 5. It has rank 0, 1" in missing.err


def test_collectives_have_the_documented_fields(cli: CommandLine, synthetic: Path) -> None:
    rows = cli("collectives", synthetic, "--json").json["collectives"]
    assert rows[0].keys() == {
        "name",
        "piece",
        "runs",
        "kind",
        "phase",
        "module",
        "origin",
        "axis",
        "group_size",
        "bytes",
        "start_ns",
        "duration_ns",
        "exposed_ns",
        "cause",
        "reason",
    }
    assert sum(row["kind"] == "all_to_all" for row in rows) == 16
    backward = cli("collectives", synthetic, "--phase", "backward", "--json").json["collectives"]
    assert {row["phase"] for row in backward} == {"backward"}
    assert 0 < len(backward) < len(rows)


def test_timeline_has_the_documented_fields(cli: CommandLine, synthetic: Path) -> None:
    data = cli("timeline", synthetic, "--json").json
    assert data.keys() == {
        "schema",
        "step_ns",
        "compute_ns",
        "communication_ns",
        "exposed_ns",
        "hidden_ns",
        "streams",
    }
    names = [stream["name"] for stream in data["streams"]]
    assert names == ["compute", "comm:sp"]
    communication = data["streams"][1]["events"]
    total = sum(event["duration_ns"] for event in communication)
    assert total == data["communication_ns"]


def test_passes_have_the_documented_fields(cli: CommandLine, synthetic: Path) -> None:
    rows = cli("passes", synthetic, "--json").json["passes"]
    assert rows[0].keys() == {
        "index",
        "name",
        "duration_ns",
        "nodes_added",
        "nodes_removed",
        "nodes_changed",
        "decisions",
    }
    assert [row["index"] for row in rows] == list(range(len(rows)))


def test_a_diff_takes_a_number_or_a_name(cli: CommandLine, synthetic: Path) -> None:
    by_name = cli("passes", synthetic, "--diff", "causal-mask", "--json")
    assert by_name.json == cli("passes", synthetic, "--diff", "2", "--json").json
    marks = {change["mark"] for change in by_name.json["changes"]}
    assert marks == {"-", "~"}
    unchanged = cli("passes", synthetic, "--diff", "0", "--graph", "backward")
    assert "The pass left this graph as it was." in unchanged.out


def test_findings_have_the_documented_fields(cli: CommandLine, synthetic: Path) -> None:
    data = cli("findings", synthetic, "--json").json
    assert data.keys() == {
        "schema",
        "findings",
        "sharded_flops_fraction",
        "sharded_saved_bytes_fraction",
    }
    assert data["findings"][0].keys() == {
        "code",
        "severity",
        "message",
        "node",
        "module",
        "source",
        "hint",
        "cost_bytes",
        "cost_ns",
    }


def test_check_fails_only_on_errors(cli: CommandLine, synthetic: Path, tmp_path: Path) -> None:
    assert cli("check", synthetic).status == 0  # it has a warning
    recorder = TraceRecorder(tmp_path / "bad.autosp")
    record_synthetic_run(recorder, finished=False)
    recorder.record(Finding("attention-not-sharded", "error", "no collectives around it"))
    bad = recorder.close()
    checked = cli("check", bad)
    assert checked.status == 1
    assert "error attention-not-sharded: no collectives around it" in checked.out
    assert checked.err == ""
    assert cli("findings", bad).status == 0


def test_nodes_can_be_narrowed(cli: CommandLine, synthetic: Path) -> None:
    every = cli("nodes", synthetic, "--json").json
    some = cli("nodes", synthetic, "--module", "layers.0", "--role", "collective", "--json").json
    assert 0 < some["total"] < every["total"]
    assert all(node["module"].startswith("layers.0") for node in some["nodes"])
    limited = cli("nodes", synthetic, "--limit", "3", "--json").json
    assert len(limited["nodes"]) == 3
    assert limited["total"] == every["total"]
    captured = cli("nodes", synthetic, "--pass", "capture", "--json").json
    assert all(node["placement"] is None for node in captured["nodes"])


def test_decisions_can_be_narrowed(cli: CommandLine, synthetic: Path) -> None:
    data = cli("decisions", synthetic, "--topic", "attention", "--json").json
    assert len(data["decisions"]) == 2
    assert data["decisions"][0]["alternatives"][0].keys() == {"name", "reason", "cost"}


def test_explain_tells_all_of_a_node_in_either_order(cli: CommandLine, synthetic: Path) -> None:
    explained = cli("explain", synthetic, "sdpa_0")
    assert explained.out == cli("explain", "sdpa_0", synthetic).out
    assert "samples/gpt.py:25  y = F.scaled_dot_product_attention" in explained.out
    assert "applied attention: ulysses" in explained.out
    data = cli("explain", synthetic, "sdpa_0", "--json").json
    assert data["node"]["name"] == "sdpa_0"
    assert [version["placement"] for version in data["history"]][0] is None
    assert {row["kind"] for row in data["collectives"]} == {"all_to_all"}


def test_sql_is_read_only(cli: CommandLine, synthetic: Path) -> None:
    result = cli("query", synthetic, "SELECT name FROM pass ORDER BY 1 LIMIT 1", "--json").json
    assert result["columns"] == ["name"]
    assert result["rows"] == [["capture"]]
    refused = cli("query", synthetic, "DELETE FROM pass")
    assert refused.status == 2
    assert "only SELECT is allowed" in refused.err


def test_names_from_a_trace_cannot_control_the_terminal(cli: CommandLine, tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "evil.autosp")
    record_synthetic_run(recorder, finished=False)
    recorder.record(Finding("x", "error", "red \x1b[31m bell \x07 \u202e back", hint="[bold]b[/]"))
    outcome = cli("findings", recorder.close())
    assert outcome.status == 0
    assert "\x1b" not in outcome.out and "\x07" not in outcome.out
    assert r"red \x1b[31m bell \x07 \u202e back" in outcome.out
    assert "[bold]b[/]" in outcome.out


def test_spreadsheets_do_not_run_what_a_trace_says(cli: CommandLine, tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "evil.autosp")
    record_synthetic_run(recorder, finished=False)
    recorder.record(Finding("x", "error", "=HYPERLINK(1)"))
    rows = list(csv.DictReader(io.StringIO(cli("findings", recorder.close(), "--csv").out)))
    assert rows[0]["message"] == "'=HYPERLINK(1)"


def test_a_failed_compilation_is_said_first(cli: CommandLine, tmp_path: Path) -> None:
    unfinished = write_synthetic_trace(tmp_path / "run.autosp", finished=False)
    outcome = cli("summary", unfinished)
    assert outcome.status == 0
    assert "THE RECORDING IS UNFINISHED" in outcome.out


def test_exports_write_files(cli: CommandLine, synthetic: Path, tmp_path: Path) -> None:
    path = tmp_path / "graph.dot"
    outcome = cli("export", synthetic, "--dot", path, "--module", "layers.0")
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err == f"wrote {path}\n"
    assert path.read_text().startswith("digraph")
    assert cli("export", synthetic, "--dot", path, "--quiet").err == ""


def test_hardware_gives_every_figure_with_its_source(cli: CommandLine) -> None:
    records = list(csv.DictReader(io.StringIO(cli("hardware", "--csv").out)))
    assert {record["device"] for record in records} >= {"a100-80gb", "h100", "mi300x"}
    assert all(record["source"] for record in records)
    only = json.loads(cli("hardware", "H100", "--json").out)
    assert [device["name"] for device in only["devices"]] == ["h100"]


def test_upgrading_a_current_trace_changes_nothing(cli: CommandLine, tmp_path: Path) -> None:
    trace = write_synthetic_trace(tmp_path / "run.autosp")
    before = trace.read_bytes()
    outcome = cli("upgrade", trace)
    assert outcome.status == 0
    assert "already schema" in outcome.err
    assert trace.read_bytes() == before
