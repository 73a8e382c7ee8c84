"""Columns of a list: what a cell shows and how widths are shared out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from autosp_tui.present import Keep, Span

RowT = TypeVar("RowT")

GAP = 2
"""Cells between columns."""


@dataclass(frozen=True)
class Column(Generic[RowT]):
    """One column of a list of ``RowT``.

    ``width`` is what the column needs, ``grow`` its share of the cells left over.
    A column with ``from_width`` is left out of lists narrower than that.
    """

    title: str
    cell: Callable[[RowT], Span]
    width: int
    grow: int = 0
    align: Literal["left", "right"] = "left"
    keep: Keep = "start"
    from_width: int = 0


def share_widths(columns: Sequence[Column[RowT]], width: int) -> list[tuple[Column[RowT], int]]:
    """The columns that fit a list of ``width`` cells, each with its width.

    Columns are left out from the right when even their needs do not fit.
    """
    shown = [column for column in columns if column.from_width <= width]
    while len(shown) > 1 and _need(shown) > width:
        shown.pop()
    free = max(0, width - _need(shown))
    shares = sum(column.grow for column in shown)
    widths = []
    for column in shown:
        extra = free * column.grow // shares if shares else 0
        free, shares = free - extra, shares - column.grow
        widths.append((column, max(1, min(width, column.width + extra))))
    return widths


def _need(columns: Sequence[Column[RowT]]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)
