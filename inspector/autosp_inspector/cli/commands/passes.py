"""``passes``: what the compiler did, pass by pass."""

from __future__ import annotations

import click

from autosp_inspector.cli.graph_options import (
    chosen_piece,
    graph_parameter,
    known_graph,
    piece_parameter,
)
from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View, rank_parameter
from autosp_inspector.errors import TraceError
from autosp_inspector.queries.passes import list_passes, pass_changes
from autosp_inspector.queries.pieces import by_piece, list_pieces, piece_label
from autosp_inspector.report.passes import pass_diff_report, passes_report
from autosp_inspector.report.report import Report
from autosp_inspector.rows import PassRow
from autosp_inspector.trace import Trace


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
        options=(diff, graph_parameter(), piece_parameter(), rank_parameter()),
    )


def _report(
    source: OpenedSource,
    *,
    diff: str | None,
    graph: str | None,
    piece: int | None,
    rank: int | None,
) -> Report:
    trace = chosen_piece(source.trace(rank), piece)
    passes = list_passes(trace)
    if diff is None:
        return passes_report(passes)
    trace, index = at_pass(trace, diff)
    chosen = next(row for row in passes if row.index == index)
    name = known_graph(trace, graph)
    changes = pass_changes(trace, chosen.index, graph=name)
    return pass_diff_report(chosen, name, changes, piece=piece_label(trace))


def at_pass(trace: Trace, wanted: str | None) -> tuple[Trace, int | None]:
    """The trace as the piece of that pass, and the pass's index; for None the main piece.

    A name means the pass of the main piece.

    Raises:
        TraceError: no such pass.
    """
    main = by_piece(trace)[0]
    if wanted is None:
        return main, None
    row = find_pass(list_passes(trace if wanted.isdigit() else main), wanted)
    return (trace.of_compilation(row.compilation) if list_pieces(trace) else trace), row.index


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
