"""Nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosp_inspector.report.quantities import (
    UNKNOWN,
    bytes_text,
    count_text,
    place_text,
    shape_text,
    source_text,
    time_text,
)
from autosp_inspector.report.report import Facts, Report, Table, left, right
from autosp_inspector.rows import NodeRow


def nodes_report(
    graph: str,
    nodes: Sequence[NodeRow],
    total: int,
    *,
    piece: str = "",
    estimated_ns: Mapping[str, int | None] | None = None,
    measured_ns: Mapping[str, int] | None = None,
    incomparable: str = "",
) -> Report:
    """``nodes`` of ``graph``, of ``total`` that match; ``piece`` says of which piece.

    Times are shown where some were measured; ``incomparable`` says why not to compare them.
    """
    estimates, times = estimated_ns or {}, measured_ns or {}
    shown = count_text(total, "node")
    if len(nodes) < total:
        shown += f", {len(nodes)} of them shown"
    rows = tuple(
        (
            node.name,
            node.role,
            node.target,
            shape_text(node.global_shape),
            shape_text(node.local_shape, node.dtype),
            node.placement or UNKNOWN,
            bytes_text(node.local_bytes),
            *_times(node, estimates, times),
            node.module,
            place_text(node.source),
        )
        for node in nodes
    )
    columns = (
        left("node"),
        left("role", dropped=3),
        left("operator"),
        left("global shape", dropped=5),
        left("on a rank"),
        left("placement"),
        right("bytes", dropped=4),
        *((right("estimated"), right("measured")) if times else ()),
        left("module", dropped=2),
        left("source", dropped=1),
    )
    records = [
        {
            **node_record(node),
            "estimated_ns": estimates.get(node.name),
            "measured_ns": times.get(node.name),
        }
        for node in nodes
    ]
    facts = [("graph", f"{graph}, {piece}" if piece else graph), ("nodes", shown)]
    if times:
        facts.append(("measured", f"{sum(node.name in times for node in nodes)} of them"))
        facts += [("", incomparable)] if incomparable else []
    blocks = (Facts(tuple(facts)), Table(columns, rows))
    return Report(
        blocks, {"graph": graph, "piece": piece, "total": total, "nodes": records}, records
    )


def _times(
    node: NodeRow, estimates: Mapping[str, int | None], times: Mapping[str, int]
) -> tuple[str, ...]:
    if not times:
        return ()
    return time_text(estimates.get(node.name)), time_text(times.get(node.name))


def node_record(node: NodeRow) -> dict[str, Any]:
    """One version of a node, for JSON."""
    return {
        "name": node.name,
        "graph": node.graph,
        "op": node.op,
        "target": node.target,
        "inputs": list(node.inputs),
        "role": node.role,
        "phase": node.phase,
        "dtype": node.dtype,
        "global_shape": None if node.global_shape is None else list(node.global_shape),
        "local_shape": None if node.local_shape is None else list(node.local_shape),
        "placement": node.placement,
        "local_bytes": node.local_bytes,
        "module": node.module,
        "module_class": node.module_class,
        "source": source_text(node.source),
        "source_text": node.source.text if node.source else "",
        "origins": list(node.origins),
        "saved": node.saved,
        "recomputed": node.recomputed,
        "reason": node.reason,
        "born_pass": node.born_pass,
        "died_pass": node.died_pass,
    }
