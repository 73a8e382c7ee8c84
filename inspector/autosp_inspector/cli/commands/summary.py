"""``summary``: the first page."""

from __future__ import annotations

import shlex
from pathlib import Path

from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View, rank_parameter
from autosp_inspector.queries.collectives import list_collectives
from autosp_inspector.queries.decisions import list_decisions
from autosp_inspector.queries.estimate import estimate_summary
from autosp_inspector.queries.findings import list_findings
from autosp_inspector.queries.measurement import measurement
from autosp_inspector.queries.nodes import list_nodes
from autosp_inspector.queries.passes import list_passes
from autosp_inspector.queries.pieces import list_pieces, not_estimated
from autosp_inspector.report.report import Report
from autosp_inspector.report.summary import SummaryContent, summary_report
from autosp_inspector.rows import DecisionRow
from autosp_inspector.schema import TRACE_SUFFIX
from autosp_inspector.trace import Trace

ATTENTION_OPERATOR = "scaled_dot_product_attention"


def view() -> View:
    return View(
        "summary",
        "The first page: does it fit, step time, what was sharded.\n\n"
        "Ends with what to look at next.",
        summary_of,
        options=(rank_parameter(),),
    )


def summary_of(source: OpenedSource, *, rank: int | None) -> Report:
    """The summary of one rank."""
    trace = source.trace(rank)
    record_command, target = _next_target(source)
    return summary_report(
        SummaryContent(
            run=trace.run,
            estimate=estimate_summary(trace),
            collectives=list_collectives(trace),
            attention=_attention(trace),
            num_attention_sites=_num_attention_sites(trace),
            pieces=list_pieces(trace),
            measured=measurement(trace),
            not_estimated=not_estimated(trace),
            findings=list_findings(trace),
            passes=list_passes(trace),
            target=target,
            record_command=record_command,
        )
    )


def _attention(trace: Trace) -> tuple[DecisionRow, ...]:
    """Decisions about attention sites, as often as their piece runs in a step."""
    pieces = list_pieces(trace)
    if not pieces:
        return list_decisions(trace, topic="attention")
    return tuple(
        row
        for piece in pieces
        for row in list_decisions(trace.of_compilation(piece.compilation), topic="attention")
        * piece.runs
    )


def _num_attention_sites(trace: Trace) -> int:
    """Over all compilations: pieces of a broken program, or several lengths."""
    captures = [row for row in list_passes(trace) if row.name == "capture"]
    runs = {piece.compilation: piece.runs for piece in list_pieces(trace)}
    return sum(
        runs.get(capture.compilation, 1) * (ATTENTION_OPERATOR in node.target)
        for capture in captures
        for node in list_nodes(
            trace, graph="program", pass_index=capture.index, text=ATTENTION_OPERATOR
        )
    )


def _next_target(source: OpenedSource) -> tuple[str, str]:
    """The command that keeps the trace (empty if it is kept), and how to name the trace."""
    if source.recorded:
        return "", shlex.quote(str(source.path))
    name = Path(source.text.partition(":")[0]).stem or "run"
    trace_name = shlex.quote(f"{name}{TRACE_SUFFIX}")
    words = ["autosp-inspect", "record", shlex.quote(source.text), source.options]
    return " ".join(word for word in [*words, "-o", trace_name] if word), trace_name
