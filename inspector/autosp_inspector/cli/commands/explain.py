"""``explain``: everything known of one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from autosp_inspector.cli.commands.passes import find_pass
from autosp_inspector.cli.graph_options import known_graph
from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View, rank_parameter, run_view, view_command
from autosp_inspector.errors import TraceError
from autosp_inspector.queries.causes import placement_causes
from autosp_inspector.queries.collectives import list_collectives
from autosp_inspector.queries.costs import node_cost
from autosp_inspector.queries.decisions import list_decisions
from autosp_inspector.queries.nodes import (
    derived_nodes,
    find_node,
    node_history,
    program_names,
    similar_names,
    users_of,
)
from autosp_inspector.queries.passes import list_passes
from autosp_inspector.report.explain import NodeKnowledge, explain_report
from autosp_inspector.report.report import Report
from autosp_inspector.rows import CollectiveRow, CostRow, DecisionRow, NodeRow
from autosp_inspector.target.errors import TargetError
from autosp_inspector.target.specification import recognise
from autosp_inspector.trace import Trace


def command() -> click.Command:
    view = _view()
    made = view_command(view)
    made.params.insert(1, click.Argument(["node"]))
    made.callback = click.pass_context(lambda ctx, **_: _run(ctx, view))
    return made


def _view() -> View:
    options = (
        click.Option(
            ["--graph"],
            metavar="GRAPH",
            help="The node of this graph: program, joint, forward or backward.  [default: the "
            "first that has it]",
        ),
        click.Option(
            ["--pass", "after_pass"],
            metavar="PASS",
            help="As it was after this pass: its number or name.  [default: the last]",
        ),
        rank_parameter(),
    )
    return View(
        "explain",
        "Everything known of one node.\n\n"
        "Source line, why it is placed so back to where the sequence was cut, history over the "
        "passes, collectives, bytes, time, what is saved or recomputed.",
        _report,
        options=options,
    )


def _run(ctx: click.Context, view: View) -> None:
    """Target and node may come in either order: only one of them can be opened."""
    target, node = ctx.params["target"], ctx.params["node"]
    if not _is_target(target) and _is_target(node):
        target, node = node, target
    ctx.params["target"] = target
    del ctx.params["node"]
    run_view(ctx, replace(view, report=lambda source, **values: _report(source, node, **values)))


def _is_target(text: str) -> bool:
    try:
        recognise(text)
    except TargetError:
        return False
    return True


def _report(
    source: OpenedSource, name: str, *, graph: str | None, after_pass: str | None, rank: int | None
) -> Report:
    trace = source.trace(rank)
    wanted: dict[str, Any] = {}
    if graph is not None:
        wanted["graph"] = known_graph(trace, graph)
    if after_pass is not None:
        wanted["pass_index"] = find_pass(list_passes(trace), after_pass).index
    node = find_node(trace, name, **wanted)
    if node is None:
        raise _no_such_node(trace, name, source.text)
    derived = derived_nodes(trace, node.name) if node.graph == "program" else ()
    return explain_report(
        NodeKnowledge(
            node=node,
            history=node_history(trace, node.name, graph=node.graph),
            decisions=_decisions_of(trace, node),
            collectives=_collectives_of(trace, node),
            derived=derived,
            users=users_of(trace, node.name, node.graph),
            cost=node_cost(trace, node.name, node.graph),
            derived_costs=_costs(trace, derived),
            causes=placement_causes(trace, node),
            partition=next(iter(list_decisions(trace, topic="saved-tensors")), None),
        )
    )


def _no_such_node(trace: Trace, name: str, where: str) -> TraceError:
    similar = similar_names(trace, name)
    hint = f"Did you mean {' or '.join(similar[:3])}?" if similar else "See: autosp-inspect nodes"
    return TraceError(f"there is no node {name!r}", where=where, hint=hint)


def _collectives_of(trace: Trace, node: NodeRow) -> tuple[CollectiveRow, ...]:
    """Itself; those for the sake of a node of the program."""
    is_cause = node.graph == "program"
    return tuple(
        row
        for row in list_collectives(trace)
        if (row.name, row.graph) == (node.name, node.graph) or (is_cause and row.cause == node.name)
    )


def _decisions_of(trace: Trace, node: NodeRow) -> tuple[DecisionRow, ...]:
    """About the node of the program, or about the one that a derived node comes from."""
    names = (node.name,) if node.graph == "program" else program_names(node)
    return tuple(row for name in names for row in list_decisions(trace, node=name))


def _costs(trace: Trace, nodes: Sequence[NodeRow]) -> tuple[CostRow, ...]:
    executed = (node for node in nodes if node.graph in ("forward", "backward"))
    found = (node_cost(trace, node.name, node.graph) for node in executed)
    return tuple(cost for cost in found if cost is not None)
