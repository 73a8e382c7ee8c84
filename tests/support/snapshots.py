"""Short graphs for tests of the trace database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosp.events import (
    Event,
    GraphName,
    GraphSnapshot,
    NodeRecord,
    PassFinished,
    PassStarted,
    Recorder,
    RunFinished,
    RunStarted,
)


def node(name: str, **fields: Any) -> NodeRecord:
    """A compute node of the forward; ``fields`` replace the defaults."""
    defaults: dict[str, Any] = {
        "op": "call_function",
        "target": "aten.add.Tensor",
        "inputs": (),
        "role": "compute",
        "phase": "forward",
    }
    return NodeRecord(name=name, **(defaults | fields))


def run_started(*, rank: int = 0, config: Mapping[str, object] | None = None) -> RunStarted:
    return RunStarted(
        autosp_version="0.1.0",
        torch_version="2.13.0",
        mode="dry_run",
        rank=rank,
        world_size=4,
        mesh={"dp": 1, "sp": 4},
        model="model.py:build",
        config=config or {},
        gradient_convention="mean over the SP group",
    )


def record_pass(
    recorder: Recorder,
    index: int,
    nodes: Sequence[NodeRecord] | None,
    *,
    graph: GraphName = "program",
    compilation: int = 0,
    events: Sequence[Event] = (),
) -> None:
    """One pass that leaves ``nodes`` (None: it touches no graph)."""
    recorder.record(PassStarted(index, f"pass-{index}", "", compilation=compilation))
    for event in events:
        recorder.record(event)
    if nodes is not None:
        recorder.record(GraphSnapshot(index, graph, tuple(nodes)))
    recorder.record(PassFinished(index, 1_000))


def record_run(
    recorder: Recorder,
    snapshots: Sequence[Sequence[NodeRecord]],
    *,
    graph: GraphName = "program",
) -> None:
    """A whole run: one pass for each snapshot."""
    recorder.record(run_started())
    for index, nodes in enumerate(snapshots):
        record_pass(recorder, index, nodes, graph=graph)
    recorder.record(RunFinished("ok", 5))
