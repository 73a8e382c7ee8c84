"""Memory: live bytes over the step by category, the peak, and what is alive there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from autosp_inspector.rows import EstimateRow, LiveTensorRow, Source
from autosp_tui.bindings import bindings_of
from autosp_tui.describe import describe_point
from autosp_tui.present import Span, format_bytes, format_share, format_tensor, line, plural
from autosp_tui.screens.view import View, matches
from autosp_tui.snapshots import Memory, read_memory
from autosp_tui.theme import CATEGORY_FILLS, category_fill, category_tone
from autosp_tui.widgets.columns import Column
from autosp_tui.widgets.curve import Curve
from autosp_tui.widgets.detail import Detail
from autosp_tui.widgets.virtual_list import VirtualList


def _category(row: LiveTensorRow) -> Span:
    name = row.category.replace("_", " ")
    return f"{category_fill(row.category)} {name}", category_tone(row.category)


def _fit(estimate: EstimateRow) -> tuple[str, str]:
    if estimate.is_close:
        return "too close to say", "warning"
    return ("fits", "good") if estimate.fits else ("does not fit", "bad")


def _created(source: Source | None) -> str:
    return "" if source is None else f"{source.file.rsplit('/', 1)[-1]}:{source.line}"


_LIVE = (
    Column[LiveTensorRow](
        "bytes", lambda row: (format_bytes(row.bytes), "strong"), 8, align="right"
    ),
    Column[LiveTensorRow]("category", _category, 13),
    Column[LiveTensorRow]("node", lambda row: (row.node, "operator"), 12, grow=2),
    Column[LiveTensorRow](
        "tensor", lambda row: (format_tensor(row.dtype, row.shape), "text"), 16, grow=1
    ),
    Column[LiveTensorRow](
        "created at", lambda row: (_created(row.created_by), "source"), 14, grow=1, from_width=74
    ),
    Column[LiveTensorRow](
        "last used by", lambda row: (row.last_used_by, "muted"), 14, grow=1, from_width=96
    ),
    Column[LiveTensorRow](
        "module", lambda row: (row.module, "module"), 20, grow=2, keep="end", from_width=124
    ),
)
_SORTS = ("largest first", "by category", "by module")
_PHASES = ("all", "forward", "backward", "optimizer")


class MemoryView(View):
    """The curve with its cursor, and the tensors alive at the peak."""

    NAME: ClassVar[str] = "memory"
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("memory")
    FILTER_HINT: ClassVar[str] = "filter what is alive by node, category, module or source file"

    _memory = Memory((), (), None)
    _sort = 0
    _phase = "all"

    def compose_body(self) -> Iterable[Widget]:
        yield Curve(id="curve")
        yield Detail(title="Here", id="detail")
        yield VirtualList(_LIVE, empty="nothing was recorded", title="Alive at the peak", id="live")

    def main_pane(self) -> Widget:
        return self.query_one("#live" if self.filter_text else "#curve")

    def read(self) -> None:
        self.load(read_memory, self._show)

    def _show(self, memory: Memory) -> None:
        self._memory = memory
        self._fill_curve()
        self._fill_live()
        self.main_pane().focus()

    def _fill_curve(self) -> None:
        rows = [row for row in self._memory.curve if self._phase in ("all", row.phase)]
        present = {name for row in rows for name, size in row.categories.items() if size}
        order = [name for name in CATEGORY_FILLS if name in present]
        order += sorted(present.difference(order))
        curve = self.query_one("#curve", Curve)
        curve.show(rows, order)
        self.title_pane(curve, f"Live memory · {self._phase}")
        self._show_totals()
        if not rows:
            self.query_one("#detail", Detail).show(())

    def _show_totals(self) -> None:
        estimate = self._memory.estimate
        if estimate is None:
            self.show_status(("memory was not modelled for this run", "warning"))
            return
        spans: list[Span] = [(f"peak {format_bytes(estimate.peak_live_bytes)}", "strong")]
        if estimate.capacity_bytes is not None:
            share = format_share(estimate.peak_live_bytes, estimate.capacity_bytes)
            word, tone = _fit(estimate)
            spans.append((f"  {word}: {share} of {format_bytes(estimate.capacity_bytes)}", tone))
        spans.append((f"  {estimate.peak_phase} ", "muted"))
        spans.append((estimate.peak_node, "operator"))
        source = _created(estimate.peak_source)
        spans.append((f"  {source}" if source else "", "source"))
        self.show_status(*spans)

    def _fill_live(self) -> None:
        rows = [
            row
            for row in self._memory.live
            if matches(
                self.filter_text, row.node, row.category, row.module, _created(row.created_by)
            )
        ]
        keys = {
            "largest first": lambda row: ("", -row.bytes),
            "by category": lambda row: (row.category, -row.bytes),
            "by module": lambda row: (row.module, -row.bytes),
        }
        rows.sort(key=keys[_SORTS[self._sort]])
        live = self.query_one("#live", VirtualList)
        live.show_rows(rows)
        size = format_bytes(sum(row.bytes for row in rows))
        self.title_pane(
            live,
            f"Alive at the peak · {plural(len(rows), 'tensor')}, {size} · {_SORTS[self._sort]}",
        )

    def apply_filter(self) -> None:
        self._fill_live()
        self._show_totals()

    @on(Curve.Moved)
    def _point_changed(self, event: Curve.Moved) -> None:
        curve = self.query_one("#curve", Curve)
        is_peak = curve.position == curve.peak
        pane = self.query_one("#detail", Detail)
        estimate = self._memory.estimate
        source = estimate.peak_source if estimate is not None and is_peak else None
        lines = describe_point(event.point, curve.order, is_peak=is_peak, source=source)
        if estimate is not None and estimate.not_modelled:
            missing = ", ".join(estimate.not_modelled)
            lines += [line(), line((f"not modelled: {missing}", "muted"), indent=2)]
        pane.show(lines)
        self.title_pane(pane, "Peak" if is_peak else "Here")

    @on(Curve.Selected)
    def _point_chosen(self, event: Curve.Selected) -> None:
        self._open(event.point.node, event.point.phase)

    @on(VirtualList.Selected, "#live")
    def _tensor_chosen(self, event: VirtualList.Selected) -> None:
        if isinstance(event.row, LiveTensorRow):
            self._open(event.row.node, event.row.phase)

    def _open(self, node: str, phase: str) -> None:
        if node:
            self.post_message(self.OpenNode(node, (phase, "program", "joint")))

    def action_match(self, amount: int) -> None:
        live = self.query_one("#live", VirtualList)
        live.focus()
        if live.row_count:
            live.cursor = (live.cursor + amount) % live.row_count

    def action_peak(self) -> None:
        curve = self.query_one("#curve", Curve)
        curve.focus()
        curve.go_to(curve.peak)

    def action_next_phase(self) -> None:
        self._phase = _PHASES[(_PHASES.index(self._phase) + 1) % len(_PHASES)]
        self._fill_curve()

    def action_sort(self) -> None:
        self._sort = (self._sort + 1) % len(_SORTS)
        self._fill_live()
