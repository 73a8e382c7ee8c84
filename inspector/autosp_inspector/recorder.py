"""Events in, rows out: the observer that writes a trace database."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from autosp.events import (
    CollectiveRecord,
    Decision,
    EstimateSummary,
    Event,
    Finding,
    GraphSnapshot,
    LiveTensor,
    MemoryPoint,
    NodeCost,
    PassFinished,
    PassStarted,
    RunFinished,
    RunStarted,
    TimelineEvent,
)
from autosp_inspector.delta import GraphDelta, GraphState, LiveNode
from autosp_inspector.errors import TraceError
from autosp_inspector.interning import Interning, storable
from autosp_inspector.partial_file import PartialFile, explain

_FLUSH_EVENTS = 20_000
"""Estimate events kept in memory before they are written; bounds the memory used."""


class TraceRecorder:
    """Writes every event to ``path``; one transaction per pass, the difference per graph.

    While it is written the trace is ``<path>.partial``. :meth:`close` renames it if the
    run finished (well or badly); a run that never said so stays under the partial name,
    readable up to its last finished pass, and leaves an older trace in place.

    Raises:
        TraceError: the file cannot be written. After the first failure further events
            are ignored; :meth:`close` raises it again.
    """

    wants_graphs = True

    def __init__(self, path: Path) -> None:
        self._file = PartialFile(Path(path))
        self._connection = self._file.connection
        self._lock = threading.RLock()
        self._interning = Interning()
        self._failure: TraceError | None = None
        self._closed_path: Path | None = None
        self._finished = False
        self._open_pass: PassStarted | None = None
        self._compilation = 0
        self._snapshots: dict[str, GraphSnapshot] = {}
        self._graphs: dict[tuple[int, str], _Graph] = {}
        self._events: list[Event] = []
        self._next_node_id = 1
        self._next_decision_id = 1
        self._next_collective_id = 1

    @property
    def path(self) -> Path:
        """Where the trace is at the moment."""
        return self._closed_path or self._file.path

    def __enter__(self) -> TraceRecorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or self._finished:
            self.close()
        else:
            self.abandon()

    def record(self, event: Event, /) -> None:
        """Take one event; a graph is compared and written when its pass finishes."""
        with self._lock:
            if self._failure is not None:
                return
            match event:
                case GraphSnapshot():
                    self._keep_snapshot(event)
                case PassStarted():
                    self._finish_pass(None)
                    self._open_pass = event
                    self._compilation = event.compilation
                case PassFinished():
                    self._finish_pass(event)
                case RunStarted():
                    self._transaction(lambda: self._write_run(event))
                case RunFinished():
                    self._finish_pass(None)
                    self._transaction(lambda: self._write_finish(event))
                    self._finished = True
                case _:
                    self._events.append(event)
                    if len(self._events) >= _FLUSH_EVENTS and self._open_pass is None:
                        self._transaction(self._write_events)

    def close(self) -> Path:
        """Complete the file and say where it is; harmless when called again."""
        with self._lock:
            if self._failure is not None:
                self.abandon()
                raise self._failure
            if self._closed_path is not None:
                return self._closed_path
            if not self._finished:
                return self.abandon()
            try:
                self._finish_pass(None)
                self._closed_path = self._file.publish()
            except (sqlite3.Error, OSError) as error:
                self._fail(error)
            return self.path

    def abandon(self) -> Path:
        """Write what is known and leave it under the partial name."""
        with self._lock:
            if self._closed_path is None:
                if self._failure is None:
                    self._finish_pass(None)
                self._closed_path = self._file.abandon()
            return self._closed_path

    # -- passes and graphs ---------------------------------------------------------

    def _keep_snapshot(self, event: GraphSnapshot) -> None:
        if self._open_pass is None or self._open_pass.index != event.pass_index:
            raise ValueError(f"snapshot of pass {event.pass_index} outside of that pass")
        self._snapshots[event.graph] = event

    def _finish_pass(self, finished: PassFinished | None) -> None:
        """Write the open pass; ``finished`` is None when it was interrupted."""
        started = self._open_pass
        if started is None:
            if self._events:
                self._transaction(self._write_events)
            return
        if finished is not None and finished.index != started.index:
            raise ValueError(f"pass {finished.index} ends while pass {started.index} is open")
        self._transaction(lambda: self._write_pass(started, finished))
        self._open_pass = None
        self._snapshots.clear()

    def _write_pass(self, started: PassStarted, finished: PassFinished | None) -> None:
        self._connection.execute(
            "INSERT INTO pass VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                started.index,
                storable(started.name),
                storable(started.description),
                to_json(started.options),
                started.compilation,
                finished.duration_ns if finished else None,
                finished.status if finished else "unfinished",
                storable(finished.message) if finished else "",
            ),
        )
        for snapshot in self._snapshots.values():
            self._write_snapshot(started, snapshot)
        self._write_events()

    def _write_snapshot(self, started: PassStarted, snapshot: GraphSnapshot) -> None:
        graph = self._graph(snapshot.graph)
        delta = graph.state.advance(snapshot.nodes, next_id=self._next_node_id)
        self._next_node_id += len(delta.added) + len(delta.changed)
        self._write_delta(graph.graph_id, started.index, delta)
        self._connection.execute(
            "INSERT INTO pass_graph VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                started.index,
                graph.graph_id,
                len(snapshot.nodes),
                len(delta.added),
                delta.num_removed,
                len(delta.changed),
                len(delta.moved),
            ),
        )
        self._write_collectives(graph, started.index, snapshot.collectives)

    def _graph(self, name: str) -> _Graph:
        """The graph of this name in the current compilation; made when new."""
        key = (self._compilation, name)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = _Graph(len(self._graphs) + 1)
            self._connection.execute("INSERT INTO graph VALUES (?, ?, ?)", (graph.graph_id, *key))
        return graph

    def _write_delta(self, graph_id: int, pass_index: int, delta: GraphDelta) -> None:
        execute = self._connection.executemany
        execute("UPDATE node SET died_pass = ? WHERE id = ?",
                [(pass_index, node_id) for node_id in delta.died_ids])  # fmt: skip
        execute(
            "INSERT INTO move VALUES (?, ?, ?, ?)",
            [(graph_id, pass_index, node.node_id, node.order_key) for node in delta.moved],
        )
        born = delta.added + delta.changed
        execute(
            f"INSERT INTO node VALUES ({', '.join('?' * 21)})",
            [self._node_row(graph_id, pass_index, node) for node in born],
        )
        text = self._interning.text
        execute(
            "INSERT INTO edge VALUES (?, ?, ?)",
            [
                (node.node_id, slot, text(name))
                for node in born
                for slot, name in enumerate(node.record.inputs)
            ],
        )
        execute(
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
        self, graph: _Graph, pass_index: int, records: tuple[CollectiveRecord, ...]
    ) -> None:
        current = {record.node: record for record in records}
        ended = [
            (pass_index, number)
            for node, (number, record) in graph.collectives.items()
            if current.get(node) != record
        ]
        self._connection.executemany("UPDATE collective SET died_pass = ? WHERE id = ?", ended)
        alive: dict[str, tuple[int, CollectiveRecord]] = {}
        rows = []
        for node, record in current.items():
            known = graph.collectives.get(node)
            if known is not None and known[1] == record:
                alive[node] = known
                continue
            alive[node] = (self._next_collective_id, record)
            rows.append(self._collective_row(graph.graph_id, pass_index, record))
            self._next_collective_id += 1
        self._connection.executemany(f"INSERT INTO collective VALUES ({', '.join('?' * 17)})", rows)
        graph.collectives = alive

    def _collective_row(
        self, graph_id: int, pass_index: int, record: CollectiveRecord
    ) -> tuple[Any, ...]:
        text = self._interning.text
        return (
            self._next_collective_id,
            graph_id,
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

    # -- everything that is a row of its own -----------------------------------------

    def _write_run(self, event: RunStarted) -> None:
        self._connection.execute(
            "INSERT INTO run VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, '', NULL)",
            (
                storable(event.autosp_version),
                storable(event.torch_version),
                event.mode,
                event.rank,
                event.world_size,
                to_json(event.mesh),
                storable(event.model),
                to_json(event.config),
                storable(event.gradient_convention),
                None if event.hardware is None else to_json(event.hardware),
            ),
        )

    def _write_finish(self, event: RunFinished) -> None:
        self._connection.execute(
            "UPDATE run SET status = ?, message = ?, duration_ns = ?",
            (event.status, storable(event.message), event.duration_ns),
        )

    def _write_events(self) -> None:
        """Write the waiting decisions, findings and estimates, kind by kind."""
        by_kind: dict[type, list[Any]] = {}
        for event in self._events:
            by_kind.setdefault(type(event), []).append(event)
        for kind, (statement, to_row) in self._row_makers().items():
            self._connection.executemany(statement, map(to_row, by_kind.get(kind, ())))
        self._write_alternatives(by_kind.get(Decision, []))
        self._events = []

    def _row_makers(self) -> dict[type, tuple[str, Callable[[Any], tuple[Any, ...]]]]:
        """Statement and row of each kind of event; the one table that lists them."""
        return {
            Decision: (_insert("decision", 9), self._decision_row),
            Finding: (_insert("finding", 8), self._finding_row),
            NodeCost: (_insert("cost", 6, "OR REPLACE"), self._cost_row),
            TimelineEvent: (_insert("timeline", 9, "OR REPLACE"), self._timeline_row),
            MemoryPoint: (_insert("memory", 6, "OR REPLACE"), self._memory_row),
            LiveTensor: (_insert("live_tensor", 10), self._live_tensor_row),
            EstimateSummary: (_insert("estimate", 21, "OR REPLACE"), self._estimate_row),
        }

    def _decision_row(self, event: Decision) -> tuple[Any, ...]:
        number = self._next_decision_id
        self._next_decision_id += 1
        return (
            number,
            event.pass_index,
            event.status,
            storable(event.topic),
            self._interning.text(event.node),
            self._interning.text(self._module_of(event.node)),
            storable(event.chosen),
            storable(event.reason),
            storable(event.rule),
        )

    def _module_of(self, node: str) -> str:
        graph = self._graphs.get((self._compilation, "program"))
        known = graph.state.nodes.get(node) if graph else None
        return known.record.module if known else ""

    def _write_alternatives(self, decisions: list[Decision]) -> None:
        first_id = self._next_decision_id - len(decisions)
        self._connection.executemany(
            _insert("alternative", 5),
            [
                (first_id + offset, slot, *map(storable, (option.name, option.reason, option.cost)))
                for offset, decision in enumerate(decisions)
                for slot, option in enumerate(decision.alternatives)
            ],
        )

    def _finding_row(self, event: Finding) -> tuple[Any, ...]:
        return (
            None,
            storable(event.code),
            event.severity,
            storable(event.message),
            storable(event.node),
            storable(event.module),
            self._interning.source(event.source),
            storable(event.hint),
        )

    def _cost_row(self, event: NodeCost) -> tuple[Any, ...]:
        return (
            self._graph(event.graph).graph_id,
            self._interning.text(event.node),
            event.flops,
            event.memory_bytes,
            event.duration_ns,
            self._interning.text(event.source),
        )

    def _timeline_row(self, event: TimelineEvent) -> tuple[Any, ...]:
        text = self._interning.text
        return (
            event.index,
            storable(event.stream),
            event.phase,
            text(event.node),
            text(event.label),
            event.start_ns,
            event.duration_ns,
            event.exposed_ns,
            text(event.module),
        )

    def _memory_row(self, event: MemoryPoint) -> tuple[Any, ...]:
        return (
            event.index,
            event.phase,
            self._interning.text(event.node),
            self._interning.text(event.module),
            event.live_bytes,
            to_json(event.categories),
        )

    def _live_tensor_row(self, event: LiveTensor) -> tuple[Any, ...]:
        return (
            None,
            storable(event.node),
            event.phase,
            storable(event.category),
            event.bytes,
            storable(event.dtype),
            json.dumps(event.shape),
            storable(event.module),
            self._interning.source(event.created_by),
            storable(event.last_used_by),
        )

    def _estimate_row(self, event: EstimateSummary) -> tuple[Any, ...]:
        return (
            1,
            event.peak_live_bytes,
            event.peak_phase,
            storable(event.peak_node),
            storable(event.peak_module),
            self._interning.source(event.peak_source),
            to_json(event.peak_categories),
            event.peak_index,
            event.allocated_bytes,
            event.reserved_bytes,
            event.device_bytes,
            event.capacity_bytes,
            event.fits,
            event.step_ns,
            event.compute_ns,
            event.communication_ns,
            event.exposed_ns,
            event.hidden_ns,
            event.sharded_flops_fraction,
            event.sharded_saved_bytes_fraction,
            json.dumps(event.not_modelled),
        )

    # -- transactions ------------------------------------------------------------------

    def _transaction(self, write: Callable[[], None]) -> None:
        try:
            self._connection.execute("BEGIN")
            write()
            self._interning.flush(self._connection)
            self._connection.execute("COMMIT")
        except (sqlite3.Error, OSError, OverflowError) as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = TraceError(
            f"cannot write the trace {self._file.target}: {explain(error)}",
            hint=f"What was written before is in {self._file.path}",
        )
        raise self._failure from error


class _Graph:
    """What is known of one graph of one compilation while recording."""

    def __init__(self, graph_id: int) -> None:
        self.graph_id = graph_id
        self.state = GraphState()
        self.collectives: dict[str, tuple[int, CollectiveRecord]] = {}


def to_json(value: Mapping[str, object]) -> str:
    """A JSON object; values that JSON lacks are written as their text."""
    return json.dumps(dict(value), default=str)


def _insert(table: str, num_columns: int, conflict: str = "") -> str:
    places = ", ".join("?" * num_columns)
    return f"INSERT {conflict} INTO {table} VALUES ({places})"
