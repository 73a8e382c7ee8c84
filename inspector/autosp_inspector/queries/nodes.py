"""Nodes of a graph: lists, one node, its history and its neighbours."""

from __future__ import annotations

from typing import Literal

from autosp_inspector.queries.graph_view import GraphView, all_graph_ids, graph_view
from autosp_inspector.queries.node_rows import load_nodes
from autosp_inspector.queries.similar_names import similar_names
from autosp_inspector.rows import NodeRow
from autosp_inspector.trace import Trace

__all__ = [
    "count_nodes",
    "derived_nodes",
    "find_node",
    "graph_names",
    "list_nodes",
    "node_history",
    "program_names",
    "similar_names",
    "users_of",
]

_GRAPH_ORDER = ("program", "joint", "forward", "backward")
_SEARCH_ORDER = ("program", "forward", "backward", "joint")

_FILTER = """
WITH hit AS MATERIALIZED (SELECT id FROM text WHERE instr(lower(value), lower(?2)) > 0),
line_hit AS MATERIALIZED (
    SELECT source.id FROM source JOIN text AS file ON file.id = source.file_text
    WHERE source.file_text IN hit OR source.line_text IN hit OR source.function_text IN hit
       OR instr(lower(file.value || ':' || source.line), lower(?2)) > 0
)
SELECT node.id FROM node
WHERE node.graph_id = ?1
  AND (?2 = '' OR node.name_text IN hit OR node.target_text IN hit OR node.module_text IN hit
       OR node.source_id IN line_hit)
  AND (?3 = '' OR node.module_text IN (
       SELECT id FROM text WHERE value = ?3 OR (value > ?3 || '.' AND value < ?3 || '/')))
  AND (?4 IS NULL OR node.role_text = (SELECT id FROM text WHERE value = ?4))
"""


NodeOrder = Literal["graph", "bytes", "time"]

_AMOUNTS: dict[str, str] = {
    "bytes": "SELECT id, local_bytes FROM node WHERE graph_id = ? AND local_bytes IS NOT NULL",
    "time": (
        "SELECT node.id, cost.duration_ns FROM node"
        " JOIN cost ON cost.graph_id = node.graph_id AND cost.node_text = node.name_text"
        " WHERE node.graph_id = ? AND cost.duration_ns IS NOT NULL"
    ),
}


def graph_names(trace: Trace) -> tuple[str, ...]:
    """The graphs that were recorded, in the order of the pipeline."""
    found = {
        name
        for (name,) in trace.fetch(
            "SELECT DISTINCT graph.name FROM pass_graph JOIN graph ON graph.id = graph_id"
        )
    }
    known = [name for name in _GRAPH_ORDER if name in found]
    return (*known, *sorted(found.difference(known)))


def list_nodes(
    trace: Trace,
    *,
    graph: str,
    pass_index: int | None = None,
    text: str = "",
    module: str = "",
    role: str | None = None,
    order: NodeOrder = "graph",
    offset: int = 0,
    limit: int | None = None,
) -> tuple[NodeRow, ...]:
    """Nodes of ``graph`` after a pass (the latest by default), in graph order.

    ``order`` may be ``bytes`` on a rank or estimated ``time``, the largest first.

    ``text`` must occur in the name, target, module or source line (``gpt.py:12`` works;
    case does not matter); ``module`` is a path and includes what is below it.
    """
    view = graph_view(trace, graph, pass_index)
    if view is None:
        return ()
    matching = _ordered(
        trace, view, order, _matching(trace, view, text=text, module=module, role=role)
    )
    start = max(offset, 0)
    end = None if limit is None else start + max(limit, 0)
    return load_nodes(trace, matching[start:end], view.positions.__getitem__)


def count_nodes(
    trace: Trace,
    *,
    graph: str,
    pass_index: int | None = None,
    text: str = "",
    module: str = "",
    role: str | None = None,
) -> int:
    """How many nodes :func:`list_nodes` has for the same filters."""
    view = graph_view(trace, graph, pass_index)
    return 0 if view is None else len(_matching(trace, view, text=text, module=module, role=role))


