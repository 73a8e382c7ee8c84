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
    """Long text: is broken into lines where the terminal is too narrow."""


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


def left(title: str) -> Column:
    return Column(title)


def right(title: str) -> Column:
    return Column(title, align="right")


def wrapped(title: str) -> Column:
    return Column(title, may_wrap=True)
