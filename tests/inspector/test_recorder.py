import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autosp.events import (
    CollectiveRecord,
    GraphSnapshot,
    NodeCost,
    PassFinished,
    PassStarted,
    RunFinished,
)
from autosp_inspector.queries.collectives import list_collectives
from autosp_inspector.queries.costs import node_cost
from autosp_inspector.queries.nodes import list_nodes
from autosp_inspector.queries.passes import list_passes
from autosp_inspector.recorder import TraceRecorder
from autosp_inspector.trace import Trace, TraceError, open_trace
from tests.support.snapshots import node, record_pass, record_run, run_started
from tests.support.synthetic import write_synthetic_trace

ROOT = Path(__file__).parents[2]


def names(trace: Trace, pass_index: int | None = None) -> list[str]:
    return [row.name for row in list_nodes(trace, graph="program", pass_index=pass_index)]


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with the project importable."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_a_finished_trace_is_one_file_without_a_log(tmp_path: Path) -> None:
    path = write_synthetic_trace(tmp_path / "run.autosp")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.autosp"]
    header = path.read_bytes()[:100]
    assert header[18:20] == b"\x01\x01", "file format of a rollback journal, not of a log"


def test_opening_a_trace_leaves_its_folder_alone(tmp_path: Path) -> None:
    path = write_synthetic_trace(tmp_path / "run.autosp")
    before = path.read_bytes()
    with open_trace(path) as trace:
        assert names(trace)
        assert [entry.name for entry in tmp_path.iterdir()] == ["run.autosp"]
    assert path.read_bytes() == before


def test_the_same_events_give_the_same_bytes(tmp_path: Path) -> None:
    first = write_synthetic_trace(tmp_path / "a.autosp")
    second = write_synthetic_trace(tmp_path / "b.autosp")
    assert first.read_bytes() == second.read_bytes()


def test_while_recording_the_file_is_called_partial(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "run.autosp")
    assert recorder.path.name == "run.autosp.partial"
    assert not (tmp_path / "run.autosp").exists()
    record_run(recorder, [[node("a")]])
    assert recorder.close() == tmp_path / "run.autosp"
    assert recorder.path == recorder.close()


def test_a_run_without_an_end_stays_partial_and_readable(tmp_path: Path) -> None:
    path = write_synthetic_trace(tmp_path / "run.autosp", finished=False)
    assert path.name == "run.autosp.partial"
    with open_trace(path) as trace:
        assert trace.run.status == "unfinished"
        assert len(list_passes(trace)) == 6


def test_an_unfinished_run_does_not_replace_a_good_trace(tmp_path: Path) -> None:
    path = write_synthetic_trace(tmp_path / "run.autosp")
    before = path.read_bytes()
    write_synthetic_trace(path, finished=False)
    assert path.read_bytes() == before


def test_a_finished_run_replaces_an_older_trace(tmp_path: Path) -> None:
    path = write_synthetic_trace(tmp_path / "run.autosp", sp=2)
    write_synthetic_trace(path, sp=4)
    with open_trace(path) as trace:
        assert trace.run.mesh == {"dp": 1, "sp": 4}


def test_a_stale_partial_file_is_discarded(tmp_path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        (tmp_path / f"run.autosp.partial{suffix}").write_bytes(b"left by a crash")
    path = write_synthetic_trace(tmp_path / "run.autosp")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_failed_run_is_published_with_its_message(tmp_path: Path) -> None:
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        recorder.record(run_started())
        recorder.record(RunFinished("failed", 7, "no attention found"))
    with open_trace(tmp_path / "run.autosp") as trace:
        assert (trace.run.status, trace.run.message) == ("failed", "no attention found")
        assert trace.run.duration_ns == 7


def test_an_exception_leaves_the_partial_file(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="compiler"),
        TraceRecorder(tmp_path / "run.autosp") as recorder,
    ):
        recorder.record(run_started())
        record_pass(recorder, 0, [node("a")])
        recorder.record(PassStarted(1, "shard", ""))
        recorder.record(GraphSnapshot(1, "program", (node("a"), node("b"))))
        raise RuntimeError("compiler")
    with open_trace(tmp_path / "run.autosp.partial") as trace:
        assert [row.status for row in list_passes(trace)] == ["ok", "unfinished"]
        assert list_passes(trace)[1].duration_ns is None
        assert names(trace) == ["a", "b"]


