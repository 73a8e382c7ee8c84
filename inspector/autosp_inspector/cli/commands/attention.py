"""``attention``: the form of every attention, and the work of every rank."""

from __future__ import annotations

from autosp_inspector.cli.graph_options import chosen_piece, piece_parameter
from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View, rank_parameter
from autosp_inspector.queries.attention import list_attention
from autosp_inspector.report.attention import attention_report
from autosp_inspector.report.report import Report


def view() -> View:
    return View(
        "attention",
        "Every attention: form, mask, ring steps, work of each rank.",
        _report,
        options=(piece_parameter(), rank_parameter()),
    )


def _report(source: OpenedSource, *, piece: int | None, rank: int | None) -> Report:
    trace = chosen_piece(source.trace(rank), piece)
    return attention_report(list_attention(trace))
