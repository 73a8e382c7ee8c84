"""Traces as their readers see them: read-only, and no code in them is ever run."""

from __future__ import annotations

import copy
import json
import shutil
import sqlite3
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from autosp_inspector.errors import TraceError
from autosp_inspector.rows import RunRow
from autosp_inspector.schema import TRACE_SUFFIX
from autosp_inspector.trace_file import check_version, read_header
from autosp_inspector.upgrade import upgrade_trace

__all__ = ["Trace", "TraceError", "open_run", "open_trace", "upgrade_trace"]

_Value = TypeVar("_Value")
_CACHE_ENTRIES = 32
"""Views (graph after pass) and filters kept; about 10 MB each at 100,000 nodes."""


class Trace:
    """One opened trace file. Safe to use from several threads.

    Make one with :func:`open_trace` or :func:`open_run`.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, schema_version: int) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()
        self._cache: OrderedDict[Hashable, Any] = OrderedDict()
        self._on_close: list[Callable[[], None]] = []
        self.compilation: int | None = None
        """The only one whose graphs and decisions queries show; None: as each query says."""
        self.run = self._read_run(schema_version)

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            while self._on_close:
                self._on_close.pop()()

    def on_close(self, action: Callable[[], None]) -> None:
        """Run ``action`` after the file was closed."""
        self._on_close.append(action)

    def of_compilation(self, compilation: int) -> Trace:
        """The same opened file, as one of its compilations; closing either closes both."""
        twin = copy.copy(self)
        twin.compilation = compilation
        return twin

    def fetch(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement of ours (never of the user's).

        Raises:
            TraceError: the file is damaged.
        """
        try:
            with self._lock:
                return self._connection.execute(statement, tuple(parameters)).fetchall()
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.DatabaseError as error:
            raise damaged(self.path, error) from error

    def cached(self, key: Hashable, compute: Callable[[], _Value]) -> _Value:
        """``compute()``, remembered under ``key``: the file does not change."""
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                found: _Value = self._cache[key]
                return found
            value = self._cache[key] = compute()
            if len(self._cache) > _CACHE_ENTRIES:
                self._cache.popitem(last=False)
            return value

    def run_restricted(
        self, statement: str, allowed_actions: frozenset[int], limit: int | None
    ) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
        """Column names and rows of a statement of the user's.

        ``allowed_actions`` are SQLite authorizer codes; anything else raises
        ``sqlite3.DatabaseError``.
        """
        with self._lock:
            self._connection.set_authorizer(
                lambda action, *_: (
                    sqlite3.SQLITE_OK if action in allowed_actions else sqlite3.SQLITE_DENY
                )
            )
            try:
                cursor = self._connection.execute(statement)
                columns = tuple(column[0] for column in cursor.description or ())
                rows = cursor.fetchall() if limit is None else cursor.fetchmany(max(limit, 0))
                cursor.close()
            finally:
                self._connection.set_authorizer(None)
            return columns, tuple(rows)

    def _read_run(self, schema_version: int) -> RunRow:
        rows = self.fetch(
            "SELECT autosp_version, torch_version, mode, rank, world_size, mesh, model, config,"
            " gradient_convention, hardware, status, message, duration_ns FROM run"
        )
        if not rows:
            raise TraceError(f"{self.path} holds no run: its recording stopped at the very start")
        (row,) = rows
        try:
            return RunRow(
                path=str(self.path),
                schema_version=schema_version,
                autosp_version=row[0],
                torch_version=row[1],
                mode=row[2],
                rank=row[3],
                world_size=row[4],
                mesh=json.loads(row[5]),
                model=row[6],
                config=json.loads(row[7]),
                gradient_convention=row[8],
                hardware=None if row[9] is None else json.loads(row[9]),
                status=row[10] or "unfinished",
                message=row[11],
                duration_ns=row[12],
            )
        except ValueError as error:
            raise damaged(self.path, error) from error


