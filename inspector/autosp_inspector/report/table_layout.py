"""Laying a table out as lines: at its natural width, or fitted to a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from autosp_inspector.report.report import Column, Table
from autosp_inspector.report.visible import visible

GAP = "  "
MIN_WRAPPED_WIDTH = 36
"""A sentence narrower than this is easier to read under its row than beside it."""
MIN_SHORTENED_WIDTH = 12
_INDENT = "      "


@dataclass(frozen=True, slots=True)
class LaidOut:
    """Lines of a table; the first is the header."""

    lines: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    """Titles of the columns there was no room for."""


def lay_out(table: Table, width: int | None) -> LaidOut:
    """The lines of ``table``; all of it, however wide, if ``width`` is None."""
    rows = [tuple(map(visible, row)) for row in table.rows]
    chosen = list(range(len(table.columns)))
    widths = _natural_widths(table.columns, rows)
    sentences = chosen.pop() if table.columns[-1].may_wrap else None
    if width is None:
        return _lines(table, rows, chosen, widths, sentences, beside=0)
    while not _fits(chosen, widths, width):
        expendable = [index for index in chosen if table.columns[index].dropped]
        if not expendable:
            widths = _shortened(chosen, widths, table.columns, width)
            break
        chosen.remove(max(expendable, key=lambda index: table.columns[index].dropped))
    room = width - sum(widths[index] + len(GAP) for index in chosen)
    if sentences is not None and widths[sentences] <= room:
        room = 0
    elif room < MIN_WRAPPED_WIDTH:
        room = -width
    return _lines(table, rows, chosen, widths, sentences, beside=room)


def _natural_widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        max([cell_len(column.title), *(cell_len(row[index]) for row in rows)])
        for index, column in enumerate(columns)
    ]


def _fits(chosen: Sequence[int], widths: Sequence[int], width: int) -> bool:
    return sum(widths[index] for index in chosen) + len(GAP) * (len(chosen) - 1) <= width


def _shortened(
    chosen: Sequence[int], widths: Sequence[int], columns: Sequence[Column], width: int
) -> list[int]:
    """Take from the widest text column until the table fits."""
    result = list(widths)
    while not _fits(chosen, result, width):
        texts = [index for index in chosen if columns[index].align == "left"]
        widest = max(texts, key=lambda index: result[index], default=None)
        if widest is None or result[widest] <= MIN_SHORTENED_WIDTH:
            break
        result[widest] -= 1
    return result


def _lines(
    table: Table,
    rows: Sequence[tuple[str, ...]],
    chosen: Sequence[int],
    widths: Sequence[int],
    sentences: int | None,
    *,
    beside: int,
) -> LaidOut:
    """``beside`` is the room for sentences: 0 unlimited, negative for under the row."""
    columns = table.columns
    header = _row([column.title for column in columns], chosen, widths, columns)
    if sentences is not None and beside >= 0:
        header += (GAP if chosen else "") + columns[sentences].title
    lines = [header.rstrip()]
    for row in rows:
        start = _row(row, chosen, widths, columns)
        if sentences is None:
            lines.append(start.rstrip())
        else:
            lines.extend(_with_sentence(start, row[sentences], beside))
    dropped = [
        column.title
        for index, column in enumerate(columns)
        if index not in chosen and index != sentences
    ]
    return LaidOut(tuple(lines), tuple(dropped))


def _with_sentence(start: str, sentence: str, beside: int) -> Iterator[str]:
    if beside < 0:
        yield start.rstrip()
        yield from textwrap.wrap(
            sentence, -beside, initial_indent=_INDENT, subsequent_indent=_INDENT
        )
        return
    parts = [sentence] if beside == 0 else textwrap.wrap(sentence, beside) or [""]
    yield f"{start}{GAP}{parts[0]}".rstrip()
    for part in parts[1:]:
        yield " " * cell_len(start) + GAP + part


def _row(
    cells: Sequence[str], chosen: Sequence[int], widths: Sequence[int], columns: Sequence[Column]
) -> str:
    return GAP.join(_cell(cells[i], widths[i], columns[i]) for i in chosen)


def _cell(text: str, width: int, column: Column) -> str:
    size = cell_len(text)
    if size > width:
        return _shorten(text, width)
    padding = " " * (width - size)
    return padding + text if column.align == "right" else text + padding


def _shorten(text: str, width: int) -> str:
    """Both ends of ``text``: the ends of long names tell them apart."""
    tail = text[-(width // 2 - 1) :] if width >= 4 else ""
    head = set_cell_size(text, width - cell_len(tail) - 1)
    return f"{head}…{tail}"
