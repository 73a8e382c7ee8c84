"""CPU time and memory of a dry run against torch's own capture and joint graph.

    python benchmarks/dry_run_cost.py [--sp 8] [--seq 131072] [--layers 32] [--rounds 3]

The same model, one after the other in one process: dynamo's capture and AOTAutograd's
joint graph (what anyone pays who compiles the model), then the whole dry run with its
passes, partition and estimates, recorded to a trace file. Prints the ratio of their process
CPU times (medians of rounds), the share of the recording, and the peak resident memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition
from torch._guards import TracingContext, tracing

from autosp.dry_run import DryRunRequest, dry_run, dynamo_graph
from autosp.events import Event
from autosp.hardware import find_device
from autosp.mesh import Mesh
from autosp.pipeline import PassContext
from autosp_inspector.recorder import TraceRecorder
from autosp_inspector.target.fake_build import fake_build, new_fake_mode

SAMPLES = Path(__file__).resolve().parent.parent / "samples"


class _JointDone(Exception):
    pass


def cpu_seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def torch_alone(request: DryRunRequest) -> None:
    """Dynamo's capture and AOTAutograd's joint graph of the unchanged model."""
    graph = dynamo_graph(request.model, request.args, request.kwargs, request.fake_mode)
    fakes = [n.meta["example_value"] for n in graph.graph.find_nodes(op="placeholder")]
    fake_mode = next(f.fake_mode for f in fakes if isinstance(f, torch.Tensor))

    def stop(*_: Any, **__: Any) -> Any:
        raise _JointDone

    def nothing(module: Any, inputs: Sequence[Any]) -> Any:
        raise AssertionError(module, inputs)

    try:
        with tracing(TracingContext(fake_mode)), fake_mode:
            aot_module_simplified(
                graph, fakes, fw_compiler=nothing, bw_compiler=nothing, partition_fn=stop
            )
    except _JointDone:
        return
    raise AssertionError(default_partition)


def request_for(sp: int, seq: int, layers: int) -> DryRunRequest:
    sys.path.insert(0, str(SAMPLES))
    import hf_llama

    fake_mode = new_fake_mode()
    with fake_build(fake_mode):
        model = hf_llama.build(num_hidden_layers=layers).train()
        ids = torch.randint(0, 100, (1, seq))
        labels = ids.clone()
    return DryRunRequest(
        model=model,
        args=(),
        kwargs={"input_ids": ids, "labels": labels},
        fake_mode=fake_mode,
        mesh=Mesh(sp=sp),
        model_name="samples/hf_llama.py:build",
        options={"seq": seq, "batch": 1, "sp": sp},
        device=find_device("a100-80gb"),
    )


class MeteredRecorder:
    """Passes events on to a recorder and counts the CPU seconds that takes."""

    wants_graphs = True

    def __init__(self, inner: TraceRecorder) -> None:
        self._inner = inner
        self.seconds = 0.0

    def record(self, event: Event, /) -> None:
        started = time.process_time()
        self._inner.record(event)
        self.seconds += time.process_time() - started

    def close(self) -> None:
        started = time.process_time()
        self._inner.close()
        self.seconds += time.process_time() - started


@contextmanager
def metered_snapshots(meter: MeteredRecorder) -> Iterator[None]:
    """Also count what it takes to describe graphs for the recorder."""
    original = PassContext.snapshot

    def snapshot(self: PassContext, build: Callable[[], Any]) -> None:
        started, before = time.process_time(), meter.seconds
        original(self, build)
        inside = meter.seconds - before
        meter.seconds += time.process_time() - started - inside

    PassContext.snapshot = snapshot  # type: ignore[method-assign]
    try:
        yield
    finally:
        PassContext.snapshot = original  # type: ignore[method-assign]


def measure(sp: int, seq: int, layers: int) -> tuple[float, float, float]:
    """CPU seconds of torch alone, of a recorded dry run, and of its recording."""
    alone = cpu_seconds(partial(torch_alone, request_for(sp, seq, layers)))
    request = request_for(sp, seq, layers)
    with tempfile.TemporaryDirectory() as folder:
        recorder = MeteredRecorder(TraceRecorder(Path(folder) / "run.autosp"))

        def recorded_run() -> None:
            with metered_snapshots(recorder):
                dry_run(request, recorder=recorder)
            recorder.close()

        whole = cpu_seconds(recorded_run)
    return alone, whole, recorder.seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sp", type=int, default=8)
    parser.add_argument("--seq", type=int, default=131072)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="the median of these is printed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cpu_seconds(lambda: torch_alone(request_for(2, 256, 1)))  # imports and caches
    cpu_seconds(lambda: dry_run(request_for(2, 256, 1)))

    rounds = [measure(options.sp, options.seq, options.layers) for _ in range(options.rounds)]
    alone, whole, recording = (median(column) for column in zip(*rounds, strict=True))
    ratio = median(run / base for base, run, _ in rounds)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures = {
        "torch_capture_and_joint_cpu_s": round(alone, 2),
        "recorded_dry_run_cpu_s": round(whole, 2),
        "dry_run_over_torch": round(ratio, 3),
        "recording_cpu_s": round(recording, 2),
        "recording_share": round(recording / (whole - recording), 4),
        "peak_resident_gib": round(resident, 2),
    }
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
