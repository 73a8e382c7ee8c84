"""Reports as Markdown, for issues and notes."""

from __future__ import annotations

from collections.abc import Iterable

from autosp_inspector.report.report import Block, Facts, Lines, Report, Table
from autosp_inspector.report.visible import visible


def render_markdown(report: Report) -> str:
    """Headings, tables and lists."""
    return "\n\n".join(_block(block) for block in report.blocks) + "\n"


def _block(block: Block) -> str:
    heading = f"## {_escape(block.title)}\n\n" if block.title else ""
    match block:
        case Table():
            return heading + _table(block)
        case Facts():
            items = (f"- **{_escape(label)}**: {_escape(value)}" for label, value in block.items)
            return heading + "\n".join(items)
        case Lines():
            return heading + "\n".join(f"- {_escape(line.strip())}" for line in block.lines)


def _table(table: Table) -> str:
    lines = [
        _row(column.title for column in table.columns),
        _row("---:" if column.align == "right" else "---" for column in table.columns),
        *(_row(_escape(cell) for cell in row) for row in table.rows),
    ]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(text: str) -> str:
    """No character of ``text`` may start markup or end a cell."""
    escaped = visible(text)
    for character in ("\\", "`", "*", "_", "|", "<", "[", "#"):
        escaped = escaped.replace(character, f"\\{character}")
    return escaped
