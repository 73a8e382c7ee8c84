"""Traces of real training runs: one file a rank, in the same schema as a dry run's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autosp.events import RunFinished
from autosp.hardware import find_device
from autosp.measurements import MeasureRequest
from autosp_inspector.recorder import TraceRecorder


@contextmanager
def recording(
    folder: str | Path,
    *,
    rank: int | None = None,
    measured_steps: int = 3,
    gpu: str | None = None,
    optimizer: str = "adamw",
    zero: int = 0,
) -> Iterator[TraceRecorder]:
    """Record what is compiled inside, and measure some steps of it.

    Pass the result as ``recorder=`` on every rank::

        with autosp_inspector.recording("run/") as recorder:
            model = autosp.compile(model, mesh, recorder=recorder)
            train(model)

    Writes ``folder/rank-<rank>.autosp``; ``autosp-inspect folder`` opens all of them. A run
    that ends with an error is a failed run with that message, and can be read all the same.

    After two steps without a compilation, ``measured_steps`` are timed, and one more runs under
    ``torch.profiler`` for the time of each node and the peak of memory. After that nothing is
    measured any more, and steps take the time they take without a recorder.

    Args:
        folder: made if it is missing.
        rank: this process's rank; None: the environment variable ``RANK``, else 0.
        measured_steps: steps to time; 0 measures nothing.
        gpu: a device of ``autosp-inspect hardware``, whose times are estimated beside those
            measured; None: memory alone is estimated, as of a run on a CPU.
        optimizer: ``adamw``, ``sgd`` or ``none``: what the estimate assumes.
        zero: ZeRO stage that the estimate assumes.

    Raises:
        TraceError: the file cannot be written.
        HardwareError: no such device.
    """
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    device = None if gpu is None else find_device(gpu)
    request = MeasureRequest(max(measured_steps, 0), device=device, optimizer=optimizer, zero=zero)
    Path(folder).mkdir(parents=True, exist_ok=True)
    started = time.monotonic_ns()
    with TraceRecorder(Path(folder) / f"rank-{rank}.autosp", measuring=request) as recorder:
        try:
            yield recorder
        except BaseException as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            recorder.finish(RunFinished("failed", time.monotonic_ns() - started, lines[0]))
            raise
        recorder.finish(RunFinished("ok", time.monotonic_ns() - started))
