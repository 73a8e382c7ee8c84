"""Passes, and what each did to a graph."""

from __future__ import annotations

import json
from collections.abc import Mapping

from autosp_inspector.queries.graph_view import GraphView, graph_view
from autosp_inspector.queries.node_rows import load_nodes
from autosp_inspector.rows import NodeChange, NodeRow, PassRow
from autosp_inspector.trace import Trace

_PASSES = """
SELECT pass.pass_index, pass.name, pass.description, pass.options, pass.compilation,
       pass.duration_ns, pass.status,
       (SELECT total(added) FROM pass_graph WHERE pass_graph.pass_index = pass.pass_index),
       (SELECT total(removed) FROM pass_graph WHERE pass_graph.pass_index = pass.pass_index),
       (SELECT total(changed) FROM pass_graph WHERE pass_graph.pass_index = pass.pass_index),
       (SELECT count(*) FROM decision WHERE decision.pass_index = pass.pass_index),
       pass.message
FROM pass WHERE ?1 IS NULL OR pass.compilation = ?1 ORDER BY pass.pass_index
"""


def list_passes(trace: Trace) -> tuple[PassRow, ...]:
    """All passes in order; the counts of nodes cover every graph the pass touched."""
    return tuple(
        PassRow(
            index=row[0],
            name=row[1],
            description=row[2],
            options=json.loads(row[3]),
            compilation=row[4],
            duration_ns=row[5],
            status=row[6],
            nodes_added=int(row[7]),
            nodes_removed=int(row[8]),
            nodes_changed=int(row[9]),
            decisions=row[10],
            message=row[11],
        )
        for row in trace.fetch(_PASSES, (trace.compilation,))
    )


def pass_changes(
    trace: Trace,
    pass_index: int,
    *,
    graph: str = "program",
    context: bool = False,
    offset: int = 0,
    limit: int | None = None,
) -> tuple[NodeChange, ...]:
    """What a pass did to ``graph``, aligned by node name, in graph order.

    Removed nodes stand where they were: behind the node that preceded them. ``context``
    adds the unchanged nodes (mark ``=``), moved ones included.
    """
    after = graph_view(trace, graph, pass_index)
    if after is None:
        return ()
    before = _view_before(trace, after, pass_index)
    start = max(offset, 0)
    end = None if limit is None else start + max(limit, 0)
    pairs = _pairs(trace, after, before, pass_index, context=context)[start:end]
    old_rows = _load(trace, before, [old for old, _ in pairs if old is not None])
    new_rows = _load(trace, after, [new for _, new in pairs if new is not None])
    return tuple(
        NodeChange(
            _mark(old, new),
            None if old is None else old_rows[old],
            None if new is None else new_rows[new],
        )
        for old, new in pairs
    )


def count_changes(
    trace: Trace, pass_index: int, *, graph: str = "program", context: bool = False
) -> int:
    """How many rows :func:`pass_changes` has without a limit."""
    after = graph_view(trace, graph, pass_index)
    if after is None:
        return 0
    before = _view_before(trace, after, pass_index)
    return len(_pairs(trace, after, before, pass_index, context=context))


def _pairs(
    trace: Trace, after: GraphView, before: GraphView | None, pass_index: int, *, context: bool
) -> list[tuple[int | None, int | None]]:
    """The aligned versions, remembered: a screen pages through them."""

    def align() -> list[tuple[int | None, int | None]]:
        partners = _partners(trace, after.graph_id, pass_index)
        pairs = _aligned(before, after, partners)
        return pairs if context else [(old, new) for old, new in pairs if old != new]

    return trace.cached(("changes", after.graph_id, pass_index, context), align)


def _view_before(trace: Trace, after: GraphView, pass_index: int) -> GraphView | None:
    """The same graph after the pass before; None when this pass made it."""
    before = graph_view(trace, after.name, pass_index - 1) if pass_index > 0 else None
    return before if before is not None and before.graph_id == after.graph_id else None


def _partners(trace: Trace, graph_id: int, pass_index: int) -> dict[int, int]:
    """New version -> old version of the nodes that the pass changed."""
    return dict(
        trace.fetch(
            "SELECT new.id, old.id FROM node AS new JOIN node AS old"
            " ON old.name_text = new.name_text AND old.graph_id = new.graph_id"
            " AND old.died_pass = new.born_pass"
            " WHERE new.graph_id = ? AND new.born_pass = ?",
            (graph_id, pass_index),
        )
    )


def _aligned(
    before: GraphView | None, after: GraphView, partners: Mapping[int, int]
) -> list[tuple[int | None, int | None]]:
    """Pairs (old version, new version) in graph order; None where there is none."""
    old_positions = before.positions if before else {}
    survivors = set(partners.values())
    removed_behind: dict[int | None, list[int]] = {}
    anchor: int | None = None
    for node_id in before.node_ids if before else ():
        if node_id in after.positions or node_id in survivors:
            anchor = node_id
        else:
            removed_behind.setdefault(anchor, []).append(node_id)
    pairs: list[tuple[int | None, int | None]] = []
    pairs += [(gone, None) for gone in removed_behind.get(None, ())]
    for node_id in after.node_ids:
        old = node_id if node_id in old_positions else partners.get(node_id)
        pairs.append((old, node_id))
        if old is not None:
            pairs += [(gone, None) for gone in removed_behind.get(old, ())]
    return pairs


def _mark(old: int | None, new: int | None) -> str:
    if old is None:
        return "+"
    if new is None:
        return "-"
    return "=" if old == new else "~"


def _load(trace: Trace, view: GraphView | None, node_ids: list[int]) -> dict[int, NodeRow]:
    if view is None:
        return {}
    rows = load_nodes(trace, node_ids, view.positions.__getitem__)
    return {row.id: row for row in rows}