def test_a_killed_process_leaves_a_trace_up_to_the_last_finished_pass(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from autosp.events import PassStarted
from autosp_inspector.recorder import TraceRecorder
from tests.support.snapshots import node, record_pass, run_started
recorder = TraceRecorder(Path(sys.argv[1]))
recorder.record(run_started())
record_pass(recorder, 0, [node("a")])
record_pass(recorder, 1, [node("a"), node("b")])
recorder.record(PassStarted(2, "never finished", ""))
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = run_script(script, str(tmp_path / "run.autosp"))
    assert result.returncode == -signal.SIGKILL
    with open_trace(tmp_path / "run.autosp.partial") as trace:
        assert trace.run.status == "unfinished"
        assert [row.index for row in list_passes(trace)] == [0, 1]
        assert names(trace) == ["a", "b"]


def test_a_trace_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "run.autosp")
    recorder.record(run_started())
    record_pass(recorder, 0, [node("a")])
    with open_trace(recorder.path) as trace:
        assert names(trace) == ["a"]
        recorder.record(RunFinished("ok", 1))
        assert recorder.close() == tmp_path / "run.autosp"
        assert names(trace) == ["a"]
    with open_trace(tmp_path / "run.autosp") as trace:
        assert trace.run.status == "ok"
    assert (tmp_path / "run.autosp").read_bytes()[18:20] == b"\x01\x01"
    assert not (tmp_path / "run.autosp.partial").exists()


def test_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"folder .*nowhere does not exist. Create it first$"):
        TraceRecorder(tmp_path / "nowhere" / "run.autosp")


