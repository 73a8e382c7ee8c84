"""``collectives``: the communication of a step."""

from __future__ import annotations

import click

from autosp_inspector.cli.graph_options import chosen_piece, known_graph, piece_parameter
from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View, rank_parameter
from autosp_inspector.queries.collectives import list_collectives
from autosp_inspector.queries.measurement import measurement
from autosp_inspector.report.collectives import collectives_report
from autosp_inspector.report.report import Report


def view() -> View:
    options = (
        click.Option(
            ["--phase"],
            type=click.Choice(["forward", "backward", "optimizer"]),
            help="Only this phase.",
        ),
        click.Option(
            ["--graph"],
            metavar="GRAPH",
            help="Of this graph: program, joint, forward or backward.  "
            "[default: forward and backward]",
        ),
        piece_parameter(),
        rank_parameter(),
    )
    return View(
        "collectives",
        "Every collective: bytes, time, cause and reason.",
        _report,
        options=options,
    )


def _report(
    source: OpenedSource,
    *,
    phase: str | None,
    graph: str | None,
    piece: int | None,
    rank: int | None,
) -> Report:
    trace = chosen_piece(source.trace(rank), piece)
    name = None if graph is None else known_graph(trace, graph)
    rows = list_collectives(trace, phase=phase, graph=name)
    return collectives_report(rows, measurement(trace))
