"""A trace while it is written: ``<name>.partial``, renamed when it is complete.

A crash leaves the partial file, readable up to the last finished pass; it never
replaces a good trace of the same name.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from autosp_inspector.errors import TraceError
from autosp_inspector.schema import apply_migrations

PARTIAL_SUFFIX = ".partial"
_COMPANIONS = ("-wal", "-shm", "-journal")


class PartialFile:
    """The file and the connection that writes it.

    Raises:
        TraceError: the folder is missing or not writable, the target is a folder, or
            another process is writing the same trace.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(target.name + PARTIAL_SUFFIX)
        _check_target(target)
        try:
            self._discard_stale()
            self.connection = self._create()
        except (sqlite3.Error, OSError, ValueError) as error:
            raise TraceError(f"cannot write the trace {target}: {explain(error)}") from error

    def _discard_stale(self) -> None:
        """Remove what an interrupted run left, unless someone is still writing it."""
        if self.path.exists() and _is_locked(self.path):
            raise OSError("another process is writing it")
        remove_database(self.path)

    def _create(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=5
        )
        # The schema goes in before WAL starts, so that the file says from its first
        # bytes what it is, whatever happens to the log.
        connection.execute("PRAGMA synchronous = OFF")
        apply_migrations(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        # The first read opens the log and holds the lock that other writers look for.
        connection.execute("SELECT count(*) FROM run").fetchone()
        return connection

    def publish(self) -> Path:
        """Make one self-contained file of it and put it in the target's place."""
        self.connection.execute("PRAGMA busy_timeout = 0")
        if self._leave_log():
            self.connection.close()
            _replace(self.path, self.target)
        else:
            # Someone is reading the partial file and holds its log: write a clean copy.
            copy = self.target.with_name(self.target.name + ".complete")
            remove_database(copy)
            self.connection.execute("VACUUM INTO ?", (str(copy),))
            self.connection.close()
            _replace(copy, self.target)
            remove_database(self.path)
        return self.target

    def _leave_log(self) -> bool:
        """Merge the write-ahead log into the file; False while another program reads it."""
        try:
            (mode,) = self.connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return False
            raise
        return bool(mode == "delete")

    def abandon(self) -> Path:
        """Close and leave the partial file where it is."""
        self.connection.close()
        return self.path


def _replace(file: Path, target: Path) -> None:
    """Put ``file`` in the place of ``target`` once its bytes are on the disk."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(file, target)


def remove_database(path: Path) -> None:
    """Delete a database file and what SQLite keeps beside it."""
    path.unlink(missing_ok=True)
    for suffix in _COMPANIONS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def explain(error: BaseException) -> str:
    """Why a write failed, in the user's words."""
    text = str(error)
    if "disk is full" in text or getattr(error, "errno", None) == errno.ENOSPC:
        return "the disk is full"
    if "unable to open database file" in text or "readonly database" in text:
        return "the folder is not writable"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, OverflowError):
        return "a number in it does not fit into 64 bits"
    return " ".join(text.split()) or type(error).__name__


def _check_target(target: Path) -> None:
    try:
        if target.is_dir():
            raise TraceError(
                f"cannot write the trace {target}: it is a folder", hint="Name a file in it"
            )
        if not target.parent.is_dir():
            raise TraceError(
                f"cannot write the trace {target}: the folder {target.parent} does not exist",
                hint="Create it first",
            )
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot write the trace {target}: {explain(error)}") from error


def _is_locked(path: Path) -> bool:
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.Error as error:
        return "locked" in str(error)
    finally:
        connection.close()
    return False
