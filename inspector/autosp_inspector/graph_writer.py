"""Snapshots of graphs to rows: what was born and what died, never the whole graph."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autosp.events import CollectiveRecord, GraphSnapshot
from autosp_inspector.delta import GraphDelta, GraphState, LiveNode
from autosp_inspector.interning import Interning, storable


@dataclass(slots=True)
class _Graph:
    """What is known of one graph of one compilation while recording."""

    graph_id: int
    state: GraphState = field(default_factory=GraphState)
    collectives: dict[str, tuple[int, CollectiveRecord]] = field(default_factory=dict)
    """Start node -> number of the row, and what it says."""


class GraphWriter:
    """Writes the difference of each snapshot; inside the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, interning: Interning) -> None:
        self.compilation = 0
        self._connection = connection
        self._interning = interning
        self._graphs: dict[tuple[int, str], _Graph] = {}
        self._next_node_id = 1
        self._next_collective_id = 1

    def graph_id(self, name: str, *, compilation: int | None = None) -> int:
        """The graph of this name in a compilation, by default the current one.

        Its row is made when new.
        """
        return self._graph(name, compilation).graph_id

    def module_of(self, program_node: str) -> str:
        """Module path of a node of the program; empty when there is no such node."""
        graph = self._graphs.get((self.compilation, "program"))
        known = graph.state.nodes.get(program_node) if graph else None
        return known.record.module if known else ""

    def write(self, snapshot: GraphSnapshot) -> None:
        """Go to ``snapshot`` and write what changed.

        Raises:
            ValueError: two nodes have the same name.
        """
        graph = self._graph(snapshot.graph)
        delta = graph.state.advance(snapshot.nodes, next_id=self._next_node_id)
        self._next_node_id += len(delta.added) + len(delta.changed)
        self._write_deaths_and_moves(graph.graph_id, snapshot.pass_index, delta)
        self._write_births(graph.graph_id, snapshot.pass_index, delta.added + delta.changed)
        self._connection.execute(
            "INSERT INTO pass_graph VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                snapshot.pass_index,
                graph.graph_id,
                len(snapshot.nodes),
                len(delta.added),
                delta.num_removed,
                len(delta.changed),
                len(delta.moved),
            ),
        )
        self._write_collectives(graph, snapshot.pass_index, snapshot.collectives)

    def _graph(self, name: str, compilation: int | None = None) -> _Graph:
        key = (self.compilation if compilation is None else compilation, name)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = _Graph(len(self._graphs) + 1)
            self._connection.execute("INSERT INTO graph VALUES (?, ?, ?)", (graph.graph_id, *key))
        return graph

    def _write_deaths_and_moves(self, graph_id: int, pass_index: int, delta: GraphDelta) -> None:
        self._connection.executemany(
            "UPDATE node SET died_pass = ? WHERE id = ?",
            [(pass_index, node_id) for node_id in delta.died_ids],
        )
        self._connection.executemany(
            "INSERT INTO move VALUES (?, ?, ?, ?)",
            [(graph_id, pass_index, node.node_id, node.order_key) for node in delta.moved],
        )

    def _write_births(self, graph_id: int, pass_index: int, born: Sequence[LiveNode]) -> None:
        text = self._interning.text
        self._connection.executemany(
            f"INSERT INTO node VALUES ({', '.join('?' * 21)})",
            [self._node_row(graph_id, pass_index, node) for node in born],
        )
        self._connection.executemany(
            "INSERT INTO edge VALUES (?, ?, ?)",
            [
                (node.node_id, slot, text(name))
                for node in born
                for slot, name in enumerate(node.record.inputs)
            ],
        )
        self._connection.executemany(
            "INSERT INTO origin VALUES (?, ?, ?)",
            [
                (node.node_id, slot, text(name))
                for node in born
                for slot, name in enumerate(node.record.origins)
            ],
        )

    def _node_row(self, graph_id: int, pass_index: int, node: LiveNode) -> tuple[Any, ...]:
        record = node.record
        interning = self._interning
        text = interning.text
        optional_text = interning.optional_text
        return (
            node.node_id,
            graph_id,
            text(record.name),
            pass_index,
            None,
            node.order_key,
            text(record.op),
            text(record.target),
            text(record.role),
            text(record.phase),
            optional_text(record.dtype),
            interning.shape(record.global_shape),
            interning.shape(record.local_shape),
            optional_text(record.placement),
            record.local_bytes,
            text(record.module),
            text(record.module_class),
            interning.source(record.source),
            int(record.saved),
            int(record.recomputed),
            text(record.reason),
        )

    def _write_collectives(
        self, graph: _Graph, pass_index: int, records: Sequence[CollectiveRecord]
    ) -> None:
        current = {record.node: record for record in records}
        ended = [
            (pass_index, number)
            for node, (number, record) in graph.collectives.items()
            if current.get(node) != record
        ]
        alive: dict[str, tuple[int, CollectiveRecord]] = {}
        born: list[tuple[Any, ...]] = []
        for node, record in current.items():
            known = graph.collectives.get(node)
            if known is not None and known[1] == record:
                alive[node] = known
                continue
            number = self._next_collective_id
            self._next_collective_id += 1
            alive[node] = (number, record)
            born.append((number, graph.graph_id, *self._collective_row(pass_index, record)))
        graph.collectives = alive
        self._connection.executemany("UPDATE collective SET died_pass = ? WHERE id = ?", ended)
        self._connection.executemany(f"INSERT INTO collective VALUES ({', '.join('?' * 17)})", born)

    def _collective_row(self, pass_index: int, record: CollectiveRecord) -> tuple[Any, ...]:
        text = self._interning.text
        return (
            text(record.node),
            pass_index,
            None,
            record.kind,
            record.phase,
            record.origin,
            storable(record.axis),
            record.group_size,
            record.bytes,
            storable(record.dtype),
            text(record.module),
            text(record.cause),
            text(record.reason),
            storable(record.source_placement),
            storable(record.target_placement),
        )