def damaged(path: Path, error: Exception) -> TraceError:
    """One line for what SQLite says about a broken file."""
    return TraceError(f"{path} is damaged ({' '.join(str(error).split())})")


def open_trace(path: Path) -> Trace:
    """Open a trace file read-only; for a folder, the trace of its lowest rank.

    Raises:
        TraceError: missing, empty, cut off, damaged, not a trace, or of another schema.
    """
    path = Path(path)
    if not _is_folder(path):
        return _open_file(path)
    first, *others = open_run(path)
    for other in others:
        other.close()
    return first


def open_run(path: Path) -> tuple[Trace, ...]:
    """All traces of a run, by rank: the ``*.autosp`` files of a folder, or one file.

    The rank is the one inside each file, whatever the files are called.

    Raises:
        TraceError: as :func:`open_trace`; or no trace there, or two of the same rank.
    """
    path = Path(path)
    if not _is_folder(path):
        return (_open_file(path),)
    traces: list[Trace] = []
    try:
        for file in _trace_files(path):
            traces.append(_open_file(file))
        traces.sort(key=lambda trace: trace.run.rank)
        _check_ranks(path, traces)
    except TraceError:
        for trace in traces:
            trace.close()
        raise
    return tuple(traces)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _trace_files(folder: Path) -> list[Path]:
    try:
        files = sorted(folder.glob(f"*{TRACE_SUFFIX}"))
        partial = sorted(folder.glob(f"*{TRACE_SUFFIX}.partial"))
    except OSError as error:
        raise TraceError(f"cannot read {folder}: {error.strerror}") from error
    if files:
        return files
    hint = f"{partial[0].name} is of an interrupted run: open it by name" if partial else ""
    raise TraceError(f"no traces (*{TRACE_SUFFIX}) in {folder}", hint=hint)


def _check_ranks(folder: Path, traces: Sequence[Trace]) -> None:
    for trace, following in zip(traces, traces[1:], strict=False):
        if trace.run.rank == following.run.rank:
            raise TraceError(
                f"{folder} holds two traces of rank {trace.run.rank}: "
                f"{trace.path.name} and {following.path.name}",
                hint="Keep the traces of one run in one folder, or open a file by name",
            )


def _open_file(path: Path) -> Trace:
    header = read_header(path)
    check_version(path, header.schema_version)
    if not header.has_log:
        return _connect(path, path, header.schema_version, immutable=True)
    try:
        return _connect(path, path, header.schema_version, immutable=False)
    except TraceError:
        # A log in a folder that is not writable, or a rollback journal: SQLite has to
        # write to read these, so let it do so on a copy.
        return _open_copy(path, header.schema_version)


def _open_copy(path: Path, schema_version: int) -> Trace:
    folder = tempfile.TemporaryDirectory(prefix="autosp-trace-")
    try:
        copy = Path(folder.name) / path.name
        for suffix in ("", "-wal", "-journal"):
            original = path.with_name(path.name + suffix)
            if original.is_file():
                shutil.copyfile(original, copy.with_name(copy.name + suffix))
        recover = sqlite3.connect(copy, isolation_level=None)
        try:
            recover.execute("PRAGMA journal_mode = DELETE").fetchone()
        finally:
            recover.close()
        trace = _connect(path, copy, schema_version, immutable=True)
    except (sqlite3.Error, OSError) as error:
        folder.cleanup()
        raise damaged(path, error) from error
    except TraceError:
        folder.cleanup()
        raise
    trace.on_close(folder.cleanup)
    return trace


def _connect(path: Path, file: Path, schema_version: int, *, immutable: bool) -> Trace:
    address = file.resolve().as_uri() + "?mode=ro" + ("&immutable=1" if immutable else "")
    try:
        connection = sqlite3.connect(
            address, uri=True, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        return Trace(path, connection, schema_version)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise damaged(path, error) from error
    except TraceError:
        connection.close()
        raise
