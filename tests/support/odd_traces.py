"""Traces with a single pass whose names may be anything, to test what readers make of them."""

from __future__ import annotations

from pathlib import Path

from autosp.events import (
    Finding,
    GraphSnapshot,
    NodeRecord,
    PassFinished,
    PassStarted,
    RunFinished,
    RunStarted,
)
from autosp_inspector.recorder import TraceRecorder

MARKUP = "[bold red]x[/] [link='file:///etc/passwd']y[/link] [/nothing] [@click=app.quit]z[/]"
ESCAPES = "a\x1b]0;title\x07b\x1b[2Jc\u202ed"


def write_trace(
    path: Path,
    nodes: tuple[NodeRecord, ...],
    *,
    status: str = "ok",
    rank: int = 0,
    findings: tuple[Finding, ...] = (),
    idle_pass: bool = False,
) -> None:
    """One pass, one graph of these nodes; most other texts are hostile.

    ``idle_pass``: a second pass that leaves the graph alone.
    """
    recorder = TraceRecorder(path)
    recorder.record(
        RunStarted(
            autosp_version="0",
            torch_version="0",
            mode="dry_run",
            rank=rank,
            world_size=2,
            mesh={"dp": 1, "sp": 2},
            model=MARKUP,
            config={},
            gradient_convention="mean",
        )
    )
    recorder.record(PassStarted(0, "capture", MARKUP))
    recorder.record(GraphSnapshot(0, "program", nodes))
    for finding in findings:
        recorder.record(finding)
    recorder.record(PassFinished(0, 10))
    if idle_pass:
        recorder.record(PassStarted(1, "idle", "does nothing"))
        recorder.record(GraphSnapshot(1, "program", nodes))
        recorder.record(PassFinished(1, 10))
    recorder.record(RunFinished("failed" if status == "failed" else "ok", 10, ESCAPES))
    recorder.close()


def node(name: str, *, module: str = "") -> NodeRecord:
    """A node that computes something odd."""
    return NodeRecord(
        name=name,
        op="call_function",
        target=MARKUP,
        inputs=(),
        role="compute",
        phase="forward",
        module=module,
        reason=ESCAPES,
    )
