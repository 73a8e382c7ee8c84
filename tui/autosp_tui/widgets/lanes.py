"""Timeline lanes: one for computation, one for each communication stream."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from autosp_inspector.rows import TimelineRow
from autosp_tui.bindings import bindings_of
from autosp_tui.present import Span, clean, fit, format_duration, short_target
from autosp_tui.theme import Tones
from autosp_tui.widgets.scale import Window

COMPUTE_FILLS = ("█", "▓")
"""Neighbouring computations alternate, so that their border shows."""
HIDDEN_FILL = "░"
EXPOSED_FILL = "╳"
PARTLY_EXPOSED_FILL = "×"
"""Less than half of the column's time is exposed communication."""
IDLE_FILL = "·"
_LABEL_CELLS = 9
_MIN_LABEL_CELLS = 4
_ROWS_PER_LANE = 2
_HEAD_ROWS = 2


@dataclass(frozen=True, slots=True)
class Lane:
    """Events of one stream, by start."""

    stream: str
    events: tuple[TimelineRow, ...]
    starts: tuple[int, ...]

    @property
    def is_compute(self) -> bool:
        return self.stream == "compute"

    def between(self, start_ns: float, end_ns: float) -> range:
        """Indices of the events that touch a stretch (events of a stream do not overlap)."""
        first = max(0, bisect_right(self.starts, start_ns) - 1)
        if first < len(self.events) and end_of(self.events[first]) <= start_ns:
            first += 1
        return range(first, bisect_left(self.starts, end_ns))


def end_of(event: TimelineRow) -> int:
    """When an event ends."""
    return event.start_ns + event.duration_ns


def lanes_of(rows: Sequence[TimelineRow]) -> tuple[Lane, ...]:
    """The rows by stream, computation first."""
    streams = sorted({row.stream for row in rows}, key=lambda name: (name != "compute", name))
    lanes = []
    for stream in streams:
        chosen = sorted((r for r in rows if r.stream == stream), key=lambda r: r.start_ns)
        lanes.append(Lane(stream, tuple(chosen), tuple(row.start_ns for row in chosen)))
    return tuple(lanes)


def column_fill(lane: Lane, window: Window, column: int) -> tuple[Span, int | None]:
    """Glyph, tone and event of one column.

    The event that fills most of the column gives the column its look, except that exposed
    communication always shows, however many events share the column: as
    :data:`EXPOSED_FILL` where it takes half of the time or more.
    """
    start, end = window.bounds_of(column)
    touching = lane.between(start, end)
    if not touching:
        return (IDLE_FILL, "faint"), None
    exposed = [_overlap(exposed_from(lane.events[n]), lane.events[n], start, end) for n in touching]
    if any(exposed):
        fill = EXPOSED_FILL if sum(exposed) * 2 >= end - start else PARTLY_EXPOSED_FILL
        return (fill, "exposed"), touching[exposed.index(max(exposed))]
    best = max(
        touching, key=lambda n: _overlap(lane.events[n].start_ns, lane.events[n], start, end)
    )
    if lane.is_compute:
        return (COMPUTE_FILLS[best % 2], ("compute", "compute_alternate")[best % 2]), best
    return (HIDDEN_FILL, "hidden"), best


def exposed_from(event: TimelineRow) -> int:
    """Where the exposed part of an event begins: it is drawn at the end, where the wait is."""
    return end_of(event) - (event.exposed_ns or 0)


def _overlap(begin_ns: int, event: TimelineRow, start: float, end: float) -> float:
    return max(0.0, min(end, end_of(event)) - max(start, begin_ns))


