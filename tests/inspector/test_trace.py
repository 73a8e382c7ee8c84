import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from autosp.errors import AutoSPError
from autosp_inspector.migrations import MIGRATIONS, Migration
from autosp_inspector.queries.nodes import list_nodes
from autosp_inspector.queries.passes import list_passes
from autosp_inspector.recorder import TraceRecorder
from autosp_inspector.schema import APPLICATION_ID, SCHEMA_VERSION, apply_migrations
from autosp_inspector.trace import TraceError, open_run, open_trace, upgrade_trace
from tests.support.snapshots import node, record_pass, run_started
from tests.support.synthetic import write_synthetic_trace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_synthetic_trace(tmp_path / "run.autosp")


def complaint(path: Path) -> str:
    """What opening ``path`` says, checked to be one line."""
    with pytest.raises(TraceError) as caught:
        open_trace(path)
    text = str(caught.value)
    assert "\n" not in text
    assert isinstance(caught.value, AutoSPError)
    return text


def read_all(path: Path) -> None:
    with open_trace(path) as trace:
        list_nodes(trace, graph="program")


def set_version(path: Path, version: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version:d}")
    connection.close()


def write_version_1(path: Path) -> None:
    """A trace as the first schema had it."""
    connection = sqlite3.connect(path, isolation_level=None)
    apply_migrations(connection, migrations=MIGRATIONS[:1])
    connection.execute(
        "INSERT INTO run VALUES (1, '0.0.1', '2.13', 'dry_run', 0, 1, '{}', 'm', '{}', 'mean',"
        " NULL, 'ok', '', 3)"
    )
    connection.close()


def test_the_header_comes_back(path: Path) -> None:
    with open_trace(path) as trace:
        run = trace.run
    assert (run.path, run.schema_version) == (str(path), SCHEMA_VERSION)
    assert (run.mode, run.rank, run.world_size) == ("dry_run", 0, 4)
    assert list(run.mesh.items()) == [("dp", 1), ("sp", 4)]
    assert run.config["seq"] == 4096
    assert run.hardware is not None and run.hardware["name"] == "a100-80gb"
    assert (run.status, run.duration_ns) == ("ok", 5_250_000_000)


def test_values_that_json_lacks_are_kept_as_text(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "run.autosp")
    recorder.record(run_started(config={"file": Path("a/b"), "lengths": (1, 2)}))
    with open_trace(recorder.path) as trace:
        assert trace.run.config == {"file": "a/b", "lengths": [1, 2]}
    recorder.abandon()


def test_a_trace_cannot_be_written_through_its_reader(path: Path) -> None:
    with open_trace(path) as trace, pytest.raises(TraceError, match="readonly"):
        trace.fetch("DELETE FROM node")


