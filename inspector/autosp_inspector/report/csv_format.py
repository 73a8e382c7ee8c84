"""Reports as CSV: the records of a view, nested values flattened into columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from autosp_inspector.report.report import Report


def render_csv(report: Report) -> str:
    """A header and one line per record; a view without records gives its data as one."""
    records = [report.data] if report.records is None else report.records
    flat = [dict(_flatten(record, "")) for record in records]
    names = list(dict.fromkeys(name for record in flat for name in record))
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(names)
    for record in flat:
        writer.writerow([record.get(name, "") for name in names])
    return output.getvalue()


def _flatten(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, _cell(value)


def _cell(value: Any) -> Any:
    """Text starting like a formula gets a quote, so that a spreadsheet does not run it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value[:1] in ("=", "@", "+", "-"):
        return f"'{value}" if len(value) > 1 else value
    return value
