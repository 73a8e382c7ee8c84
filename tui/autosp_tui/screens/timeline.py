"""Timeline: computation and communication over the step, and what is exposed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from autosp_inspector.rows import TimelineRow
from autosp_tui.bindings import bindings_of
from autosp_tui.describe import describe_event
from autosp_tui.present import Span, format_duration, format_share, line, short_target
from autosp_tui.screens.view import View, matches
from autosp_tui.snapshots import Timeline, read_timeline
from autosp_tui.widgets.bar import Bar
from autosp_tui.widgets.columns import Column
from autosp_tui.widgets.detail import Detail
from autosp_tui.widgets.lanes import (
    COMPUTE_FILLS,
    EXPOSED_FILL,
    HIDDEN_FILL,
    IDLE_FILL,
    PARTLY_EXPOSED_FILL,
    Lanes,
)
from autosp_tui.widgets.virtual_list import VirtualList


def _exposed(row: TimelineRow) -> Span:
    if row.exposed_ns is None:
        return "", "muted"
    if row.exposed_ns == 0:
        return "hidden", "good"
    return f"{EXPOSED_FILL} {format_duration(row.exposed_ns)}", "exposed"


_EVENTS = (
    Column[TimelineRow]("exposed", _exposed, 9, align="right"),
    Column[TimelineRow](
        "time", lambda row: (format_duration(row.duration_ns), "text"), 8, align="right"
    ),
    Column[TimelineRow](
        "start", lambda row: (format_duration(row.start_ns), "muted"), 8, align="right"
    ),
    Column[TimelineRow]("stream", lambda row: (row.stream, "muted"), 8),
    Column[TimelineRow](
        "what", lambda row: (short_target(row.label or row.node), "text"), 16, grow=1
    ),
    Column[TimelineRow]("phase", lambda row: (row.phase, "muted"), 9, from_width=84),
    Column[TimelineRow](
        "module", lambda row: (row.module, "module"), 20, grow=1, keep="end", from_width=96
    ),
)
_LEGEND: tuple[Span, ...] = (
    ("  ", "muted"),
    (f"{COMPUTE_FILLS[0]}", "compute"),
    (f"{COMPUTE_FILLS[1]}", "compute_alternate"),
    (" compute  ", "muted"),
    (HIDDEN_FILL * 2, "hidden"),
    (" communication: hidden  ", "muted"),
    (EXPOSED_FILL * 2, "exposed"),
    (" exposed  ", "muted"),
    (PARTLY_EXPOSED_FILL * 2, "exposed"),
    (" partly exposed  ", "muted"),
    (IDLE_FILL * 2, "faint"),
    (" idle", "muted"),
)
_SORTS = ("longest exposed first", "longest first", "in order")
_PHASES = ("all", "forward", "backward", "optimizer")


class TimelineView(View):
    """Lanes above, the events as a list below."""

    NAME: ClassVar[str] = "timeline"
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("timeline")
    FILTER_HINT: ClassVar[str] = "filter events by name, node, module or stream"

    _timeline = Timeline((), None)
    _sort = 0
    _phase = "all"

    def compose_body(self) -> Iterable[Widget]:
        yield Lanes(id="lanes")
        yield Bar(id="legend")
        yield Detail(title="Event", id="detail")
        yield VirtualList(_EVENTS, empty="no event was recorded", title="Events", id="events")

    def main_pane(self) -> Widget:
        return self.query_one("#events" if self.filter_text else "#lanes")

    def read(self) -> None:
        self.load(read_timeline, self._show)

    def _show(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.query_one("#legend", Bar).show(_LEGEND)
        self._fill_lanes()
        self._fill_events()
        if timeline.not_estimated:
            why = line((timeline.not_estimated, "warning"), indent=2)
            self.query_one("#detail", Detail).show((why,))
        self.main_pane().focus()

    def _in_phase(self) -> list[TimelineRow]:
        rows = self._timeline.events
        return [row for row in rows if self._phase in ("all", row.phase)]

    def _fill_lanes(self) -> None:
        lanes = self.query_one("#lanes", Lanes)
        lanes.show(self._in_phase())
        self.title_pane(lanes, f"Timeline · {self._phase}")
        self.show_status(*self._totals())

    def _totals(self) -> list[Span]:
        estimate = self._timeline.estimate
        if estimate is None or estimate.step_ns is None:
            return [
                (self._timeline.not_estimated or "time was not modelled for this run", "warning")
            ]
        share = format_share(estimate.exposed_ns, estimate.step_ns)
        return [
            (f"step {format_duration(estimate.step_ns)}", "strong"),
            (f"  compute {format_duration(estimate.compute_ns)}", "text"),
            (f"  exposed {format_duration(estimate.exposed_ns)} ({share})", "exposed"),
            (f"  hidden {format_duration(estimate.hidden_ns)}", "muted"),
            ("  estimated", "muted"),
        ]

    def _fill_events(self) -> None:
        rows = [
            row
            for row in self._in_phase()
            if matches(self.filter_text, row.label, row.node, row.module, row.stream)
        ]
        order = _SORTS[self._sort]
        if order == "longest exposed first":
            rows.sort(key=lambda row: (-(row.exposed_ns or 0), -row.duration_ns))
        elif order == "longest first":
            rows.sort(key=lambda row: -row.duration_ns)
        events = self.query_one("#events", VirtualList)
        events.show_rows(rows)
        self.title_pane(events, f"Events · {order}")

    def apply_filter(self) -> None:
        self._fill_events()
        self.show_status(*self._totals())

    @on(Lanes.Moved)
    def _event_changed(self, event: Lanes.Moved) -> None:
        self.query_one("#detail", Detail).show(describe_event(event.event))

    @on(VirtualList.Highlighted, "#events")
    def _listed_event_changed(self, event: VirtualList.Highlighted) -> None:
        if isinstance(event.row, TimelineRow) and self.query_one("#events").has_focus:
            self.query_one("#lanes", Lanes).select_event(event.row)

    @on(Lanes.Selected)
    def _event_chosen(self, event: Lanes.Selected) -> None:
        self._open(event.event)

    @on(VirtualList.Selected, "#events")
    def _listed_event_chosen(self, event: VirtualList.Selected) -> None:
        if isinstance(event.row, TimelineRow):
            self._open(event.row)

    def _open(self, row: TimelineRow) -> None:
        self.post_message(self.OpenNode(row.node, (row.phase, "program", "joint")))

    def action_match(self, amount: int) -> None:
        events = self.query_one("#events", VirtualList)
        events.focus()
        if events.row_count:
            events.cursor = (events.cursor + amount) % events.row_count

    def action_next_phase(self) -> None:
        self._phase = _PHASES[(_PHASES.index(self._phase) + 1) % len(_PHASES)]
        self._fill_lanes()
        self._fill_events()

    def action_sort(self) -> None:
        self._sort = (self._sort + 1) % len(_SORTS)
        self._fill_events()
