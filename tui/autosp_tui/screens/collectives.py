"""Collectives: which, where, why, how large and how long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from autosp_inspector.queries.collectives import list_collectives
from autosp_inspector.rows import CollectiveRow
from autosp_tui.bindings import bindings_of
from autosp_tui.describe import describe_collective
from autosp_tui.present import Span, format_bytes, format_duration, kind_words, plural
from autosp_tui.screens.view import View, matches
from autosp_tui.snapshots import CollectiveDetail, read_collective
from autosp_tui.widgets.columns import Column
from autosp_tui.widgets.detail import Detail
from autosp_tui.widgets.virtual_list import VirtualList


def _exposed(row: CollectiveRow) -> Span:
    if row.exposed_ns == 0:
        return "hidden", "good"
    mark = "╳ " if row.exposed_ns else ""
    return mark + format_duration(row.exposed_ns), "exposed" if row.exposed_ns else "muted"


_COLUMNS = (
    Column[CollectiveRow]("kind", lambda row: (f"⇄ {kind_words(row.kind)}", "collective"), 16),
    Column[CollectiveRow]("phase", lambda row: (row.phase, "text"), 9),
    Column[CollectiveRow]("bytes", lambda row: (format_bytes(row.bytes), "text"), 8, align="right"),
    Column[CollectiveRow](
        "time", lambda row: (format_duration(row.duration_ns), "text"), 8, align="right"
    ),
    Column[CollectiveRow]("exposed", _exposed, 9, align="right"),
    Column[CollectiveRow](
        "from → to",
        lambda row: (f"{row.source_placement} → {row.target_placement}", "sharded"),
        22,
        grow=1,
        from_width=100,
    ),
    Column[CollectiveRow]("cause", lambda row: (row.cause, "operator"), 14, grow=1, keep="ends"),
    Column[CollectiveRow](
        "module", lambda row: (row.module, "module"), 22, grow=2, keep="end", from_width=124
    ),
    Column[CollectiveRow](
        "over", lambda row: (f"{row.axis}×{row.group_size}", "muted"), 6, from_width=134
    ),
)
_SORTS = ("in order", "by bytes", "by time", "by exposed time")
_PHASES = ("all", "forward", "backward")


class CollectivesView(View):
    """Everything the ranks send each other."""

    NAME: ClassVar[str] = "collectives"
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("collectives")
    FILTER_HINT: ClassVar[str] = "filter by kind, module, cause, reason or placement"

    _rows: tuple[CollectiveRow, ...] = ()
    _sort = 0
    _phase = "all"

    def compose_body(self) -> Iterable[Widget]:
        yield VirtualList(_COLUMNS, empty="no collective", title="Collectives", id="rows")
        yield Detail(title="Why", id="detail")

    def read(self) -> None:
        self.load(list_collectives, self._show)

    def _show(self, rows: tuple[CollectiveRow, ...]) -> None:
        self._rows = rows
        self.apply_filter()
        self.main_pane().focus()

    def apply_filter(self) -> None:
        rows = [row for row in self._rows if self._shows(row)]
        widget = self.query_one("#rows", VirtualList)
        widget.show_rows(self._sorted(rows))
        self.title_pane(widget, f"Collectives · {self._phase} · {_SORTS[self._sort]}")
        size = format_bytes(sum(row.bytes for row in rows))
        exposed = [row.exposed_ns for row in rows if row.exposed_ns is not None]
        own = sum(row.origin == "explicit" for row in rows)
        self.show_status(
            (plural(len(rows), "collective"), "strong"),
            (f"  {size} per rank and step", "text"),
            (f"  {format_duration(sum(exposed))} exposed" if exposed else "", "exposed"),
            (f"  {own} in your own code" if own else "", "muted"),
        )
        if not rows:
            self.query_one("#detail", Detail).show(())

    def _shows(self, row: CollectiveRow) -> bool:
        if self._phase != "all" and row.phase != self._phase:
            return False
        return matches(
            self.filter_text,
            row.kind,
            kind_words(row.kind),
            row.name,
            row.module,
            row.cause,
            row.reason,
            row.source_placement,
            row.target_placement,
        )

    def _sorted(self, rows: list[CollectiveRow]) -> list[CollectiveRow]:
        keys = {
            "by bytes": lambda row: row.bytes,
            "by time": lambda row: row.duration_ns or 0,
            "by exposed time": lambda row: row.exposed_ns or 0,
        }
        key = keys.get(_SORTS[self._sort])
        return sorted(rows, key=key, reverse=True) if key is not None else rows

    @on(VirtualList.Highlighted, "#rows")
    def _row_changed(self, event: VirtualList.Highlighted) -> None:
        row = event.row
        if isinstance(row, CollectiveRow):
            self.load(lambda trace: read_collective(trace, row), self._show_detail, group="detail")

    def _show_detail(self, detail: CollectiveDetail) -> None:
        self.query_one("#detail", Detail).show(describe_collective(detail))

    @on(VirtualList.Selected, "#rows")
    def _row_chosen(self, event: VirtualList.Selected) -> None:
        row = event.row
        if isinstance(row, CollectiveRow):
            target = (row.cause, ("program",)) if row.cause else (row.name, (row.graph,))
            self.post_message(self.OpenNode(*target))

    def action_next_phase(self) -> None:
        self._phase = _PHASES[(_PHASES.index(self._phase) + 1) % len(_PHASES)]
        self.apply_filter()

    def action_sort(self) -> None:
        self._sort = (self._sort + 1) % len(_SORTS)
        self.apply_filter()
