"""``memory``: the peak of every rank."""

from __future__ import annotations

import click

from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View
from autosp_inspector.queries.estimate import estimate_summary
from autosp_inspector.queries.memory import live_at_peak, memory_curve
from autosp_inspector.queries.pieces import not_estimated
from autosp_inspector.report.memory import RankMemory, memory_report
from autosp_inspector.report.report import Report


def view() -> View:
    options = (
        click.Option(["--tensors"], is_flag=True, help="Also the tensors alive at the peak."),
        click.Option(["--curve"], is_flag=True, help="Also the live bytes at every node."),
    )
    return View(
        "memory",
        "The peak of every rank: where, and of what.",
        _report,
        options=options,
    )


def _report(source: OpenedSource, *, tensors: bool, curve: bool) -> Report:
    return memory_report(
        [
            RankMemory(
                trace.run.rank,
                estimate_summary(trace),
                curve=memory_curve(trace) if curve else None,
                live=live_at_peak(trace) if tensors else None,
                not_estimated=not_estimated(trace),
            )
            for trace in source.traces
        ]
    )
