"""The one place that holds traces open.

One thread reads them all: views hand it a function of the trace and receive a frozen
snapshot, so the interface's own loop never waits for the disk, and reads that nobody
waits for any more are dropped before they start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from autosp_inspector.trace import Trace, TraceError, open_run, open_trace

Snapshot = TypeVar("Snapshot")


class Session:
    """Traces of one run, read on a thread of their own.

    Args:
        paths: trace files, or folders of them (one file a rank).
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trace")
        self._traces: tuple[Trace, ...] = ()
        self._selected = 0

    async def open(self) -> None:
        """Open every trace.

        Raises:
            TraceError: a path that is missing, or not a trace this version can read.
        """
        self._traces = await self._call(lambda: open_all(self._paths))

    async def read(self, query: Callable[[Trace], Snapshot]) -> Snapshot:
        """The result of ``query`` on the selected trace, computed on the trace thread."""
        trace = self._traces[self._selected]
        return await self._call(lambda: query(trace))

    async def _call(self, function: Callable[[], Snapshot]) -> Snapshot:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    @property
    def num_traces(self) -> int:
        return len(self._traces)

    @property
    def label(self) -> str:
        """Model and rank of the selected trace."""
        if not self._traces:
            return ""
        run = self._traces[self._selected].run
        return f"{run.model} · rank {run.rank} of {run.world_size}"

    @property
    def selected(self) -> int:
        """Index of the trace that :meth:`read` uses."""
        return self._selected

    def select(self, index: int) -> None:
        """Use another trace from now on."""
        self._selected = index % max(1, len(self._traces))

    def close(self) -> None:
        """Close the traces once the query in progress, if any, is done."""
        traces, self._traces = self._traces, ()
        for trace in traces:
            self._thread.submit(trace.close)
        self._thread.shutdown(wait=False)


def open_all(paths: Sequence[Path]) -> tuple[Trace, ...]:
    """The traces of all paths; a folder counts as the files in it.

    Raises:
        TraceError: see :func:`autosp_inspector.trace.open_trace`.
    """
    traces: list[Trace] = []
    try:
        for path in paths:
            traces += open_run(path) if path.is_dir() else (open_trace(path),)
    except TraceError:
        for trace in traces:
            trace.close()
        raise
    if not traces:
        raise TraceError("no trace to show: give a trace file or a folder of trace files")
    return tuple(traces)
