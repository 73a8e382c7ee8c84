"""Collectives with their cause and, where estimated, their time."""

from __future__ import annotations

from dataclasses import replace

from autosp_inspector.queries.graph_view import graph_view
from autosp_inspector.queries.measurement import measured_times, measured_waits
from autosp_inspector.queries.nodes import graph_names
from autosp_inspector.queries.pieces import list_pieces
from autosp_inspector.rows import CollectiveRow
from autosp_inspector.trace import Trace

_COLLECTIVES = """
SELECT node.value, graph.name, collective.kind, collective.phase, module.value,
       collective.origin, collective.axis, collective.group_size, collective.bytes,
       collective.dtype, cause.value, reason.value, collective.source_placement,
       collective.target_placement, timeline.start_ns, timeline.duration_ns,
       timeline.exposed_ns,
       (SELECT version.id FROM node AS version WHERE version.graph_id = collective.graph_id
        AND version.name_text = collective.node_text AND version.born_pass <= ?2
        AND (version.died_pass IS NULL OR version.died_pass > ?2))
FROM collective
JOIN graph ON graph.id = collective.graph_id
JOIN text AS node ON node.id = collective.node_text
JOIN text AS module ON module.id = collective.module_text
JOIN text AS cause ON cause.id = collective.cause_text
JOIN text AS reason ON reason.id = collective.reason_text
LEFT JOIN timeline ON timeline.event_index = (
    SELECT min(event.event_index) FROM timeline AS event
    WHERE event.node_text = collective.node_text AND event.phase = collective.phase
      AND event.stream <> 'compute')
WHERE collective.graph_id = ?1 AND collective.born_pass <= ?2
  AND (collective.died_pass IS NULL OR collective.died_pass > ?2)
  AND (?3 IS NULL OR collective.phase = ?3)
"""


def list_collectives(
    trace: Trace, *, phase: str | None = None, graph: str | None = None
) -> tuple[CollectiveRow, ...]:
    """Collectives of the final graphs, in graph order.

    Those of ``graph``; without it those of forward and backward, or of the program when
    the pipeline did not get that far; of all pieces of a program in pieces. Times are those
    of the estimated timeline.
    """
    graphs = _default_graphs(trace) if graph is None else (graph,)
    pieces = list_pieces(trace)
    if not pieces:
        return tuple(row for name in graphs for row in _of_graph(trace, name, phase))
    chosen = [piece for piece in pieces if trace.compilation in (None, piece.compilation)]
    return tuple(
        replace(row, piece=piece.number, runs=piece.runs)
        for name in graphs
        for piece in (chosen if name != "backward" else chosen[::-1])
        for row in _of_graph(trace.of_compilation(piece.compilation), name, phase)
    )


def _default_graphs(trace: Trace) -> tuple[str, ...]:
    known = graph_names(trace)
    return tuple(name for name in ("forward", "backward") if name in known) or ("program",)


def _of_graph(trace: Trace, graph: str, phase: str | None) -> list[CollectiveRow]:
    view = graph_view(trace, graph)
    if view is None:
        return []
    last = len(view.positions)
    rows = trace.fetch(_COLLECTIVES, (view.graph_id, view.pass_index, phase))
    rows.sort(key=lambda row: view.positions.get(row[17], last))
    times, waits = measured_times(trace, graph), measured_waits(trace, graph)
    return [
        replace(
            CollectiveRow(*row[:17]),
            measured_ns=times[row[0]] + waits.get(row[0], 0) if row[0] in times else None,
        )
        for row in rows
    ]
