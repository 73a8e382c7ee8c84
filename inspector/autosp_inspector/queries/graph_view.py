"""One graph as it was after one pass: which node versions, in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosp_inspector.queries.pieces import main_piece
from autosp_inspector.trace import Trace


@dataclass(frozen=True, slots=True)
class GraphView:
    """The graph ``graph_id`` after pass ``pass_index``."""

    graph_id: int
    name: str
    pass_index: int
    node_ids: tuple[int, ...]
    """Node versions in graph order."""
    positions: Mapping[int, int]
    """Node version -> place in ``node_ids``."""


def graph_view(trace: Trace, graph: str, pass_index: int | None = None) -> GraphView | None:
    """The view of ``graph``; None when it does not exist at that pass.

    ``pass_index`` None is the latest pass of the trace's compilation: of the piece with most
    nodes in a program in pieces, else of the latest one that has the graph.
    """
    located = _locate(trace, graph, pass_index)
    if located is None:
        return None
    graph_id, effective_pass = located
    return trace.cached(
        ("view", graph_id, effective_pass),
        lambda: _read_view(trace, graph_id, graph, effective_pass),
    )


def all_graph_ids(trace: Trace, graph: str) -> tuple[int, ...]:
    """The graphs of this name, in the order of the compilations."""
    rows = trace.fetch(
        "SELECT id FROM graph WHERE name = ?1 AND (?2 IS NULL OR compilation = ?2)"
        " ORDER BY compilation",
        (graph, trace.compilation),
    )
    return tuple(number for (number,) in rows)


def _locate(trace: Trace, graph: str, pass_index: int | None) -> tuple[int, int] | None:
    """Graph id, and the last pass up to ``pass_index`` that touched that graph.

    Passes that leave a graph alone share one view this way.
    """
    rows = trace.fetch(
        "SELECT pass_graph.graph_id, pass_graph.pass_index FROM pass_graph"
        " JOIN graph ON graph.id = pass_graph.graph_id"
        " WHERE graph.name = ?1 AND (?2 IS NULL OR (pass_graph.pass_index <= ?2"
        " AND graph.compilation = (SELECT compilation FROM pass WHERE pass_index <= ?2"
        " ORDER BY pass_index DESC LIMIT 1)))"
        " AND (?2 IS NOT NULL OR ?3 IS NULL OR graph.compilation = ?3)"
        " ORDER BY pass_graph.pass_index DESC LIMIT 1",
        (graph, pass_index, None if pass_index is not None else _compilation(trace)),
    )
    return rows[0] if rows else None


def _compilation(trace: Trace) -> int | None:
    if trace.compilation is not None:
        return trace.compilation
    piece = main_piece(trace)
    return None if piece is None else piece.compilation


def _read_view(trace: Trace, graph_id: int, name: str, pass_index: int) -> GraphView:
    keys: dict[int, int] = dict(
        trace.fetch(
            "SELECT id, order_key FROM node WHERE graph_id = ?1 AND born_pass <= ?2"
            " AND (died_pass IS NULL OR died_pass > ?2)",
            (graph_id, pass_index),
        )
    )
    moves = trace.fetch(
        "SELECT node_id, order_key FROM move WHERE graph_id = ? AND pass_index <= ?"
        " ORDER BY pass_index",
        (graph_id, pass_index),
    )
    for node_id, order_key in moves:
        if node_id in keys:
            keys[node_id] = order_key
    node_ids = tuple(sorted(keys, key=keys.__getitem__))
    positions = {node_id: position for position, node_id in enumerate(node_ids)}
    return GraphView(graph_id, name, pass_index, node_ids, positions)
