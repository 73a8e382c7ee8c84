"""A view's content, before any format is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = "autosp-inspect/1"
"""Value of ``schema`` in every JSON output; it changes when a field changes its meaning."""

Align = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    align: Align = "left"
    may_wrap: bool = False
    """Sentences; only a last column. Broken into lines in a narrow terminal, under the
    row if there is no room beside it."""
    dropped: int = 0
    """In a terminal that is too narrow, columns with the highest number go first; 0 stays."""


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labelled lines, ``label  value``."""

    items: tuple[tuple[str, str], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """Plain lines under an optional heading."""

    lines: tuple[str, ...]
    title: str = ""


Block = Table | Facts | Lines


@dataclass(frozen=True, slots=True)
class Report:
    """What one view says.

    ``data`` is the JSON object without its schema. ``records`` are the rows of the CSV
    output; None if the view has no table.
    """

    blocks: tuple[Block, ...]
    data: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]] | None = None
    problems: int = field(default=0)
    """Number of findings that make ``check`` fail."""


def left(title: str, *, dropped: int = 0) -> Column:
    return Column(title, dropped=dropped)


def right(title: str, *, dropped: int = 0) -> Column:
    return Column(title, align="right", dropped=dropped)


def wrapped(title: str) -> Column:
    return Column(title, may_wrap=True)
