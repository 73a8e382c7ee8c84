"""What a view needs, read in one go: frozen values and the functions that read them.

Every function here runs on the trace thread (:class:`autosp_tui.session.Session`) and uses
the query functions only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosp_inspector.queries.causes import Cause, placement_causes
from autosp_inspector.queries.collectives import list_collectives
from autosp_inspector.queries.costs import node_cost
from autosp_inspector.queries.decisions import list_decisions
from autosp_inspector.queries.estimate import estimate_summary
from autosp_inspector.queries.findings import list_findings
from autosp_inspector.queries.memory import live_at_peak, memory_curve
from autosp_inspector.queries.modules import child_modules, module_nodes
from autosp_inspector.queries.nodes import (
    NodeOrder,
    count_nodes,
    derived_nodes,
    find_node,
    graph_names,
    list_nodes,
    node_history,
    program_names,
    similar_names,
    users_of,
)
from autosp_inspector.queries.passes import list_passes, pass_changes
from autosp_inspector.queries.timeline import timeline_events
from autosp_inspector.rows import (
    CollectiveRow,
    CostRow,
    DecisionRow,
    EstimateRow,
    FindingRow,
    LiveTensorRow,
    MemoryRow,
    NodeChange,
    NodeRow,
    PassRow,
    RunRow,
    TimelineRow,
)
from autosp_inspector.trace import Trace
from autosp_tui.widgets.tree_items import ModuleContents

GRAPH_ORDER = ("program", "forward", "backward", "joint")
"""The order in which the graph key goes round."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The first view."""

    run: RunRow
    estimate: EstimateRow | None
    findings: tuple[FindingRow, ...]
    passes: tuple[PassRow, ...]
    collectives: tuple[CollectiveRow, ...]


def read_overview(trace: Trace) -> Overview:
    return Overview(
        run=trace.run,
        estimate=estimate_summary(trace),
        findings=list_findings(trace),
        passes=list_passes(trace),
        collectives=list_collectives(trace),
    )


@dataclass(frozen=True, slots=True)
class GraphHeader:
    """What the graph view can show: its graphs and passes."""

    graphs: tuple[str, ...]
    passes: tuple[PassRow, ...]


def read_graph_header(trace: Trace) -> GraphHeader:
    known = graph_names(trace)
    ordered = [name for name in GRAPH_ORDER if name in known]
    ordered += [name for name in known if name not in ordered]
    return GraphHeader(tuple(ordered), list_passes(trace))


def read_module(trace: Trace, path: str, graph: str, pass_index: int | None) -> ModuleContents:
    """What is directly inside a module."""
    return ModuleContents(
        path,
        child_modules(trace, path, graph=graph, pass_index=pass_index),
        module_nodes(trace, path, graph=graph, pass_index=pass_index),
    )


def read_module_path(
    trace: Trace, path: str, graph: str, pass_index: int | None
) -> tuple[ModuleContents, ...]:
    """The root and every module on the way to ``path``, it included."""
    parts = path.split(".") if path else []
    paths = ["", *(".".join(parts[: number + 1]) for number in range(len(parts)))]
    return tuple(read_module(trace, each, graph, pass_index) for each in paths)


@dataclass(frozen=True, slots=True)
class NodePage:
    """The first rows of a flat list, and how many there are."""

    count: int
    rows: tuple[NodeRow, ...]


def read_nodes(
    trace: Trace,
    graph: str,
    pass_index: int | None,
    text: str,
    limit: int,
    order: NodeOrder = "graph",
) -> NodePage:
    rows = list_nodes(
        trace, graph=graph, pass_index=pass_index, text=text, order=order, offset=0, limit=limit
    )
    if len(rows) < limit:
        return NodePage(len(rows), rows)
    return NodePage(count_nodes(trace, graph=graph, pass_index=pass_index, text=text), rows)


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """Everything known of one node."""

    node: NodeRow
    pass_names: tuple[str, ...]
    history: tuple[NodeRow, ...]
    decisions: tuple[DecisionRow, ...]
    collectives: tuple[CollectiveRow, ...]
    cost: CostRow | None
    users: tuple[NodeRow, ...]
    derived: tuple[NodeRow, ...]
    findings: tuple[FindingRow, ...]
    causes: tuple[Cause, ...] = ()