class Lanes(Widget, can_focus=True):
    """Bars over time with one selected event, zoom and pan."""

    PANE: ClassVar[tuple[str, ...]] = ("lanes",)
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("lanes")

    class Moved(Message):
        """Another event is selected."""

        def __init__(self, event: TimelineRow) -> None:
            self.event = event
            super().__init__()

    class Selected(Moved):
        """Enter on the selected event."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.tones = Tones(self)
        self.pane_title = "Timeline"
        self.lanes: tuple[Lane, ...] = ()
        self.window = Window.whole(1, 1)
        self._lane = 0
        self._index = 0
        self._bar_cache: dict[int, tuple[Window, list[Span]]] = {}

    # -- contents

    def show(self, rows: Sequence[TimelineRow]) -> None:
        """Show events; the whole of their time."""
        self.lanes = lanes_of(rows)
        self._lane = self._index = 0
        self._bar_cache = {}
        self.styles.height = self.rows_needed + 1
        self._reset_window()
        self._moved()

    @property
    def rows_needed(self) -> int:
        """Rows for ruler, phases and lanes."""
        return _HEAD_ROWS + _ROWS_PER_LANE * max(1, len(self.lanes))

    def _reset_window(self) -> None:
        ends = [end_of(lane.events[-1]) for lane in self.lanes if lane.events]
        self.window = Window.whole(max(ends, default=1), self._columns)
        self.refresh()

    @property
    def _columns(self) -> int:
        return max(1, self.content_size.width - _LABEL_CELLS)

    @property
    def current(self) -> TimelineRow | None:
        """The selected event."""
        if not self.lanes or not self.lanes[self._lane].events:
            return None
        return self.lanes[self._lane].events[self._index]

    def select_event(self, event: TimelineRow) -> None:
        """Select an event and bring it into view."""
        for number, lane in enumerate(self.lanes):
            if lane.stream == event.stream and event in lane.events:
                self._lane, self._index = number, lane.events.index(event)
                self._moved()

    def _moved(self) -> None:
        event = self.current
        if event is not None:
            self.window = self.window.showing(event.start_ns, end_of(event))
            self.post_message(self.Moved(event))
        self.refresh()

    def on_resize(self, _event: events.Resize) -> None:
        self.window = self.window.resized(self._columns)
        self.refresh()

    # -- drawing

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        if self.window.columns != self._columns:
            self.window = self.window.resized(self._columns)
        if y == 0:
            spans = self._ruler()
        elif y == 1:
            spans = self._phases()
        else:
            number, row = divmod(y - _HEAD_ROWS, _ROWS_PER_LANE)
            if number >= len(self.lanes):
                return Strip.blank(width, self.rich_style)
            spans = self._bars(number) if row == 0 else self._labels(number)
        base = Style(bgcolor=self.rich_style.bgcolor)
        segments = [Segment(text, self.tones[tone] + base) for text, tone in spans]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _ruler(self) -> list[Span]:
        columns, step = self.window.columns, 16
        marks = ""
        for column in range(0, columns, step):
            label = f"╷{format_duration(round(self.window.bounds_of(column)[0]))}"
            marks += fit(label, min(step, columns - column))
        return [(fit("time", _LABEL_CELLS), "muted"), (marks, "muted")]

    def _phases(self) -> list[Span]:
        bounds: dict[str, tuple[int, int]] = {}
        for lane in self.lanes:
            for event in lane.events:
                low, high = bounds.get(event.phase, (event.start_ns, end_of(event)))
                bounds[event.phase] = min(low, event.start_ns), max(high, end_of(event))
        spans: list[Span] = [(" " * _LABEL_CELLS, "muted")]
        position = 0
        for phase, (low, high) in sorted(bounds.items(), key=lambda item: item[1]):
            first = max(position, self.window.column_of(low), 0)
            last = min(self.window.columns, self.window.column_of(high) + 1)
            if last <= first:
                continue
            spans.append((" " * (first - position), "muted"))
            spans.append((fit(f"├ {clean(phase)} ", last - first).replace("  ", "──"), "heading"))
            position = last
        return spans

    def _bars(self, number: int) -> list[Span]:
        lane = self.lanes[number]
        selected = number == self._lane
        marker = "▶" if selected and self.has_focus else "▷" if selected else " "
        tone = "strong" if selected else "muted"
        spans: list[Span] = [(marker + fit(clean(lane.stream), _LABEL_CELLS - 1), tone)]
        return spans + self._fills(number)

    def _fills(self, number: int) -> list[Span]:
        window, fills = self._bar_cache.get(number, (None, []))
        if window != self.window:
            lane = self.lanes[number]
            fills = [column_fill(lane, self.window, c)[0] for c in range(self.window.columns)]
            self._bar_cache[number] = self.window, fills
        return fills

    def _labels(self, number: int) -> list[Span]:
        lane = self.lanes[number]
        row = [" "] * self.window.columns
        for index in lane.between(self.window.start, self.window.end):
            self._put_label(row, lane.events[index])
        spans: list[Span] = [(" " * _LABEL_CELLS, "muted")]
        event = self.current
        if number != self._lane or event is None:
            return [*spans, ("".join(row), "muted")]
        first = min(max(0, self.window.column_of(event.start_ns)), self.window.columns - 1)
        last = max(first, min(self.window.columns, self.window.column_of(end_of(event))) - 1)
        under = "▲" if last == first else "╰" + "─" * (last - first - 1) + "╯"
        before, after = "".join(row[:first]), "".join(row[last + 1 :])
        return [*spans, (before, "muted"), (under, "strong"), (after, "muted")]

    def _put_label(self, row: list[str], event: TimelineRow) -> None:
        first = max(0, self.window.column_of(event.start_ns))
        last = min(len(row), self.window.column_of(end_of(event)))
        label = short_target(clean(event.label))
        if last - first < _MIN_LABEL_CELLS or not label.isascii():
            return
        row[first : last - 1] = fit(label, last - first - 1)

    # -- moving

    def action_step(self, amount: int) -> None:
        self._go_to(self._index + amount)

    def action_first(self) -> None:
        self._go_to(0)

    def action_last(self) -> None:
        if self.lanes:
            self._go_to(len(self.lanes[self._lane].events) - 1)

    def _go_to(self, index: int) -> None:
        if self.lanes:
            self._index = max(0, min(index, len(self.lanes[self._lane].events) - 1))
            self._moved()

    def action_lane(self, amount: int) -> None:
        if not self.lanes:
            return
        before = self.current
        self._lane = max(0, min(self._lane + amount, len(self.lanes) - 1))
        lane = self.lanes[self._lane]
        time = before.start_ns if before is not None else 0
        self._index = max(0, min(bisect_left(lane.starts, time), len(lane.events) - 1))
        self._moved()

    def action_zoom(self, direction: int) -> None:
        event = self.current
        centre = event.start_ns + event.duration_ns / 2 if event is not None else 0.0
        self.window = self.window.zoomed(direction, centre)
        self.refresh()

    def action_pan(self, direction: int) -> None:
        self.window = self.window.panned(direction)
        self.refresh()

    def action_whole(self) -> None:
        self._reset_window()

    def action_select(self) -> None:
        event = self.current
        if event is not None:
            self.post_message(self.Selected(event))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset_capture(self)
        number, column = (offset.y - _HEAD_ROWS) // _ROWS_PER_LANE, offset.x - _LABEL_CELLS
        if not 0 <= number < len(self.lanes) or not 0 <= column < self.window.columns:
            return
        found = column_fill(self.lanes[number], self.window, column)[1]
        if found is not None:
            self._lane, self._index = number, found
            self._moved()

    # -- text

    def copy_text(self) -> str:
        event = self.current
        return "" if event is None else clean(event.node)

    async def export_text(self) -> str:
        rows = ["start_ns duration_ns exposed_ns stream phase node"]
        for lane in self.lanes:
            rows += [
                f"{e.start_ns} {e.duration_ns} {e.exposed_ns or 0} {clean(e.stream)} "
                f"{clean(e.phase)} {clean(e.node)}"
                for e in lane.events
            ]
        return "\n".join(rows)
