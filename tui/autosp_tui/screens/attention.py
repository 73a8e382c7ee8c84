"""Attention: which form each takes, and the work of every rank in a ring."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from autosp_inspector.queries.attention import list_attention
from autosp_inspector.report.attention import busiest_of_mean
from autosp_inspector.rows import AttentionRow
from autosp_tui.bindings import bindings_of
from autosp_tui.describe_attention import describe_attention
from autosp_tui.present import Span, format_bytes, plural
from autosp_tui.screens.view import View, matches
from autosp_tui.widgets.columns import Column
from autosp_tui.widgets.detail import Detail
from autosp_tui.widgets.virtual_list import VirtualList


def _busiest(row: AttentionRow) -> Span:
    share = busiest_of_mean(row.work)
    return f"{share:.2f}", "good" if share < 1.05 else "warning"


def _where(row: AttentionRow) -> Span:
    piece = "" if row.piece is None else f"piece {row.piece}  "
    return f"{piece}{row.module or row.node}", "module"


_COLUMNS = (
    Column[AttentionRow]("module", _where, 24, grow=2, keep="end"),
    Column[AttentionRow]("form", lambda row: (row.form, "collective"), 18),
    Column[AttentionRow]("mask", lambda row: (row.mask, "text"), 18, grow=2),
    Column[AttentionRow](
        "heads", lambda row: (f"{row.heads_per_rank}/{row.num_heads}", "text"), 7, align="right"
    ),
    Column[AttentionRow](
        "kept", lambda row: (format_bytes(row.kept_bytes), "text"), 9, align="right", from_width=90
    ),
    Column[AttentionRow](
        "in flight",
        lambda row: (format_bytes(row.in_flight_bytes) if row.num_ring > 1 else "", "text"),
        9,
        align="right",
        from_width=104,
    ),
    Column[AttentionRow]("busiest", _busiest, 7, align="right"),
)


class AttentionView(View):
    """Every attention whose tokens are sharded."""

    NAME: ClassVar[str] = "attention"
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("attention")
    FILTER_HINT: ClassVar[str] = "filter by module, form, mask or reason"

    _rows: tuple[AttentionRow, ...] = ()

    def compose_body(self) -> Iterable[Widget]:
        empty = "no attention with sharded tokens, or a trace of an older version"
        yield VirtualList(_COLUMNS, empty=empty, title="Attention", id="rows")
        yield Detail(title="Who computes what", id="detail")

    def read(self) -> None:
        self.load(list_attention, self._show)

    def _show(self, rows: tuple[AttentionRow, ...]) -> None:
        self._rows = rows
        self.apply_filter()
        self.main_pane().focus()

    def apply_filter(self) -> None:
        rows = [row for row in self._rows if self._shows(row)]
        self.query_one("#rows", VirtualList).show_rows(rows)
        forms = sorted({row.form for row in rows})
        self.show_status(
            (plural(len(rows), "attention"), "strong"),
            (f"  {', '.join(forms)}" if forms else "", "collective"),
            ("  work and bytes are estimates", "muted"),
        )
        if not rows:
            self.query_one("#detail", Detail).show(())

    def _shows(self, row: AttentionRow) -> bool:
        return matches(
            self.filter_text, row.node, row.module, row.form, row.mask, row.chosen, row.reason
        )

    @on(VirtualList.Highlighted, "#rows")
    def _row_changed(self, event: VirtualList.Highlighted) -> None:
        if isinstance(event.row, AttentionRow):
            self.query_one("#detail", Detail).show(describe_attention(event.row))

    @on(VirtualList.Selected, "#rows")
    def _row_chosen(self, event: VirtualList.Selected) -> None:
        row = event.row
        if isinstance(row, AttentionRow):
            self.post_message(self.OpenNode(row.node, ("program",), piece=row.piece))