def _matching(
    trace: Trace, view: GraphView, *, text: str, module: str, role: str | None
) -> tuple[int, ...]:
    if not text and not module and role is None:
        return view.node_ids

    def read() -> tuple[int, ...]:
        rows = trace.fetch(_FILTER, (view.graph_id, text, module, role))
        hits = {number for (number,) in rows}
        return tuple(number for number in view.node_ids if number in hits)

    return trace.cached(("nodes", view.graph_id, view.pass_index, text, module, role), read)


def _ordered(
    trace: Trace, view: GraphView, order: NodeOrder, node_ids: tuple[int, ...]
) -> tuple[int, ...]:
    if order == "graph":
        return node_ids
    statement = _AMOUNTS[order]
    amounts: dict[int, int] = trace.cached(
        ("amounts", view.graph_id, order), lambda: dict(trace.fetch(statement, (view.graph_id,)))
    )
    return tuple(sorted(node_ids, key=lambda number: -(amounts.get(number) or 0)))


def find_node(
    trace: Trace, name: str, *, graph: str | None = None, pass_index: int | None = None
) -> NodeRow | None:
    """The node of exactly this name; without ``graph``, the first graph that has it.

    Without ``pass_index`` a node that a pass removed is found too, in its last version.
    """
    graphs = _SEARCH_ORDER if graph is None else (graph,)
    for candidate in graphs:
        view = graph_view(trace, candidate, pass_index)
        alive = _versions(trace, view, name) if view else ()
        if view and alive:
            return load_nodes(trace, alive, view.positions.__getitem__)[0]
    if pass_index is None:
        for candidate in graphs:
            history = node_history(trace, name, graph=candidate)
            if history:
                return history[-1]
    return None


def _versions(trace: Trace, view: GraphView, name: str) -> tuple[int, ...]:
    """The version of ``name`` that is alive in ``view``: none or one."""
    rows = trace.fetch(
        "SELECT node.id FROM node JOIN text ON text.id = node.name_text"
        " WHERE text.value = ? AND node.graph_id = ?",
        (name, view.graph_id),
    )
    return tuple(number for (number,) in rows if number in view.positions)


def node_history(trace: Trace, name: str, *, graph: str) -> tuple[NodeRow, ...]:
    """All versions of a node, oldest first, over all compilations."""
    history: list[NodeRow] = []
    for graph_id in all_graph_ids(trace, graph):
        rows = trace.fetch(
            "SELECT node.id, node.born_pass FROM node JOIN text ON text.id = node.name_text"
            " WHERE text.value = ? AND node.graph_id = ? ORDER BY node.born_pass",
            (name, graph_id),
        )
        for number, born_pass in rows:
            view = graph_view(trace, graph, born_pass)
            if view is not None:
                history += load_nodes(trace, (number,), view.positions.__getitem__)
    return tuple(history)


def derived_nodes(trace: Trace, name: str) -> tuple[NodeRow, ...]:
    """Nodes of the other graphs that come from the program node ``name``."""
    found: list[NodeRow] = []
    for graph in graph_names(trace):
        if graph != "program":
            found += _linked(
                trace,
                graph,
                "SELECT origin.node_id FROM origin JOIN text ON text.id = origin.program_text"
                " WHERE text.value = ?",
                name,
            )
    return tuple(found)


def program_names(node: NodeRow) -> tuple[str, ...]:
    """Names of the program's nodes that ``node`` is or comes from.

    Names of other graphs say nothing: their ``view_5`` is not the program's.
    """
    return (node.name, *node.origins) if node.graph == "program" else node.origins


def users_of(
    trace: Trace, name: str, graph: str, *, pass_index: int | None = None
) -> tuple[NodeRow, ...]:
    """Nodes of ``graph`` that read ``name``, in graph order."""
    return _linked(
        trace,
        graph,
        "SELECT DISTINCT edge.node_id FROM edge JOIN text ON text.id = edge.input_text"
        " WHERE text.value = ?",
        name,
        pass_index=pass_index,
    )


def _linked(
    trace: Trace, graph: str, statement: str, name: str, *, pass_index: int | None = None
) -> tuple[NodeRow, ...]:
    """The nodes of a view whose ids ``statement`` finds for ``name``."""
    view = graph_view(trace, graph, pass_index)
    if view is None:
        return ()
    positions = view.positions
    ids = {number for (number,) in trace.fetch(statement, (name,)) if number in positions}
    return load_nodes(trace, sorted(ids, key=positions.__getitem__), positions.__getitem__)
