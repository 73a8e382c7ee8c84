"""Overview: the verdict, the figures, findings and what to try next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.widget import Widget

from autosp_inspector.rows import FindingRow
from autosp_tui.advice import Suggestion, facts, suggestions, verdict
from autosp_tui.describe import (
    SEVERITY_MARKS,
    SEVERITY_TONES,
    describe_finding,
    describe_shares,
    finding_cost,
)
from autosp_tui.present import Span, plural
from autosp_tui.screens.dialog import Dialog
from autosp_tui.screens.view import View, matches
from autosp_tui.snapshots import GRAPH_ORDER, Overview, read_overview
from autosp_tui.widgets.columns import Column
from autosp_tui.widgets.detail import Detail
from autosp_tui.widgets.virtual_list import VirtualList


def _severity(row: FindingRow) -> Span:
    mark = SEVERITY_MARKS.get(row.severity, "·")
    return f"{mark} {row.severity}", SEVERITY_TONES.get(row.severity, "muted")


def _message(row: FindingRow) -> Span:
    return f"{row.message}; {row.hint}" if row.hint else row.message, "text"


_FINDINGS = (
    Column[FindingRow]("", _severity, 9),
    Column[FindingRow]("what, and what to do", _message, 30, grow=4),
    Column[FindingRow]("costs", lambda row: (finding_cost(row), "warning"), 18, from_width=100),
    Column[FindingRow]("where", lambda row: (row.node or row.module, "operator"), 12, grow=1),
    Column[FindingRow]("code", lambda row: (row.code, "muted"), 18, from_width=110),
)
_SUGGESTIONS = (
    Column[Suggestion]("what to try next", lambda row: (row.text, "text"), 40, grow=1),
    Column[Suggestion]("Enter opens", lambda row: (row.view, "module"), 11),
)


class OverviewView(View):
    """Everything at a glance."""

    NAME: ClassVar[str] = "overview"
    FILTER_HINT: ClassVar[str] = "filter findings by message, code, node or module"

    def compose_body(self) -> Iterable[Widget]:
        yield Detail(title="Verdict", id="facts")
        yield Detail(title="What the peak is made of", id="shares")
        yield VirtualList(
            _FINDINGS,
            empty="no findings",
            title="Findings · Enter opens the node",
            header=False,
            id="findings",
        )
        yield VirtualList(
            _SUGGESTIONS,
            empty="nothing",
            title="What to try next · Enter opens it",
            header=False,
            id="next",
        )

    def main_pane(self) -> Widget:
        return self.query_one("#next" if not self._findings else "#findings")

    _findings: tuple[FindingRow, ...] = ()

    def read(self) -> None:
        self.load(read_overview, self._show)

    def _show(self, overview: Overview) -> None:
        run = overview.run
        self._findings = overview.findings
        self.show_status(
            (run.model, "strong"),
            (f"  {run.mode.replace('_', ' ')}", "muted"),
            (f"  rank {run.rank} of {run.world_size}", "muted"),
            right=f"autosp {run.autosp_version} · torch {run.torch_version}",
        )
        self.query_one("#facts", Detail).show([verdict(overview), *facts(overview)])
        sizes = overview.estimate.peak_categories if overview.estimate is not None else {}
        self.query_one("#shares", Detail).show(describe_shares(sizes))
        self.query_one("#next", VirtualList).show_rows(suggestions(overview))
        self.apply_filter()
        self.main_pane().focus()

    def apply_filter(self) -> None:
        rows = [
            row
            for row in self._findings
            if matches(self.filter_text, row.message, row.code, row.node, row.module)
        ]
        findings = self.query_one("#findings", VirtualList)
        findings.show_rows(rows)
        opens = " · Enter opens the node" if rows else ""
        self.title_pane(findings, f"Findings · {plural(len(rows), 'finding')}{opens}")

    @on(VirtualList.Selected, "#findings")
    def _finding_chosen(self, event: VirtualList.Selected) -> None:
        row = event.row
        if not isinstance(row, FindingRow):
            return
        if row.node:
            self.post_message(self.OpenNode(row.node, GRAPH_ORDER))
        else:
            self.app.push_screen(Dialog("Finding", describe_finding(row)))

    @on(VirtualList.Selected, "#next")
    def _suggestion_chosen(self, event: VirtualList.Selected) -> None:
        if isinstance(event.row, Suggestion):
            self.post_message(self.OpenView(event.row.view))
