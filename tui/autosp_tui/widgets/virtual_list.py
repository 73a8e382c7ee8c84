"""A list of any length that draws, and reads, only what is on the screen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events, work
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from autosp_tui.bindings import bindings_of
from autosp_tui.present import Span, clean, fit
from autosp_tui.theme import Tones
from autosp_tui.widgets.columns import GAP, Column, share_widths

RowT = TypeVar("RowT")
Fetch = Callable[[int, int], Awaitable[Sequence[RowT]]]
"""Rows from an offset, at most so many."""

PAGE_ROWS = 200
_KEPT_PAGES = 32
_GUTTER = 2


class VirtualList(ScrollView, Generic[RowT], can_focus=True):
    """Rows in columns, with a cursor.

    Rows are either all given (:meth:`show_rows`) or read a page at a time when they come
    into view (:meth:`show_source`); pages that were left long ago are forgotten.
    """

    PANE: ClassVar[tuple[str, ...]] = ("list",)
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("list")
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "virtual-list--header",
        "virtual-list--cursor",
        "virtual-list--cursor-blurred",
    }
    DEFAULT_CSS = """
    VirtualList {
        overflow-x: hidden;
        scrollbar-size-vertical: 1;
        & > .virtual-list--header { color: $tone-muted; text-style: underline; }
        & > .virtual-list--cursor { background: $row-cursor; text-style: bold; }
        & > .virtual-list--cursor-blurred { background: $row-cursor-blurred; }
    }
    """

    cursor: reactive[int] = reactive(0)

    class Highlighted(Message):
        """The cursor is on another row, or its row has arrived."""

        def __init__(self, list_widget: VirtualList[Any], row: object) -> None:
            self.list_widget = list_widget
            self.row = row
            super().__init__()

        @property
        def control(self) -> VirtualList[Any]:
            return self.list_widget

    class Selected(Highlighted):
        """Enter, or a click on the row under the cursor."""

    def __init__(
        self,
        columns: Sequence[Column[RowT]],
        *,
        empty: str = "nothing to show",
        title: str = "",
        header: bool = True,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.columns = tuple(columns)
        self.tones = Tones(self)
        self.pane_title = title
        self._header_rows = 1 if header else 0
        self._empty = empty
        self._count = 0
        self._pages: dict[int, tuple[RowT, ...]] = {}
        self._wanted: set[int] = set()
        self._fetch: Fetch[RowT] | None = None
        self._generation = 0
        self._announced: RowT | None = None

    # -- contents

    def show_rows(self, rows: Sequence[RowT], *, cursor: int = 0) -> None:
        """Show rows that are all at hand."""
        self._replace(len(rows), None)
        for start in range(0, len(rows), PAGE_ROWS):
            self._pages[start // PAGE_ROWS] = tuple(rows[start : start + PAGE_ROWS])
        self._restart(cursor)

    def show_source(
        self, count: int, first_page: Sequence[RowT], fetch: Fetch[RowT], *, cursor: int = 0
    ) -> None:
        """Show ``count`` rows of which only the first page is at hand."""
        self._replace(count, fetch)
        self._pages[0] = tuple(first_page[:PAGE_ROWS])
        self._restart(cursor)

    def show_message(self, text: str) -> None:
        """Show no rows but a line of text."""
        self._empty = text
        self.show_rows(())

    def _replace(self, count: int, fetch: Fetch[RowT] | None) -> None:
        self._generation += 1
        self._count = count
        self._fetch = fetch
        self._pages, self._wanted = {}, set()
        self._announced = None
        self.virtual_size = Size(1, count + self._header_rows)

    def _restart(self, cursor: int) -> None:
        position = max(0, min(cursor, self._count - 1))
        if position == self.cursor:
            self._announce()
        self.cursor = position
        self._show_cursor()
        self.refresh()

    @property
    def row_count(self) -> int:
        return self._count

    @property
    def rows_in_memory(self) -> int:
        return sum(len(page) for page in self._pages.values())

    def row_at(self, index: int) -> RowT | None:
        """The row, if it has been read; asks for its page otherwise."""
        if not 0 <= index < self._count:
            return None
        page = self._pages.get(index // PAGE_ROWS)
        if page is None:
            self._want(index // PAGE_ROWS)
            return None
        offset = index % PAGE_ROWS
        return page[offset] if offset < len(page) else None

    @property
    def current(self) -> RowT | None:
        """The row under the cursor."""
        return self.row_at(self.cursor)

    async def all_rows(self) -> list[RowT]:
        """Every row, read page by page: for exports only."""
        rows: list[RowT] = []
        for number in range(-(-self._count // PAGE_ROWS)):
            page = self._pages.get(number)
            if page is None and self._fetch is not None:
                page = tuple(await self._fetch(number * PAGE_ROWS, PAGE_ROWS))
            rows += page or ()
        return rows

    def _want(self, page: int) -> None:
        if self._fetch is None or page in self._wanted:
            return
        self._wanted.add(page)
        self._read_page(page, self._fetch)

    @work(group="pages", exit_on_error=False)
    async def _read_page(self, page: int, fetch: Fetch[RowT]) -> None:
        generation = self._generation
        rows = tuple(await fetch(page * PAGE_ROWS, PAGE_ROWS))
        if generation != self._generation:
            return
        self._wanted.discard(page)
        self._pages[page] = rows
        while len(self._pages) > _KEPT_PAGES:
            self._pages.pop(next(iter(self._pages)))
        self.refresh()
        if self.cursor // PAGE_ROWS == page:
            self._announce()

    # -- drawing

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y < self._header_rows:
            return self._header(width)
        index = self.scroll_offset.y + y - self._header_rows
        if index >= self._count:
            text = self._empty if self._count == 0 and y == self._header_rows else ""
            return self._strip([(" " * _GUTTER, "text"), (text, "muted")], width, self.rich_style)
        row = self.row_at(index)
        selected = index == self.cursor
        style = self.rich_style + self._cursor_style() if selected else self.rich_style
        gutter = "▌ " if selected and self.has_focus else "▏ " if selected else "  "
        spans: list[Span] = [(gutter, "heading")]
        spans += self._cells(row, width - _GUTTER) if row is not None else [("…", "faint")]
        return self._strip(spans, width, style)

    def _cursor_style(self) -> Style:
        name = "cursor" if self.has_focus else "cursor-blurred"
        component = self.get_component_rich_style(f"virtual-list--{name}", partial=True)
        return component

    def _header(self, width: int) -> Strip:
        spans: list[Span] = [(" " * _GUTTER, "muted")]
        for number, (column, size) in enumerate(share_widths(self.columns, width - _GUTTER)):
            if number:
                spans.append((" " * GAP, "muted"))
            spans.append((fit(column.title, size, align=column.align), "muted"))
        return self._strip(spans, width, self.rich_style)

    def _cells(self, row: RowT, width: int) -> list[Span]:
        spans: list[Span] = []
        for number, (column, size) in enumerate(share_widths(self.columns, width)):
            if number:
                spans.append((" " * GAP, "text"))
            text, tone = column.cell(row)
            spans.append((fit(clean(text), size, align=column.align, keep=column.keep), tone))
        return spans

    def _strip(self, spans: Sequence[Span], width: int, style: Style) -> Strip:
        segments = [Segment(text, self.tones[tone] + _background(style)) for text, tone in spans]
        return Strip(segments).adjust_cell_length(width, style)

    # -- cursor

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, self._count - 1))

    def watch_cursor(self, _before: int, cursor: int) -> None:
        self._show_cursor()
        self.refresh()
        self._announce()

    def _announce(self) -> None:
        row = self.current
        if row is not None and row is not self._announced:
            self._announced = row
            self.post_message(self.Highlighted(self, row))

    def scroll_to_row(self, index: int) -> None:
        """Bring a row into view; the header stays where it is."""
        height = max(1, self.scrollable_content_region.height - self._header_rows)
        top = self.scroll_offset.y
        if index < top:
            self.scroll_to(y=index, animate=False, force=True, immediate=True)
        elif index >= top + height:
            self.scroll_to(y=index - height + 1, animate=False, force=True, immediate=True)

    def _show_cursor(self) -> None:
        """Scroll to the cursor, again once new rows or a new size have been laid out."""
        self.scroll_to_row(self.cursor)
        self.call_after_refresh(lambda: self.scroll_to_row(self.cursor))

    def on_resize(self, _event: events.Resize) -> None:
        self._show_cursor()

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        index = self.scroll_offset.y + event.get_content_offset_capture(self).y - self._header_rows
        if not 0 <= index < self._count:
            return
        if index == self.cursor:
            self.action_select()
        self.cursor = index

    def action_move(self, amount: int) -> None:
        self.cursor += amount

    def action_page(self, direction: int) -> None:
        rows = max(1, self.scrollable_content_region.height - self._header_rows - 1)
        self.cursor += direction * rows

    def action_first(self) -> None:
        self.cursor = 0

    def action_last(self) -> None:
        self.cursor = self._count - 1

    def action_select(self) -> None:
        row = self.current
        if row is not None:
            self.post_message(self.Selected(self, row))

    # -- text

    def row_text(self, row: RowT) -> str:
        """A row as one line of text, columns separated by two spaces."""
        return "  ".join(clean(column.cell(row)[0]) for column in self.columns).strip()

    def copy_text(self) -> str:
        """What the copy key takes."""
        row = self.current
        return "" if row is None else self.row_text(row)

    async def export_text(self) -> str:
        """All rows as aligned text."""
        rows = [[clean(c.cell(row)[0]) for c in self.columns] for row in await self.all_rows()]
        table = [[column.title for column in self.columns], *rows]
        widths = [max(len(line[n]) for line in table) for n in range(len(self.columns))]
        return "\n".join(
            "  ".join(
                fit(cell, width, align=column.align)
                for cell, width, column in zip(cells, widths, self.columns, strict=True)
            ).rstrip()
            for cells in table
        )


def _background(style: Style) -> Style:
    return Style(bgcolor=style.bgcolor, bold=style.bold)
