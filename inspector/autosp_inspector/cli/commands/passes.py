"""``passes``: what the compiler did, pass by pass."""

from __future__ import annotations

import click

from autosp_inspector.cli.graph_options import graph_parameter, known_graph
from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View, rank_parameter
from autosp_inspector.errors import TraceError
from autosp_inspector.queries.passes import list_passes, pass_changes
from autosp_inspector.report.passes import pass_diff_report, passes_report
from autosp_inspector.report.report import Report
from autosp_inspector.rows import PassRow


def view() -> View:
    diff = click.Option(
        ["--diff"],
        metavar="PASS",
        help="Show the nodes this pass changed: its number or its name.",
    )
    return View(
        "passes",
        "What each pass did; with --diff, node by node.\n\n"
        "Time, nodes added, removed and changed, and decisions of every pass.",
        _report,
        options=(diff, graph_parameter(), rank_parameter()),
    )


def _report(
    source: OpenedSource, *, diff: str | None, graph: str | None, rank: int | None
) -> Report:
    trace = source.trace(rank)
    passes = list_passes(trace)
    if diff is None:
        return passes_report(passes)
    chosen = find_pass(passes, diff)
    name = known_graph(trace, graph)
    return pass_diff_report(chosen, name, pass_changes(trace, chosen.index, graph=name))


def find_pass(passes: tuple[PassRow, ...], wanted: str) -> PassRow:
    """The pass of that number or name.

    Raises:
        TraceError: none; all are listed.
    """
    for row in passes:
        if wanted in (str(row.index), row.name):
            return row
    listing = ", ".join(f"{row.index} {row.name}" for row in passes)
    raise TraceError(f"there is no pass {wanted!r}", hint=f"Passes: {listing}")