def test_a_folder_as_target_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"it is a folder. Name a file in it$"):
        TraceRecorder(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_clear_line() -> None:
    with pytest.raises(TraceError, match=r"^cannot write the trace /proc/run.autosp: [^\n]+$"):
        TraceRecorder(Path("/proc/run.autosp"))


def test_two_writers_of_one_trace_are_refused(tmp_path: Path) -> None:
    first = TraceRecorder(tmp_path / "run.autosp")
    with pytest.raises(TraceError, match="another process is writing it"):
        TraceRecorder(tmp_path / "run.autosp")
    record_run(first, [[node("a")]])
    assert first.close().name == "run.autosp"


def test_a_full_disk_is_reported_once_and_keeps_what_was_written(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from pathlib import Path
from autosp.events import RunFinished
from autosp_inspector.errors import TraceError
from autosp_inspector.recorder import TraceRecorder
from tests.support.snapshots import node, record_pass, run_started
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder = TraceRecorder(Path(sys.argv[1]))
recorder.record(run_started())
record_pass(recorder, 0, [node("a")])
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
try:
    record_pass(recorder, 1, [node(f"n{i}", reason="x" * 200 + str(i)) for i in range(9000)])
except TraceError as error:
    print("recording:", error)
recorder.record(RunFinished("ok", 1))
try:
    recorder.close()
except TraceError as error:
    print("closing:", error)
"""
    result = run_script(script, str(tmp_path / "run.autosp"))
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first.startswith(f"recording: cannot write the trace {tmp_path / 'run.autosp'}: ")
    assert second.removeprefix("closing: ") == first.removeprefix("recording: ")
    assert not (tmp_path / "run.autosp").exists()
    with open_trace(tmp_path / "run.autosp.partial") as trace:
        assert names(trace) == ["a"]


def test_a_number_beyond_64_bits_is_one_clear_line(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "run.autosp")
    recorder.record(run_started())
    with pytest.raises(TraceError, match="does not fit into 64 bits"):
        record_pass(recorder, 0, [node("a", local_bytes=2**70)])
    recorder.record(RunFinished("ok", 1))
    with pytest.raises(TraceError, match="does not fit into 64 bits"):
        recorder.close()


def test_two_nodes_of_one_name_are_refused(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "run.autosp")
    recorder.record(run_started())
    with pytest.raises(TraceError, match="two nodes of a graph have the same name"):
        record_pass(recorder, 0, [node("a"), node("a")])


def test_a_snapshot_outside_its_pass_is_a_mistake(tmp_path: Path) -> None:
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        with pytest.raises(ValueError, match="outside of that pass"):
            recorder.record(GraphSnapshot(3, "program", (node("a"),)))
        with pytest.raises(ValueError, match="is not open"):
            recorder.record(PassFinished(3, 1))


def test_the_last_snapshot_of_a_pass_counts(tmp_path: Path) -> None:
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        recorder.record(run_started())
        early = GraphSnapshot(0, "program", (node("early"),))
        record_pass(recorder, 0, [node("late")], events=[early])
        recorder.record(RunFinished("ok", 1))
    with open_trace(tmp_path / "run.autosp") as trace:
        assert names(trace) == ["late"]


def test_only_differences_are_stored(tmp_path: Path) -> None:
    base = [node(f"n{i}") for i in range(50)]
    inserted = [*base[:25], node("new"), *base[25:]]
    changed = [node("n0", placement="R"), *inserted[1:]]
    moved = [*changed[1:], changed[0]]
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        record_run(recorder, [base, inserted, changed, moved])
    connection = sqlite3.connect(tmp_path / "run.autosp")
    assert connection.execute("SELECT count(*) FROM node").fetchone() == (52,)
    assert connection.execute("SELECT count(*) FROM move").fetchone() == (1,)
    counts = connection.execute(
        "SELECT nodes, added, removed, changed, moved FROM pass_graph ORDER BY pass_index"
    ).fetchall()
    connection.close()
    assert counts == [(50, 50, 0, 0, 0), (51, 1, 0, 0, 0), (51, 0, 0, 1, 0), (51, 0, 0, 0, 1)]


def test_a_new_compilation_starts_new_graphs(tmp_path: Path) -> None:
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        recorder.record(run_started())
        record_pass(recorder, 0, [node("a"), node("b")])
        record_pass(recorder, 1, [node("a")])
        record_pass(recorder, 2, [node("a"), node("c")], compilation=1)
        recorder.record(NodeCost("program", "a", 1, 2, 3, "measured"))
        recorder.record(RunFinished("ok", 1))
    with open_trace(tmp_path / "run.autosp") as trace:
        assert [names(trace, index) for index in (0, 1, 2)] == [["a", "b"], ["a"], ["a", "c"]]
        assert names(trace) == ["a", "c"]
        assert [row.nodes_added for row in list_passes(trace)] == [2, 0, 2]
        assert [row.nodes_removed for row in list_passes(trace)] == [0, 1, 0]
        cost = node_cost(trace, "a", "program")
        assert cost is not None and cost.duration_ns == 3


def test_collectives_follow_their_graph(tmp_path: Path) -> None:
    def collective(name: str, size: int) -> CollectiveRecord:
        return CollectiveRecord(
            node=name, kind="all_to_all", phase="forward", origin="implicit", axis="sp",
            group_size=4, bytes=size, dtype="bfloat16", module="m", cause="a", reason="why",
        )  # fmt: skip

    nodes = (node("x"), node("y"), node("z"))
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        recorder.record(run_started())
        first = (collective("x", 8), collective("y", 8))
        second = (collective("z", 8), collective("y", 4))
        for index, collectives in enumerate((first, second)):
            recorder.record(PassStarted(index, "p", ""))
            recorder.record(GraphSnapshot(index, "program", nodes, collectives))
            recorder.record(PassFinished(index, 1))
        recorder.record(RunFinished("ok", 1))
    with open_trace(tmp_path / "run.autosp") as trace:
        assert [(row.name, row.bytes) for row in list_collectives(trace)] == [("y", 4), ("z", 8)]


def test_events_may_come_from_other_threads(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "run.autosp")
    recorder.record(run_started())
    thread = threading.Thread(target=lambda: record_pass(recorder, 0, [node("a")]))
    thread.start()
    thread.join()
    recorder.record(RunFinished("ok", 1))
    with open_trace(recorder.close()) as trace:
        assert names(trace) == ["a"]


def test_many_estimates_are_written_before_the_end(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "run.autosp")
    recorder.record(run_started())
    for index in range(20_000):
        recorder.record(NodeCost("forward", f"n{index}", index, None, None, "counted"))
    with open_trace(recorder.path) as trace:
        cost = node_cost(trace, "n19999", "forward")
    recorder.abandon()
    assert cost is not None and cost.flops == 19_999
    assert os.listdir(tmp_path) == ["run.autosp.partial"]


def test_a_closed_recorder_takes_nothing(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "run.autosp")
    record_run(recorder, [[node("a")]])
    recorder.close()
    with pytest.raises(ValueError, match="closed"):
        recorder.record(run_started())
