"""Reports as text: fitted to a terminal, or unfitted for a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from autosp_inspector.report.report import Block, Facts, Lines, Report, Table
from autosp_inspector.report.table_layout import GAP, lay_out
from autosp_inspector.report.visible import visible

Styled = tuple[str, str]
"""A line and its style, empty for none."""


def print_text(report: Report, console: Console) -> None:
    """Print to ``console``; only in a terminal are lines fitted to its width."""
    width = console.width if console.is_terminal else None
    for index, block in enumerate(report.blocks):
        if index:
            console.file.write("\n")
        for line, style in _lines(block, width):
            if style and width is not None:
                console.print(Text(line, style=style), soft_wrap=True)
            else:
                console.file.write(line.rstrip() + "\n")
    console.file.flush()


def _lines(block: Block, width: int | None) -> Iterator[Styled]:
    if block.title:
        yield visible(block.title), "bold"
    match block:
        case Table():
            yield from _table_lines(block, width)
        case Facts():
            yield from _fact_lines(block, width)
        case Lines():
            for line in block.lines:
                yield from ((part, "") for part in _wrapped(visible(line), width))


def _table_lines(table: Table, width: int | None) -> Iterator[Styled]:
    laid_out = lay_out(table, width)
    header, *rows = laid_out.lines
    yield header, "dim" if table.title else "bold"
    yield from ((row, "") for row in rows)
    if laid_out.dropped:
        yield f"(no room for: {', '.join(laid_out.dropped)})", "dim"


def _fact_lines(facts: Facts, width: int | None) -> Iterator[Styled]:
    label_width = max((len(label) for label, _ in facts.items), default=0)
    indent = "  " if facts.title else ""
    for label, value in facts.items:
        start = f"{indent}{label:{label_width}}{GAP}"
        room = None if width is None else max(width - len(start), 20)
        first, *rest = _wrapped(visible(value), room)
        yield start + first, ""
        yield from ((" " * len(start) + part, "") for part in rest)


def _wrapped(line: str, width: int | None) -> list[str]:
    """``line`` in parts that keep its indentation; nothing is cut off."""
    if width is None or len(line) <= width:
        return [line]
    text = line.lstrip()
    indent = " " * (len(line) - len(text))
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
