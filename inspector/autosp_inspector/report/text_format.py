"""Reports as text: fitted to a terminal, or unfitted for a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from autosp_inspector.report.report import Block, Column, Facts, Lines, Report, Table
from autosp_inspector.report.visible import visible

FITTED_ROWS = 2000
"""A longer table is printed plainly also in a terminal: fitting it takes seconds."""

_GAP = "  "


def print_text(report: Report, console: Console) -> None:
    """Print to ``console``; only in a terminal are tables fitted to its width."""
    for index, block in enumerate(report.blocks):
        if index:
            console.file.write("\n")
        is_long = isinstance(block, Table) and len(block.rows) > FITTED_ROWS
        if console.is_terminal and not is_long:
            console.print(_fitted(block), highlight=False)
        else:
            for line in _plain(block):
                console.file.write(line.rstrip() + "\n")
    console.file.flush()


# -- in a terminal -----------------------------------------------------------------------


def _fitted(block: Block) -> RenderableType:
    parts: list[RenderableType] = []
    if block.title:
        parts.append(Text(visible(block.title), style="bold"))
    match block:
        case Table():
            parts.append(_fitted_table(block))
        case Facts():
            parts.append(_fitted_facts(block))
        case Lines():
            parts.extend(_fitted_line(line) for line in block.lines)
    return Group(*parts)


def _fitted_line(line: str) -> RenderableType:
    """A line whose continuation keeps its indentation."""
    text = visible(line)
    indent = len(text) - len(text.lstrip())
    return Padding(Text(text.strip()), (0, 0, 0, indent))


def _fitted_facts(facts: Facts) -> RichTable:
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for label, value in facts.items:
        grid.add_row(Text(f"  {label}" if facts.title else label), Text(visible(value)))
    return grid


def _fitted_table(table: Table) -> RichTable:
    drawn = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in table.columns:
        drawn.add_column(
            column.title,
            justify=column.align,
            no_wrap=column.align == "right",
            overflow="fold",
            ratio=None,
        )
    for row in table.rows:
        drawn.add_row(*(Text(visible(cell)) for cell in row))
    return drawn


# -- in a pipe ---------------------------------------------------------------------------


def _plain(block: Block) -> Iterator[str]:
    if block.title:
        yield visible(block.title)
    match block:
        case Table():
            yield from _plain_table(block)
        case Facts():
            width = max((len(label) for label, _ in block.items), default=0)
            indent = "  " if block.title else ""
            for label, value in block.items:
                yield f"{indent}{label:{width}}{_GAP}{visible(value)}"
        case Lines():
            yield from map(visible, block.lines)


def _plain_table(table: Table) -> Iterator[str]:
    rows = [tuple(column.title for column in table.columns)]
    rows.extend(tuple(map(visible, row)) for row in table.rows)
    widths = [max(cell_len(row[index]) for row in rows) for index in range(len(table.columns))]
    for row in rows:
        yield _GAP.join(_padded(row, widths, table.columns))


def _padded(row: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> Iterator[str]:
    for cell, width, column in zip(row, widths, columns, strict=True):
        padding = " " * (width - cell_len(cell))
        yield padding + cell if column.align == "right" else cell + padding
