"""A recorded program in two pieces; the first runs three times in a step."""

from __future__ import annotations

from pathlib import Path

from autosp.events import (
    CollectiveRecord,
    Decision,
    GraphName,
    GraphSnapshot,
    PassFinished,
    PassStarted,
    RunFinished,
)
from autosp_inspector.recorder import TraceRecorder
from tests.support.snapshots import node, run_started

RUNS = (3, 1)
NUM_BYTES = 64


def write_pieces(path: Path) -> Path:
    """Piece 1 has the most nodes and an all-to-all each way, piece 2 one all-reduce."""
    recorder = TraceRecorder(path)
    recorder.record(run_started(config={"allow_breaks": True, "gpu": "h100"}))
    _record(recorder, 0, 0, "capture", "program", ["x", "attention", "rest"], None)
    _record(recorder, 1, 0, "partition", "forward", ["x", "move", "rest"], "all_to_all")
    _record(recorder, 2, 0, "split", "backward", ["x", "move_back"], "all_to_all")
    _record(recorder, 3, 1, "capture", "program", ["x", "loss"], None)
    _record(recorder, 4, 1, "partition", "forward", ["x", "sum"], "all_reduce")
    recorder.record(PassStarted(5, "pieces", "", {"runs": list(RUNS)}, 1))
    recorder.record(PassFinished(5, 1_000))
    recorder.record(RunFinished("ok", 5))
    return recorder.close()


def _record(
    recorder: TraceRecorder,
    index: int,
    compilation: int,
    name: str,
    graph: GraphName,
    names: list[str],
    kind: str | None,
) -> None:
    moved = [] if kind is None else [_collective(names[1], graph, kind)]
    recorder.record(PassStarted(index, name, "", compilation=compilation))
    recorder.record(
        Decision(index, "applied", "placement", "x", f"of piece {compilation + 1}", "a test")
    )
    recorder.record(GraphSnapshot(index, graph, tuple(map(node, names)), tuple(moved)))
    recorder.record(PassFinished(index, 1_000))


def _collective(name: str, graph: GraphName, kind: str) -> CollectiveRecord:
    return CollectiveRecord(
        node=name,
        kind=kind,  # type: ignore[arg-type]
        phase="backward" if graph == "backward" else "forward",
        module="",
        origin="implicit",
        axis="sp",
        group_size=4,
        bytes=NUM_BYTES,
        dtype="float32",
        cause="",
        reason="a test",
        source_placement="",
        target_placement="",
    )
