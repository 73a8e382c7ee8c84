"""The rows of a query of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosp_inspector.report.report import Column, Report, Table


def sql_report(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Report:
    """Values as SQLite has them; NULL is empty in text."""
    records = [
        {name: _json_value(value) for name, value in zip(columns, row, strict=True)} for row in rows
    ]
    numeric = [
        all(isinstance(row[index], int | float) for row in rows) and bool(rows)
        for index in range(len(columns))
    ]
    table = Table(
        tuple(
            Column(name, "right" if is_number else "left")
            for name, is_number in zip(columns, numeric, strict=True)
        ),
        tuple(tuple("" if value is None else str(value) for value in row) for row in rows),
    )
    data = {"columns": list(columns), "rows": [[_json_value(v) for v in row] for row in rows]}
    return Report((table,), data, records)


def _json_value(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
