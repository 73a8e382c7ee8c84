"""Events in, rows out: the observer that writes a trace database."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from autosp.events import (
    Event,
    GraphSnapshot,
    PassFinished,
    PassStarted,
    RunFinished,
    RunStarted,
)
from autosp.measurements import MeasureRequest
from autosp_inspector.errors import TraceError
from autosp_inspector.event_writer import EventWriter
from autosp_inspector.graph_writer import GraphWriter
from autosp_inspector.interning import Interning
from autosp_inspector.partial_file import PartialFile, explain

_FLUSH_EVENTS = 20_000
"""Estimate events kept in memory before they are written; bounds the memory used."""


class TraceRecorder:
    """Writes every event to ``path``; one transaction per pass, the difference per graph.

    While it is written the trace is ``<path>.partial``. :meth:`close` renames it if the
    run finished (well or badly); a run that never said so stays under the partial name,
    readable up to its last pass, and leaves an older trace in place.

    Safe to call from several threads.

    Raises:
        TraceError: the file cannot be written. After the first failure further events
            are ignored; :meth:`close` raises it again.
    """

    wants_graphs = True

    def __init__(self, path: Path, *, measuring: MeasureRequest | None = None) -> None:
        self.measuring = measuring
        """What a training has to measure for this trace; None: nothing."""
        self._before_end: list[Callable[[], None]] = []
        self._file = PartialFile(Path(path))
        self._connection = self._file.connection
        self._lock = threading.RLock()
        self._interning = Interning()
        self._graphs = GraphWriter(self._connection, self._interning)
        self._rows = EventWriter(self._connection, self._interning, self._graphs)
        self._failure: TraceError | None = None
        self._closed_path: Path | None = None
        self._finished = False
        self._open_pass: PassStarted | None = None
        self._snapshots: dict[str, GraphSnapshot] = {}
        self._events: list[Event] = []

    @property
    def path(self) -> Path:
        """Where the trace is at the moment."""
        return self._closed_path or self._file.path

    def __enter__(self) -> TraceRecorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or self._finished:
            self.close()
        else:
            self.abandon()

    def record(self, event: Event, /) -> None:
        """Take one event; a graph is compared and written when its pass finishes."""
        with self._lock:
            if self._closed_path is not None:
                raise ValueError("the recorder is closed")
            if self._failure is None:
                self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case GraphSnapshot():
                self._keep_snapshot(event)
            case PassStarted():
                self._write_waiting()
                self._open_pass = event
                self._graphs.compilation = event.compilation
            case PassFinished():
                self._finish_pass(event)
            case RunStarted():
                self._transaction(lambda: self._rows.write_run(event))
            case RunFinished():
                self._write_waiting()
                self._transaction(lambda: self._rows.write_finish(event))
                self._finished = True
            case _:
                self._events.append(event)
                if len(self._events) >= _FLUSH_EVENTS and self._open_pass is None:
                    self._write_waiting()

    def before_end(self, action: Callable[[], None], /) -> None:
        """Call ``action`` before the run is said to have finished; it may record more."""
        self._before_end.append(action)

    def finish(self, event: RunFinished) -> None:
        """The run has ended: what waits for that is recorded first."""
        while self._before_end:
            self._before_end.pop()()
        self.record(event)

    def close(self) -> Path:
        """Complete the file and say where it is; harmless when called again."""
        with self._lock:
            if self._failure is not None:
                self.abandon()
                raise self._failure
            if self._closed_path is None:
                if not self._finished:
                    return self.abandon()
                self._write_waiting()
                self._publish()
            return self.path

    def abandon(self) -> Path:
        """Write what is known and leave it under the partial name."""
        with self._lock:
            if self._closed_path is None:
                try:
                    if self._failure is None:
                        self._write_waiting()
                finally:
                    self._closed_path = self._file.abandon()
            return self._closed_path

    def _publish(self) -> None:
        try:
            self._closed_path = self._file.publish()
        except (sqlite3.Error, OSError) as error:
            self._closed_path = self._file.abandon()
            self._fail(error)

    def _keep_snapshot(self, event: GraphSnapshot) -> None:
        """The last snapshot of a graph in a pass counts."""
        if self._open_pass is None or self._open_pass.index != event.pass_index:
            raise ValueError(f"snapshot of pass {event.pass_index} outside of that pass")
        self._snapshots[event.graph] = event

    def _finish_pass(self, finished: PassFinished) -> None:
        if self._open_pass is None or self._open_pass.index != finished.index:
            raise ValueError(f"pass {finished.index} ends but is not open")
        self._write_pass(self._open_pass, finished)

    def _write_waiting(self) -> None:
        """Write what has not been written; a pass that is open was interrupted."""
        if self._open_pass is not None:
            self._write_pass(self._open_pass, None)
        elif self._events:
            self._transaction(self._write_events)

    def _write_pass(self, started: PassStarted, finished: PassFinished | None) -> None:
        snapshots = tuple(self._snapshots.values())
        self._open_pass = None
        self._snapshots.clear()

        def write() -> None:
            self._rows.write_pass(started, finished)
            for snapshot in snapshots:
                self._graphs.write(snapshot)
            self._write_events()

        self._transaction(write)

    def _write_events(self) -> None:
        events, self._events = self._events, []
        self._rows.write(events)

    def _transaction(self, write: Callable[[], None]) -> None:
        try:
            self._connection.execute("BEGIN")
            try:
                write()
                self._interning.flush(self._connection)
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        except (sqlite3.Error, OSError, OverflowError, TypeError, ValueError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = TraceError(
            f"cannot write the trace {self._file.target}: {explain(error)}",
            hint=f"What was written before is in {self._file.path}",
        )
        raise self._failure from error
