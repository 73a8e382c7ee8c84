"""Read-only SQL of the user on a trace."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from autosp_inspector.errors import TraceError
from autosp_inspector.trace import Trace

_ALLOWED_ACTIONS = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)


@dataclass(frozen=True, slots=True)
class SqlResult:
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def run_sql(trace: Trace, statement: str, *, limit: int | None = None) -> SqlResult:
    """The rows of one SELECT; nothing else is allowed, not even PRAGMA or ATTACH.

    Raises:
        TraceError: what SQLite has against the statement, in one line.
    """
    try:
        columns, rows = trace.run_restricted(statement, _ALLOWED_ACTIONS, limit)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        text = " ".join(str(error).split())
        if "not authorized" in text or "prohibited" in text:
            text = "only SELECT is allowed"
        raise TraceError(f"SQL: {text}", hint="Tables: docs/trace-schema.md") from error
    if not columns:
        raise TraceError("SQL: the statement returns nothing", hint="Write one SELECT")
    return SqlResult(columns, rows)
