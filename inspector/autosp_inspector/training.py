"""Traces of real training runs: one file a rank, in the same schema as a dry run's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autosp.events import RunFinished
from autosp_inspector.recorder import TraceRecorder


@contextmanager
def recording(folder: str | Path, *, rank: int | None = None) -> Iterator[TraceRecorder]:
    """Record what is compiled inside; pass the result as ``recorder=`` on every rank.

        with autosp_inspector.recording("run/") as recorder:
            model = autosp.compile(model, mesh, recorder=recorder)
            train(model)

    Writes ``folder/rank-<rank>.autosp``; ``autosp-inspect folder`` opens all of them. A run
    that ends with an error is a failed run with that message, and can be read all the same.

    Args:
        folder: made if it is missing.
        rank: this process's rank; None: the environment variable ``RANK``, else 0.

    Raises:
        TraceError: the file cannot be written.
    """
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    Path(folder).mkdir(parents=True, exist_ok=True)
    started = time.monotonic_ns()
    with TraceRecorder(Path(folder) / f"rank-{rank}.autosp") as recorder:
        try:
            yield recorder
        except BaseException as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            recorder.record(RunFinished("failed", time.monotonic_ns() - started, lines[0]))
            raise
        recorder.record(RunFinished("ok", time.monotonic_ns() - started))
