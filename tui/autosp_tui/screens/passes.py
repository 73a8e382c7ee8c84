"""Passes: what each did, before and after aligned by node, and its decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from autosp_inspector.queries.passes import list_passes
from autosp_inspector.rows import NodeChange, NodeRow, PassRow
from autosp_tui.bindings import bindings_of
from autosp_tui.describe import describe_decisions
from autosp_tui.present import (
    Span,
    format_duration,
    format_tensor,
    line,
    operator_words,
    placement_tone,
    short_target,
)
from autosp_tui.screens.view import View, matches
from autosp_tui.snapshots import GRAPH_ORDER, PassDetail, read_pass
from autosp_tui.widgets.columns import Column
from autosp_tui.widgets.detail import Detail
from autosp_tui.widgets.virtual_list import VirtualList

_MARK_TONES = {"+": "added", "-": "removed", "~": "changed", "=": "muted"}


def _count(mark: str, count: int) -> Span:
    return (f"{mark}{count}", _MARK_TONES[mark]) if count else ("·", "faint")


def _status(row: PassRow) -> Span:
    words = {"ok": ("✔", "good"), "failed": ("✖ failed", "bad"), "skipped": ("○ skipped", "muted")}
    return words.get(row.status, (row.status, "muted"))


_PASSES = (
    Column[PassRow]("#", lambda row: (str(row.index), "muted"), 2, align="right"),
    Column[PassRow]("pass", lambda row: (row.name, "strong"), 16, grow=1),
    Column[PassRow]("+", lambda row: _count("+", row.nodes_added), 7, align="right"),
    Column[PassRow]("-", lambda row: _count("-", row.nodes_removed), 6, align="right"),
    Column[PassRow]("~", lambda row: _count("~", row.nodes_changed), 6, align="right"),
    Column[PassRow](
        "why", lambda row: (str(row.decisions) if row.decisions else "·", "text"), 4, align="right"
    ),
    Column[PassRow](
        "time", lambda row: (format_duration(row.duration_ns), "text"), 8, align="right"
    ),
    Column[PassRow]("", _status, 9, from_width=64),
    Column[PassRow](
        "what it does", lambda row: (row.description, "muted"), 24, grow=4, from_width=100
    ),
)


def _node_of(change: NodeChange) -> NodeRow | None:
    return change.after or change.before


def _changed_name(change: NodeChange) -> Span:
    node = _node_of(change)
    return f"{change.mark} {node.name if node else ''}", _MARK_TONES.get(change.mark, "text")


def _side(node: NodeRow | None, other: NodeRow | None) -> Span:
    """One side of a row; where the placement is known it comes first."""
    if node is None:
        return "", "muted"
    tensor = format_tensor(node.dtype, node.local_shape or node.global_shape)
    if other is not None and other.target != node.target:
        return f"{short_target(node.target)} {tensor}", "strong"
    words = f"{node.placement} {tensor}" if node.placement else tensor
    return words or short_target(node.target), placement_tone(node.placement)


def _operator(change: NodeChange) -> Span:
    node = _node_of(change)
    return (operator_words(node.op, node.target) if node else ""), "operator"


def _what_differs(change: NodeChange) -> Span:
    before, after = change.before, change.after
    if before is None or after is None:
        node = _node_of(change)
        return (node.reason if node else ""), "muted"
    fields = ("target", "placement", "local_shape", "inputs", "saved", "recomputed", "module")
    changed = [name for name in fields if getattr(before, name) != getattr(after, name)]
    return ", ".join(name.replace("_", " ") for name in changed), "muted"


_CHANGES = (
    Column[NodeChange]("node", _changed_name, 20, grow=2, keep="ends"),
    Column[NodeChange]("before", lambda row: _side(row.before, row.after), 22, grow=2),
    Column[NodeChange]("after", lambda row: _side(row.after, row.before), 22, grow=2),
    Column[NodeChange]("operator", _operator, 14, grow=1, from_width=86),
    Column[NodeChange]("differs in, or why", _what_differs, 20, grow=2, from_width=112),
)
_SORTS = ("in order", "by time", "by changes")


def num_changes(row: PassRow) -> int:
    """Nodes that a pass added, removed or changed."""
    return row.nodes_added + row.nodes_removed + row.nodes_changed


class PassesView(View):
    """The pipeline, step by step."""

    NAME: ClassVar[str] = "passes"
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("passes")
    FILTER_HINT: ClassVar[str] = "filter passes (or, from before/after, nodes) by name"

    _passes: tuple[PassRow, ...] = ()
    _detail: PassDetail | None = None
    _graph: str | None = None
    _wanted: int | None = None
    _hide_unchanged_nodes = True
    _hide_unchanged_passes = False
    _sort = 0
    _filter_changes = False

    def compose_body(self) -> Iterable[Widget]:
        yield VirtualList(_PASSES, empty="no pass was recorded", title="Passes", id="passes")
        yield VirtualList(_CHANGES, empty="no node changed", title="Before/after", id="changes")
        yield Detail(title="Decisions", id="decisions")

    def main_pane(self) -> Widget:
        return self.query_one("#changes" if self._filter_changes else "#passes")

    def read(self) -> None:
        self.load(list_passes, self._show_passes)

    def _show_passes(self, passes: tuple[PassRow, ...]) -> None:
        self._passes = passes
        self._fill_passes()
        self.query_one("#passes").focus()
        if self._wanted is not None:
            self.show_pass(self._wanted)

    def show_pass(self, index: int) -> None:
        """Put the cursor on a pass."""
        if not self._passes:
            self._wanted = index
            return
        self._wanted = None
        rows = self._shown_passes()
        found = [number for number, row in enumerate(rows) if row.index == index]
        if found:
            self.query_one("#passes", VirtualList).cursor = found[0]

    def _shown_passes(self) -> list[PassRow]:
        text = "" if self._filter_changes else self.filter_text
        rows = [row for row in self._passes if matches(text, row.name, row.description)]
        if self._hide_unchanged_passes:
            rows = [row for row in rows if num_changes(row)]
        if _SORTS[self._sort] == "by time":
            rows.sort(key=lambda row: -(row.duration_ns or 0))
        elif _SORTS[self._sort] == "by changes":
            rows.sort(key=lambda row: -num_changes(row))
        return rows

    def _fill_passes(self) -> None:
        rows = self._shown_passes()
        widget = self.query_one("#passes", VirtualList)
        current = widget.current
        found = [
            n
            for n, row in enumerate(rows)
            if isinstance(current, PassRow) and row.index == current.index
        ]
        widget.show_rows(rows, cursor=found[0] if found else 0)
        only = " with changes" if self._hide_unchanged_passes else ""
        self.title_pane(widget, f"Passes{only} · {_SORTS[self._sort]}")
        if not rows:
            self._clear_pass()

    def _clear_pass(self) -> None:
        self._detail = None
        self.query_one("#changes", VirtualList).show_rows(())
        self.query_one("#decisions", Detail).show(())

    @on(VirtualList.Highlighted, "#passes")
    def _pass_changed(self, event: VirtualList.Highlighted) -> None:
        if isinstance(event.row, PassRow):
            self._read_pass(event.row)

    def _read_pass(self, row: PassRow) -> None:
        context = not self._hide_unchanged_nodes
        graph = self._graph
        self.load(
            lambda trace: read_pass(trace, row, graph, context), self._show_pass, group="pass"
        )

    def _show_pass(self, detail: PassDetail) -> None:
        self._detail = detail
        row = detail.pass_row
        options = "  ".join(f"{name}={value}" for name, value in row.options.items())
        self.show_status(
            (f"pass {row.index} {row.name}", "strong"),
            (f"  {row.description}", "text"),
            (f"  {options}", "muted"),
        )
        self._fill_changes()
        pane = self.query_one("#decisions", Detail)
        lines = describe_decisions(detail.decisions, named=True)
        pane.show(lines or [line(("this pass recorded no decision", "muted"))])
        self.title_pane(pane, f"Decisions of {row.name} · {len(detail.decisions)}")

    def _fill_changes(self) -> None:
        if self._detail is None:
            return
        text = self.filter_text if self._filter_changes else ""
        rows = [row for row in self._detail.changes if _change_matches(row, text)]
        widget = self.query_one("#changes", VirtualList)
        if rows:
            widget.show_rows(rows)
        else:
            widget.show_message(self._why_empty(self._detail))
        counts = Counter(row.mark for row in rows)
        marks = "  ".join(f"{mark}{counts[mark]}" for mark in "+-~=" if counts[mark])
        hidden = "changed only" if self._hide_unchanged_nodes else "all nodes"
        piece = self._detail.piece
        graph = self._detail.graph if piece is None else f"{self._detail.graph} of piece {piece}"
        self.title_pane(widget, f"Before/after · {graph} · {hidden} · {marks or 'no change'}")

    def _why_empty(self, detail: PassDetail) -> str:
        """What to do where before/after has nothing to show."""
        name = detail.pass_row.name
        if detail.changes:
            return "no node matches the filter; Esc clears it"
        if num_changes(detail.pass_row) and self._graph is not None:
            return f"{name} changed no node of the {detail.graph} graph; f shows another graph"
        return f"{name} changed no node; [ ] another pass, c hides such passes"

    def apply_filter(self) -> None:
        if self._filter_changes:
            self._fill_changes()
        else:
            self._fill_passes()

    @on(VirtualList.Selected, "#changes")
    def _node_chosen(self, event: VirtualList.Selected) -> None:
        row = event.row
        node = _node_of(row) if isinstance(row, NodeChange) else None
        if node is not None:
            piece = None if self._detail is None else self._detail.piece
            self.post_message(self.OpenNode(node.name, (node.graph,), piece=piece))

    @on(VirtualList.Selected, "#passes")
    def _pass_chosen(self) -> None:
        self.query_one("#changes").focus()

    # -- keys

    def action_filter(self) -> None:
        filter_changes = self.query_one("#changes").has_focus
        if filter_changes != self._filter_changes:
            self.set_filter("")
            self._filter_changes = filter_changes
        super().action_filter()

    def action_back(self) -> None:
        passes = self.query_one("#passes")
        if self.filter_text or passes.has_focus:
            super().action_back()
        else:
            passes.focus()

    def action_step_pass(self, amount: int) -> None:
        self.query_one("#passes", VirtualList).action_move(amount)

    def action_toggle_unchanged(self) -> None:
        if self.query_one("#passes").has_focus and self._detail and not self._detail.changes:
            self._hide_unchanged_passes = not self._hide_unchanged_passes
            self._fill_passes()
        elif self._detail is not None:
            self._hide_unchanged_nodes = not self._hide_unchanged_nodes
            self._read_pass(self._detail.pass_row)

    def action_next_graph(self) -> None:
        if self._detail is not None:
            names = GRAPH_ORDER
            shown = self._detail.graph
            after = names.index(shown) + 1 if shown in names else 0
            self._graph = names[after % len(names)]
            self._read_pass(self._detail.pass_row)

    def action_diff(self) -> None:
        changes = self.query_one("#changes", VirtualList)
        if changes.row_count:  # an empty pane says itself why it is empty
            changes.focus()

    def action_sort(self) -> None:
        self._sort = (self._sort + 1) % len(_SORTS)
        self._fill_passes()


def _change_matches(change: NodeChange, text: str) -> bool:
    node = _node_of(change)
    return node is not None and matches(text, node.name, node.target, node.module)
