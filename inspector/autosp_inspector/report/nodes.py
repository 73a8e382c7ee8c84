"""Nodes of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosp_inspector.report.quantities import (
    UNKNOWN,
    bytes_text,
    count_text,
    place_text,
    shape_text,
    source_text,
)
from autosp_inspector.report.report import Facts, Report, Table, left, right
from autosp_inspector.rows import NodeRow


def nodes_report(graph: str, nodes: Sequence[NodeRow], total: int, *, piece: str = "") -> Report:
    """``nodes`` of ``graph``, of ``total`` that match; ``piece`` says of which piece."""
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
        left("module", dropped=2),
        left("source", dropped=1),
    )
    records = [node_record(node) for node in nodes]
    blocks = (
        Facts((("graph", f"{graph}, {piece}" if piece else graph), ("nodes", shown))),
        Table(columns, rows),
    )
    return Report(
        blocks, {"graph": graph, "piece": piece, "total": total, "nodes": records}, records
    )


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
