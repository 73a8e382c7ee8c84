"""A source line from joined columns."""

from __future__ import annotations

from autosp_inspector.rows import Source


def source_row(
    file: str | None, line: int | None, function: str | None, text: str | None
) -> Source | None:
    """The four columns of a LEFT JOIN, all NULL when the line is unknown."""
    if file is None or line is None:
        return None
    return Source(file, line, function or "", text or "")
