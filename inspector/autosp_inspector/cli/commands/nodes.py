"""``nodes``: the nodes of a graph after a pass."""

from __future__ import annotations

import click

from autosp_inspector.cli.commands.passes import at_pass
from autosp_inspector.cli.graph_options import (
    chosen_piece,
    graph_parameter,
    known_graph,
    piece_parameter,
)
from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View, rank_parameter
from autosp_inspector.queries.measurement import estimated_times, measured_times, measurement
from autosp_inspector.queries.nodes import count_nodes, list_nodes
from autosp_inspector.queries.pieces import piece_label
from autosp_inspector.report.nodes import nodes_report
from autosp_inspector.report.report import Report

ROLES = (
    "input",
    "compute",
    "collective",
    "wait",
    "pack",
    "unpack",
    "slice",
    "loss",
    "constant",
    "output",
)


def view() -> View:
    options = (
        graph_parameter(),
        piece_parameter(),
        click.Option(
            ["--pass", "after_pass"],
            metavar="PASS",
            help="As the graph was after this pass: its number or name.  [default: the last]",
        ),
        click.Option(
            ["--text"], default="", help="Only nodes with this in name, operator, module or source."
        ),
        click.Option(["--module"], default="", help="Only nodes of this module and below it."),
        click.Option(["--role"], type=click.Choice(ROLES), help="Only nodes of this role."),
        click.Option(["--limit"], type=click.IntRange(min=0), help="At most so many nodes."),
        rank_parameter(),
    )
    return View(
        "nodes",
        "The nodes of a graph.\n\nOperator, shapes, placement, bytes and source line of each. A "
        "node without placement and global shape is a buffer around a collective, or an "
        "intermediate of one operator.",
        _report,
        options=options,
    )


def _report(
    source: OpenedSource,
    *,
    graph: str | None,
    piece: int | None,
    after_pass: str | None,
    text: str,
    module: str,
    role: str | None,
    limit: int | None,
    rank: int | None,
) -> Report:
    trace, index = at_pass(chosen_piece(source.trace(rank), piece), after_pass)
    name = known_graph(trace, graph)
    nodes = list_nodes(
        trace, graph=name, pass_index=index, text=text, module=module, role=role, limit=limit
    )
    total = count_nodes(trace, graph=name, pass_index=index, text=text, module=module, role=role)
    measured = measurement(trace)
    return nodes_report(
        name,
        nodes,
        total,
        piece=piece_label(trace),
        estimated_ns=estimated_times(trace, name),
        measured_ns=measured_times(trace, name),
        incomparable="" if measured is None else measured.incomparable,
    )
