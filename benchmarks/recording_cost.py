"""CPU time of recording a compilation, by itself.

    python -m benchmarks.recording_cost --layers 32

Replays the events of a synthetic transformer through a ``TraceRecorder`` and prints the
CPU seconds per run and per thousand node records, to be compared with the CPU seconds
that the compilation itself takes.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autosp.events import Event, GraphSnapshot, ListRecorder
from autosp_inspector.recorder import TraceRecorder
from tests.support.synthetic import record_synthetic_run


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """The best of several runs; ``cpu_s`` counts user and system time of this process."""

    num_layers: int
    num_events: int
    num_node_records: int
    """Nodes of all snapshots together."""
    cpu_s: float
    cpu_ms_per_1000_nodes: float
    file_bytes: int


def measure(num_layers: int, *, repeats: int = 3) -> RecordingCost:
    events = _events(num_layers)
    num_nodes = sum(len(event.nodes) for event in events if isinstance(event, GraphSnapshot))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.autosp"
        cpu_s = min(_record(events, path) for _ in range(repeats))
        file_bytes = path.stat().st_size
    return RecordingCost(
        num_layers=num_layers,
        num_events=len(events),
        num_node_records=num_nodes,
        cpu_s=round(cpu_s, 4),
        cpu_ms_per_1000_nodes=round(1e6 * cpu_s / num_nodes, 2),
        file_bytes=file_bytes,
    )


def _events(num_layers: int) -> Sequence[Event]:
    recorder = ListRecorder()
    record_synthetic_run(recorder, num_layers=num_layers)
    return recorder.events


def _record(events: Sequence[Event], path: Path) -> float:
    gc.collect()
    start = time.process_time()
    recorder = TraceRecorder(path)
    for event in events:
        recorder.record(event)
    recorder.close()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of recording a compilation")
    parser.add_argument("--layers", type=int, default=32, help="layers of the model (32)")
    parser.add_argument("--repeats", type=int, default=3, help="runs; the best counts (3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    cost = measure(arguments.layers, repeats=arguments.repeats)
    if arguments.json:
        print(json.dumps(asdict(cost)))
        return
    print(
        f"{cost.num_layers} layers: {cost.num_events} events, {cost.num_node_records} node records"
    )
    print(
        f"recording: {cost.cpu_s:.3f} CPU s, {cost.cpu_ms_per_1000_nodes:.1f} ms per 1000 node"
        f" records, file {cost.file_bytes / 2**20:.1f} MiB"
    )


if __name__ == "__main__":
    main()
