"""Bring an older trace file to the current schema."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from autosp_inspector.errors import TraceError
from autosp_inspector.migrations import MIGRATIONS, Migration
from autosp_inspector.partial_file import explain, remove_database
from autosp_inspector.schema import apply_migrations
from autosp_inspector.trace_file import check_version, read_header


def upgrade_trace(path: Path, *, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Apply the schema steps that ``path`` lacks; returns the schema it had before.

    The work is done on a copy that takes the file's place at the end: an interrupted
    upgrade leaves the file as it was.

    Raises:
        TraceError: not a trace, newer than this package, damaged, or not writable.
    """
    path = Path(path)
    header = read_header(path)
    newest = migrations[-1].number
    if header.schema_version < 1 or header.schema_version > newest:
        check_version(path, header.schema_version)
    if header.schema_version == newest:
        return newest
    if header.has_log:
        raise TraceError(f"{path} is still being written, or its writing was interrupted")
    copy = path.with_name(path.name + ".upgrade")
    try:
        remove_database(copy)
        shutil.copyfile(path, copy)
        connection = sqlite3.connect(copy, isolation_level=None)
        try:
            apply_migrations(connection, migrations=migrations)
        finally:
            connection.close()
        os.replace(copy, path)
    except (sqlite3.Error, OSError) as error:
        remove_database(copy)
        raise TraceError(f"cannot upgrade {path}: {explain(error)}") from error
    return header.schema_version
