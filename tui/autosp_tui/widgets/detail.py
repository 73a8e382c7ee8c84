"""A pane of wrapped text that scrolls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from autosp_tui.bindings import bindings_of
from autosp_tui.present import Line, clean
from autosp_tui.theme import Tones


class Detail(ScrollView, can_focus=True):
    """Lines of toned text, wrapped to the width, with a hanging indent."""

    PANE: ClassVar[tuple[str, ...]] = ("detail",)
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("detail")
    DEFAULT_CSS = """
    Detail { overflow-x: hidden; scrollbar-size-vertical: 1; padding: 0 1; }
    """

    def __init__(self, *, title: str = "", id: str | None = None) -> None:
        super().__init__(id=id)
        self.tones = Tones(self)
        self.pane_title = title
        self._lines: tuple[Line, ...] = ()
        self._wrapped: list[Text] = []
        self._wrapped_for: tuple[int, str] = (0, "")

    def show(self, lines: Sequence[Line]) -> None:
        """Replace the text and go to its top."""
        self._lines = tuple(lines)
        self._wrapped_for = (0, "")
        self.scroll_to(y=0, animate=False)
        self._wrap()
        self.refresh()

    @property
    def plain_text(self) -> str:
        """The whole text, not wrapped."""
        return "\n".join(clean(line.text).rstrip() for line in self._lines)

    def copy_text(self) -> str:
        return self.plain_text

    async def export_text(self) -> str:
        return self.plain_text

    def on_resize(self, _event: events.Resize) -> None:
        self._wrap()

    def _wrap(self) -> None:
        width = self.scrollable_content_region.width
        if width <= 0 or self._wrapped_for == (width, self.app.theme):
            return
        self._wrapped_for = (width, self.app.theme)
        self._wrapped = [row for line in self._lines for row in self._wrap_line(line, width)]
        self.virtual_size = Size(width, len(self._wrapped))

    def _wrap_line(self, line: Line, width: int) -> list[Text]:
        text = Text.assemble(*((clean(part), self.tones[tone]) for part, tone in line.spans))
        if text.cell_len <= width:
            return [text]
        indent = line.indent if line.indent < width // 2 else 2
        first = text.wrap(self.app.console, width)[0]
        rest = text[len(first.plain) :]
        wrapped = rest.wrap(self.app.console, width - indent)
        rows = [first]
        for row in wrapped:
            stripped = row[len(row.plain) - len(row.plain.lstrip()) :]
            rows.append(Text(" " * indent) + stripped)
        return rows

    def render_line(self, y: int) -> Strip:
        self._wrap()
        width = self.scrollable_content_region.width
        base = self.rich_style
        index = self.scroll_offset.y + y
        if index >= len(self._wrapped):
            return Strip.blank(width, base)
        background = Style(bgcolor=base.bgcolor, color=base.color)
        segments = [
            Segment(segment.text, background + (segment.style or Style()))
            for segment in self._wrapped[index].render(self.app.console)
        ]
        return Strip(segments).adjust_cell_length(width, base)

    def action_scroll(self, amount: int) -> None:
        self.scroll_to(y=self.scroll_offset.y + amount, animate=False)

    def action_turn(self, direction: int) -> None:
        self.action_scroll(direction * max(1, self.scrollable_content_region.height - 1))

    def action_top(self) -> None:
        self.scroll_to(y=0, animate=False)

    def action_bottom(self) -> None:
        self.scroll_to(y=self.max_scroll_y, animate=False)
