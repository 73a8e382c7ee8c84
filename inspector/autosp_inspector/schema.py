"""The identity of a trace file and how its schema is brought up to date."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from autosp_inspector.migrations import MIGRATIONS, Migration

APPLICATION_ID = 0x41535031
"""``ASP1``: marks a SQLite file as one of our traces."""

SCHEMA_VERSION = MIGRATIONS[-1].number
TRACE_SUFFIX = ".autosp"


def apply_migrations(
    connection: sqlite3.Connection, *, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Apply the steps the file lacks, each in one transaction with its own record.

    The connection must be in autocommit mode (``isolation_level=None``).
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for migration in migrations:
        if migration.number > version:
            _apply(connection, migration)


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in migration.statements:
            connection.execute(statement)
        connection.execute(
            "INSERT INTO schema_migration (number, name) VALUES (?, ?)",
            (migration.number, migration.name),
        )
        # PRAGMA takes no parameters; both values are integers of ours.
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
        connection.execute(f"PRAGMA user_version = {migration.number:d}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
