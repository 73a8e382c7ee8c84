"""The memory curve: live bytes over the step, stacked by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from autosp_inspector.rows import MemoryRow
from autosp_tui.bindings import bindings_of
from autosp_tui.present import Span, clean, fit, format_bytes
from autosp_tui.theme import Tones, category_fill, category_tone

_AXIS_CELLS = 10
_FOOT_ROWS = 2
_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Bucket:
    """The points of the curve that share a column: drawn as the highest of them."""

    first: int
    """Position of the first point in the curve."""
    highest: MemoryRow
    phase: str


def buckets_of(rows: Sequence[MemoryRow], columns: int) -> tuple[Bucket, ...]:
    """At most ``columns`` buckets; a peak is never averaged away."""
    if not rows or columns <= 0:
        return ()
    count = min(columns, len(rows))
    edges = [len(rows) * number // count for number in range(count + 1)]
    return tuple(
        Bucket(first, max(rows[first:last], key=lambda row: row.live_bytes), rows[first].phase)
        for first, last in zip(edges, edges[1:], strict=False)
    )


def column_cells(
    categories: Mapping[str, int], order: Sequence[str], height: int, top_bytes: int
) -> list[Span]:
    """One column from the bottom up: a fill per cell, a partial block for the top edge."""
    scale = height / top_bytes if top_bytes else 0.0
    total = sum(categories.values()) * scale
    cells: list[Span] = []
    for row in range(height):
        if row >= total:
            break
        category = _category_at(categories, order, (row + min(total, row + 1)) / 2 / (scale or 1))
        filled = min(1.0, total - row)
        if filled >= 0.95:
            cells.append((category_fill(category), category_tone(category)))
        else:
            cells.append((_EIGHTHS[max(1, round(filled * 8))], category_tone(category)))
    return cells + [(" ", "text")] * (height - len(cells))


def _category_at(categories: Mapping[str, int], order: Sequence[str], level: float) -> str:
    reached = 0
    last = "other"
    for name in order:
        size = categories.get(name, 0)
        if size:
            reached, last = reached + size, name
            if level < reached:
                return name
    return last


class Curve(Widget, can_focus=True):
    """A stacked area with the peak marked and a cursor."""

    PANE: ClassVar[tuple[str, ...]] = ("curve",)
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("curve")

    class Moved(Message):
        """The cursor is on another point."""

        def __init__(self, point: MemoryRow) -> None:
            self.point = point
            super().__init__()

    class Selected(Moved):
        """Enter on a point."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.tones = Tones(self)
        self.pane_title = "Live memory"
        self.rows: tuple[MemoryRow, ...] = ()
        self.order: tuple[str, ...] = ()
        self.peak = 0
        self.position = 0
        self._columns: tuple[list[Span], ...] = ()
        self._buckets: tuple[Bucket, ...] = ()
        self._drawn_for = Size(0, 0)

    # -- contents

    def show(self, rows: Sequence[MemoryRow], order: Sequence[str]) -> None:
        """Show a curve, bottom category first, with the cursor on its peak."""
        self.rows, self.order = tuple(rows), tuple(order)
        sizes = [row.live_bytes for row in self.rows]
        self.peak = sizes.index(max(sizes)) if sizes else 0
        self._layout_columns()
        self.go_to(self.peak)

    def go_to(self, position: int) -> None:
        """Move the cursor to a point of the curve."""
        self.position = max(0, min(position, len(self.rows) - 1))
        self.refresh()
        if self.rows:
            self.post_message(self.Moved(self.rows[self.position]))

    @property
    def current(self) -> MemoryRow | None:
        return self.rows[self.position] if self.rows else None

    @property
    def _height(self) -> int:
        return max(1, self.content_size.height - _FOOT_ROWS)

    def _layout_columns(self) -> None:
        self._drawn_for = self.content_size
        width = max(1, self.content_size.width - _AXIS_CELLS)
        buckets = buckets_of(self.rows, width)
        top = max((row.live_bytes for row in self.rows), default=0)
        drawn = [column_cells(b.highest.categories, self.order, self._height, top) for b in buckets]
        chosen = [column * len(buckets) // width for column in range(width)] if buckets else []
        self._buckets = tuple(buckets[number] for number in chosen)
        self._columns = tuple(drawn[number] for number in chosen)

    def on_resize(self, _event: events.Resize) -> None:
        self._layout_columns()
        self.refresh()

    def _column_of(self, position: int) -> int:
        column = 0
        for number, bucket in enumerate(self._buckets):
            if bucket.first > position:
                break
            if number and bucket.first == self._buckets[number - 1].first:
                continue
            column = number
        return column

    # -- drawing

    def render_line(self, y: int) -> Strip:
        if self._drawn_for != self.content_size:
            self._layout_columns()
        width = self.content_size.width
        if y < self._height:
            spans = self._area(y)
        elif y == self._height:
            spans = self._marks()
        else:
            spans = self._phases()
        base = Style(bgcolor=self.rich_style.bgcolor)
        segments = [Segment(text, self.tones[tone] + base) for text, tone in spans]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _area(self, y: int) -> list[Span]:
        level = self._height - 1 - y
        top = self.rows[self.peak].live_bytes if self.rows else 0
        label = ""
        if y == 0:
            label = format_bytes(top)
        elif y == self._height // 2 and self._height >= 5:
            label = format_bytes(top * (self._height - y) // self._height)
        edge = "┤" if label else "│"
        spans: list[Span] = [(fit(label, _AXIS_CELLS - 1, align="right") + edge, "muted")]
        spans += [cells[level] for cells in self._columns]
        return spans

    def _marks(self) -> list[Span]:
        marks = ["─"] * len(self._columns)
        peak, cursor = self._column_of(self.peak), self._column_of(self.position)
        if marks:
            label = "▲ peak"
            start = peak if peak + len(label) <= len(marks) else peak - len(label) + 1
            text = label if start == peak else "peak ▲"
            if 0 <= start and start + len(text) <= len(marks):
                marks[start : start + len(text)] = text
            else:
                marks[peak] = "▲"
        spans: list[Span] = [(fit("0 B", _AXIS_CELLS - 1, align="right") + "└", "muted")]
        for number, mark in enumerate(marks):
            at_cursor = number == cursor and cursor != peak
            tone = "strong" if at_cursor else "bad" if mark != "─" else "muted"
            spans.append(("┃" if at_cursor else mark, tone))
        return spans

    def _phases(self) -> list[Span]:
        row, previous = [" "] * len(self._buckets), ""
        for column, bucket in enumerate(self._buckets):
            if bucket.phase != previous:
                label = f"├ {clean(bucket.phase)}"
                row[column : column + len(label)] = label
                previous = bucket.phase
        text = "".join(row)[: len(self._buckets)]
        return [(" " * _AXIS_CELLS, "muted"), (text, "heading")]

    # -- moving

    def action_step(self, amount: int) -> None:
        column = self._column_of(self.position)
        first = self._buckets[column].first if self._buckets else 0
        while 0 <= column + amount < len(self._buckets):
            column += amount
            if self._buckets[column].first != first:
                self._go_to_bucket(column)
                return

    def _go_to_bucket(self, column: int) -> None:
        bucket = self._buckets[column]
        highest = bucket.highest
        position = bucket.first
        while self.rows[position] is not highest:
            position += 1
        self.go_to(position)

    def action_first(self) -> None:
        self.go_to(0)

    def action_last(self) -> None:
        self.go_to(len(self.rows) - 1)

    def action_select(self) -> None:
        point = self.current
        if point is not None:
            self.post_message(self.Selected(point))

    def on_click(self, event: events.Click) -> None:
        column = event.get_content_offset_capture(self).x - _AXIS_CELLS
        if 0 <= column < len(self._buckets):
            self._go_to_bucket(column)

    # -- text

    def copy_text(self) -> str:
        point = self.current
        return "" if point is None else clean(point.node)

    async def export_text(self) -> str:
        rows = [f"index phase live_bytes {' '.join(self.order)} node"]
        for row in self.rows:
            sizes = " ".join(str(row.categories.get(name, 0)) for name in self.order)
            rows.append(
                f"{row.index} {clean(row.phase)} {row.live_bytes} {sizes} {clean(row.node)}"
            )
        return "\n".join(rows)