MOST_NODES_FOR_CAUSES = 20_000
"""Above this many the way back to the seed is left to ``explain``: it reads the whole graph."""


def read_node_detail(trace: Trace, node: NodeRow) -> NodeDetail:
    names = dict.fromkeys(program_names(node))
    decisions = [row for name in names for row in list_decisions(trace, node=name)]
    return NodeDetail(
        node=node,
        pass_names=tuple(row.name for row in list_passes(trace)),
        history=node_history(trace, node.name, graph=node.graph),
        decisions=tuple(sorted(decisions, key=lambda row: row.id)),
        collectives=tuple(
            row
            for row in list_collectives(trace)
            if (row.name, row.graph) == (node.name, node.graph) or row.cause in names
        ),
        cost=node_cost(trace, node.name, node.graph),
        users=users_of(trace, node.name, node.graph),
        derived=derived_nodes(trace, node.name) if node.graph == "program" else (),
        findings=tuple(row for row in list_findings(trace) if row.node in names),
        causes=_causes(trace, node),
    )


def _causes(trace: Trace, node: NodeRow) -> tuple[Cause, ...]:
    if count_nodes(trace, graph="program") > MOST_NODES_FOR_CAUSES:
        return ()
    return placement_causes(trace, node)


def read_module_collectives(trace: Trace, path: str) -> tuple[CollectiveRow, ...]:
    """Collectives anywhere inside a module."""
    inside = f"{path}."
    return tuple(
        row
        for row in list_collectives(trace)
        if row.module == path or row.module.startswith(inside)
    )


@dataclass(frozen=True, slots=True)
class Location:
    """Where a name was found, or the closest names where it was not."""

    node: NodeRow | None
    similar: tuple[str, ...] = ()


def locate(
    trace: Trace, name: str, graphs: Sequence[str], pass_index: int | None = None
) -> Location:
    """The node of that name in the first of ``graphs`` that has it, else in any graph."""
    for graph in graphs:
        node = find_node(trace, name, graph=graph, pass_index=pass_index)
        if node is not None:
            return Location(node)
    node = find_node(trace, name)
    return Location(node) if node is not None else Location(None, similar_names(trace, name))


@dataclass(frozen=True, slots=True)
class PassDetail:
    """What one pass did."""

    pass_row: PassRow
    graph: str
    changes: tuple[NodeChange, ...]
    decisions: tuple[DecisionRow, ...]


def read_pass(trace: Trace, row: PassRow, graph: str | None, context: bool) -> PassDetail:
    """The changes of a pass; without a graph, in the first one that it changed."""
    decisions = list_decisions(trace, pass_index=row.index)
    known = graph_names(trace)
    names = (graph,) if graph is not None else GRAPH_ORDER
    for name in names:
        if name not in known:
            continue
        changes = pass_changes(trace, row.index, graph=name, context=context)
        if graph is not None or any(change.mark != "=" for change in changes):
            return PassDetail(row, name, changes, decisions)
    return PassDetail(row, graph or "program", (), decisions)


@dataclass(frozen=True, slots=True)
class CollectiveDetail:
    """A collective with what led to it."""

    collective: CollectiveRow
    cause: NodeRow | None
    decisions: tuple[DecisionRow, ...]


def read_collective(trace: Trace, row: CollectiveRow) -> CollectiveDetail:
    cause = find_node(trace, row.cause, graph="program") if row.cause else None
    decisions = list_decisions(trace, node=row.cause) if row.cause else ()
    return CollectiveDetail(row, cause, decisions)


@dataclass(frozen=True, slots=True)
class Timeline:
    events: tuple[TimelineRow, ...]
    estimate: EstimateRow | None


def read_timeline(trace: Trace) -> Timeline:
    return Timeline(timeline_events(trace), estimate_summary(trace))


@dataclass(frozen=True, slots=True)
class Memory:
    curve: tuple[MemoryRow, ...]
    live: tuple[LiveTensorRow, ...]
    estimate: EstimateRow | None


def read_memory(trace: Trace) -> Memory:
    return Memory(memory_curve(trace), live_at_peak(trace), estimate_summary(trace))


Query = Callable[[Trace], object]
