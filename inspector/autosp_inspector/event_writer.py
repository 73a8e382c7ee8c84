"""Events that are a row of their own: the run, passes, decisions, findings, estimates."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from autosp.events import (
    Decision,
    EstimateSummary,
    Event,
    Finding,
    LiveTensor,
    MemoryPoint,
    NodeCost,
    PassFinished,
    PassStarted,
    RunFinished,
    RunStarted,
    TimelineEvent,
)
from autosp_inspector.graph_writer import GraphWriter
from autosp_inspector.interning import Interning, storable

Row = tuple[Any, ...]


class EventWriter:
    """Writes rows; inside the caller's transaction."""

    def __init__(
        self, connection: sqlite3.Connection, interning: Interning, graphs: GraphWriter
    ) -> None:
        self._connection = connection
        self._interning = interning
        self._graphs = graphs
        self._num_decisions = 0

    def write_run(self, event: RunStarted) -> None:
        self._connection.execute(
            "INSERT INTO run VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, '', NULL)",
            (
                storable(event.autosp_version),
                storable(event.torch_version),
                event.mode,
                event.rank,
                event.world_size,
                _to_json(event.mesh),
                storable(event.model),
                _to_json(event.config),
                storable(event.gradient_convention),
                None if event.hardware is None else _to_json(event.hardware),
            ),
        )

    def write_finish(self, event: RunFinished) -> None:
        self._connection.execute(
            "UPDATE run SET status = ?, message = ?, duration_ns = ?",
            (event.status, storable(event.message), event.duration_ns),
        )

    def write_pass(self, started: PassStarted, finished: PassFinished | None) -> None:
        """``finished`` is None for a pass that was interrupted."""
        self._connection.execute(
            "INSERT INTO pass VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                started.index,
                storable(started.name),
                storable(started.description),
                _to_json(started.options),
                started.compilation,
                finished.duration_ns if finished else None,
                finished.status if finished else "unfinished",
                storable(finished.message) if finished else "",
            ),
        )

    def write(self, events: Sequence[Event]) -> None:
        """Write decisions, findings and estimates, kind by kind."""
        by_kind: dict[type, list[Any]] = {}
        for event in events:
            by_kind.setdefault(type(event), []).append(event)
        tables = self._tables()
        for kind, of_kind in by_kind.items():
            statement, to_row = tables[kind]
            self._connection.executemany(statement, map(to_row, of_kind))
        self._write_details(by_kind.get(Decision, []))

    def _tables(self) -> dict[type, tuple[str, Callable[[Any], Row]]]:
        """Statement and row of each kind of event; a later estimate replaces an earlier."""
        return {
            Decision: (_insert("decision", 9), self._decision_row),
            Finding: (_insert("finding", 10), self._finding_row),
            NodeCost: (_insert("cost", 6), self._cost_row),
            TimelineEvent: (_insert("timeline", 9), self._timeline_row),
            MemoryPoint: (_insert("memory", 6), self._memory_row),
            LiveTensor: (_insert("live_tensor", 10), self._live_tensor_row),
            EstimateSummary: (_insert("estimate", 21), self._estimate_row),
        }

    def _write_details(self, decisions: Sequence[Decision]) -> None:
        first_id = self._num_decisions - len(decisions) + 1
        self._connection.executemany(
            _insert("alternative", 5),
            [
                (first_id + offset, slot, *map(storable, (option.name, option.reason, option.cost)))
                for offset, decision in enumerate(decisions)
                for slot, option in enumerate(decision.alternatives)
            ],
        )
        self._connection.executemany(
            _insert("figures", 2),
            [
                (first_id + offset, self._interning.text(json.dumps(decision.figures)))
                for offset, decision in enumerate(decisions)
                if decision.figures is not None
            ],
        )

    def _decision_row(self, event: Decision) -> Row:
        self._num_decisions += 1
        return (
            self._num_decisions,
            event.pass_index,
            event.status,
            storable(event.topic),
            self._interning.text(event.node),
            self._interning.text(self._graphs.module_of(event.node)),
            storable(event.chosen),
            storable(event.reason),
            storable(event.rule),
        )

    def _finding_row(self, event: Finding) -> Row:
        return (
            None,
            storable(event.code),
            event.severity,
            storable(event.message),
            storable(event.node),
            storable(event.module),
            self._interning.source(event.source),
            storable(event.hint),
            event.cost_bytes,
            event.cost_ns,
        )

    def _cost_row(self, event: NodeCost) -> Row:
        return (
            self._graphs.graph_id(event.graph),
            self._interning.text(event.node),
            event.flops,
            event.memory_bytes,
            event.duration_ns,
            self._interning.text(event.source),
        )

    def _timeline_row(self, event: TimelineEvent) -> Row:
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

    def _memory_row(self, event: MemoryPoint) -> Row:
        return (
            event.index,
            event.phase,
            self._interning.text(event.node),
            self._interning.text(event.module),
            event.live_bytes,
            _numbers_to_json(tuple(event.categories.items())),
        )

    def _live_tensor_row(self, event: LiveTensor) -> Row:
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

    def _estimate_row(self, event: EstimateSummary) -> Row:
        return (
            1,
            event.peak_live_bytes,
            event.peak_phase,
            storable(event.peak_node),
            storable(event.peak_module),
            self._interning.source(event.peak_source),
            _to_json(event.peak_categories),
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


def _to_json(value: Mapping[str, object]) -> str:
    """A JSON object; values that JSON lacks are written as their text."""
    return json.dumps(dict(value), default=str)


@lru_cache(maxsize=1024)
def _numbers_to_json(items: tuple[tuple[str, int], ...]) -> str:
    """Most operators of a step leave the live bytes of every category as they were."""
    return _to_json(dict(items))


def _insert(table: str, num_columns: int) -> str:
    places = ", ".join("?" * num_columns)
    return f"INSERT OR REPLACE INTO {table} VALUES ({places})"