def test_a_trace_in_a_read_only_folder_opens(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with open_trace(path) as trace:
            assert len(list_passes(trace)) == 6
    finally:
        path.parent.chmod(0o755)


def test_a_path_with_odd_characters_opens(tmp_path: Path) -> None:
    odd = write_synthetic_trace(tmp_path / "50% a?b#c&mode=rwc 'é.autosp")
    with open_trace(odd) as trace:
        assert trace.run.path == str(odd)


def test_a_trace_can_be_read_from_several_threads(path: Path) -> None:
    counts: list[int] = []
    with open_trace(path) as trace:
        threads = [
            threading.Thread(target=lambda: counts.append(len(list_nodes(trace, graph="joint"))))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(counts) == 4
    assert len(set(counts)) == 1


def test_a_missing_file(tmp_path: Path) -> None:
    assert complaint(tmp_path / "no.autosp") == f"no such trace file: {tmp_path / 'no.autosp'}"
    assert "no such trace file" in complaint(tmp_path / "nul\0.autosp")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.autosp").touch()
    assert complaint(tmp_path / "empty.autosp").endswith("empty.autosp is empty")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text.autosp").write_text("hello " * 100)
    assert complaint(tmp_path / "text.autosp").endswith(
        "is not an AutoSP trace (not a SQLite database)"
    )
    (tmp_path / "short.autosp").write_bytes(b"SQLite format 3\0")
    assert "not a SQLite database" in complaint(tmp_path / "short.autosp")


def test_a_database_of_someone_else(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.autosp")
    connection.execute("CREATE TABLE run (id)")
    connection.close()
    assert complaint(tmp_path / "other.autosp").endswith("but not an AutoSP trace")


def test_a_newer_schema_names_its_version_and_the_way_out(path: Path) -> None:
    set_version(path, SCHEMA_VERSION + 7)
    text = complaint(path)
    assert (
        f"has trace schema {SCHEMA_VERSION + 7}; this version reads up to {SCHEMA_VERSION}" in text
    )
    assert "pip install --upgrade" in text
    with pytest.raises(TraceError, match="pip install --upgrade"):
        upgrade_trace(path)


def test_an_older_schema_is_upgraded_in_place(tmp_path: Path) -> None:
    path = tmp_path / "old.autosp"
    write_version_1(path)
    assert f"autosp-inspect upgrade {path}" in complaint(path)
    assert upgrade_trace(path) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["old.autosp"]
    with open_trace(path) as trace:
        assert (trace.run.schema_version, trace.run.autosp_version) == (SCHEMA_VERSION, "0.0.1")
        steps = trace.fetch("SELECT number FROM schema_migration ORDER BY number")
        assert steps == [(number,) for number in range(1, SCHEMA_VERSION + 1)]
        assert trace.fetch("SELECT count(*) FROM nodes") == [(0,)]


def test_a_current_trace_needs_no_upgrade(path: Path) -> None:
    before = path.read_bytes()
    assert upgrade_trace(path) == SCHEMA_VERSION
    assert path.read_bytes() == before


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "old.autosp"
    write_version_1(path)
    before = path.read_bytes()
    bad = Migration(number=2, name="bad", statements=("CREATE TABLE new (a)", "NONSENSE"))
    with pytest.raises(TraceError, match=r"^cannot upgrade [^\n]+syntax error$"):
        upgrade_trace(path, migrations=(MIGRATIONS[0], bad))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["old.autosp"]


@pytest.mark.parametrize("kept_fraction", [0.9, 0.5, 0.1])
def test_a_truncated_file(path: Path, kept_fraction: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept_fraction)])
    assert "is damaged: it is cut off after" in complaint(path)


def test_a_corrupt_schema_page(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[100:4000] = b"\xff" * 3900
    path.write_bytes(whole)
    assert "is damaged (" in complaint(path)


def test_corruption_deep_in_the_file_is_one_clear_line_too(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xa5" * (len(whole) - 8192))
    with pytest.raises(TraceError, match=r"^[^\n]*is damaged \([^\n]+\)$"):
        read_all(path)


def test_text_that_is_not_text_is_one_clear_line(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE run SET model = CAST(x'ff' AS TEXT)")
    connection.commit()
    connection.close()
    assert "is damaged (" in complaint(path)


def test_a_trace_whose_recording_stopped_at_once(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "run.autosp")
    assert "holds no run" in complaint(recorder.abandon())


def test_a_log_that_cannot_be_recovered_in_place_is_read_from_a_copy(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "run.autosp")
    recorder.record(run_started())
    record_pass(recorder, 0, [node("a")])
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for suffix in ("", "-wal"):
        shutil.copyfile(
            tmp_path / f"run.autosp.partial{suffix}", crashed / f"run.autosp.partial{suffix}"
        )
    recorder.abandon()
    (crashed / "run.autosp.partial-shm").mkdir()
    with open_trace(crashed / "run.autosp.partial") as trace:
        assert [row.name for row in list_nodes(trace, graph="program")] == ["a"]
        assert trace.run.path == str(crashed / "run.autosp.partial")


def test_a_view_of_a_hostile_file_cannot_run_unsafe_functions(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE VIEW hostile AS SELECT load_extension('evil')")
    connection.commit()
    connection.close()
    with open_trace(path) as trace, pytest.raises(TraceError, match="unsafe|not authorized"):
        trace.fetch("SELECT * FROM hostile")


def test_a_folder_is_a_run_sorted_by_the_rank_inside(tmp_path: Path) -> None:
    for name, rank in (("a", 2), ("b", 0), ("c", 1)):
        write_synthetic_trace(tmp_path / f"{name}.autosp", rank=rank)
    traces = open_run(tmp_path)
    assert [(trace.run.rank, trace.path.name) for trace in traces] == [
        (0, "b.autosp"),
        (1, "c.autosp"),
        (2, "a.autosp"),
    ]
    for trace in traces:
        trace.close()
    with open_trace(tmp_path) as trace:
        assert trace.run.rank == 0


def test_a_file_is_a_run_of_one(path: Path) -> None:
    (trace,) = open_run(path)
    assert trace.run.rank == 0
    trace.close()


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_synthetic_trace(tmp_path / f"{name}.autosp", rank=3)
    assert "two traces of rank 3: a.autosp and b.autosp" in complaint(tmp_path)


def test_a_folder_without_traces(tmp_path: Path) -> None:
    assert complaint(tmp_path) == f"no traces (*.autosp) in {tmp_path}"
    write_synthetic_trace(tmp_path / "run.autosp", finished=False)
    assert "run.autosp.partial is of an interrupted run" in complaint(tmp_path)


def test_the_file_carries_our_mark(path: Path) -> None:
    assert int.from_bytes(path.read_bytes()[68:72], "big") == APPLICATION_ID
