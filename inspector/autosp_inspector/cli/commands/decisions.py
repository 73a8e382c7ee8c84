"""``decisions``: what the compiler chose, and why."""

from __future__ import annotations

import click

from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View, rank_parameter
from autosp_inspector.queries.decisions import list_decisions
from autosp_inspector.report.decisions import decisions_report
from autosp_inspector.report.report import Report


def view() -> View:
    options = (
        click.Option(["--node"], help="Only decisions about this node."),
        click.Option(
            ["--status"],
            type=click.Choice(["applied", "missed", "failed", "analysis"]),
            help="Only decisions of this status.",
        ),
        click.Option(["--topic"], help="Only this topic, such as attention or redistribute."),
        click.Option(["--text"], default="", help="Only decisions with this in their words."),
        rank_parameter(),
    )
    return View(
        "decisions",
        "Every choice of the compiler, with its reason.\n\n"
        "Also what it did not choose, and choices to do nothing.",
        _report,
        options=options,
    )


def _report(
    source: OpenedSource,
    *,
    node: str | None,
    status: str | None,
    topic: str | None,
    text: str,
    rank: int | None,
) -> Report:
    trace = source.trace(rank)
    rows = list_decisions(trace, node=node, status=status, topic=topic, text=text)
    return decisions_report(rows)
