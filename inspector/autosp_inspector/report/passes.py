"""The passes of a compilation, and what one of them changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autosp_inspector.report.nodes import node_record
from autosp_inspector.report.quantities import count_text, shape_text, time_text
from autosp_inspector.report.report import Facts, Lines, Report, Table, left, right, wrapped
from autosp_inspector.rows import NodeChange, NodeRow, PassRow


def passes_report(passes: Sequence[PassRow]) -> Report:
    """All passes in order."""
    rows = tuple(
        (
            str(row.index),
            row.name,
            time_text(row.duration_ns),
            f"+{row.nodes_added} -{row.nodes_removed} ~{row.nodes_changed}",
            str(row.decisions),
            row.description if row.status == "ok" else f"{row.status}: {row.description}",
        )
        for row in passes
    )
    columns = (
        right("#"),
        left("pass"),
        right("time"),
        left("nodes"),
        right("decisions"),
        wrapped("what it does"),
    )
    records = [_record(row) for row in passes]
    return Report((Table(columns, rows),), {"passes": records}, records)


def _record(row: PassRow) -> dict[str, Any]:
    return {
        "index": row.index,
        "name": row.name,
        "duration_ns": row.duration_ns,
        "nodes_added": row.nodes_added,
        "nodes_removed": row.nodes_removed,
        "nodes_changed": row.nodes_changed,
        "decisions": row.decisions,
    }


def pass_diff_report(
    changed_by: PassRow, graph: str, changes: Sequence[NodeChange], *, piece: str = ""
) -> Report:
    """The nodes that one pass added, removed or changed; ``piece`` says of which piece."""
    facts = Facts(
        (
            ("pass", f"{changed_by.index} {changed_by.name}"),
            ("graph", f"{graph}, {piece}" if piece else graph),
            ("changes", count_text(len(changes), "node")),
        )
    )
    rows = tuple(
        (change.mark, _node_of(change).name, _node_of(change).target, _change_text(change))
        for change in changes
    )
    table = Table((left(""), left("node"), left("operator", dropped=1), wrapped("change")), rows)
    records = [
        {
            "mark": change.mark,
            "name": _node_of(change).name,
            "before": None if change.before is None else node_record(change.before),
            "after": None if change.after is None else node_record(change.after),
        }
        for change in changes
    ]
    data = {"pass": _record(changed_by), "graph": graph, "changes": records}
    blocks = (facts, table if rows else Lines(("The pass left this graph as it was.",)))
    return Report(blocks, data, records)


def _node_of(change: NodeChange) -> NodeRow:
    node = change.after or change.before
    assert node is not None
    return node


def _change_text(change: NodeChange) -> str:
    before, after = change.before, change.after
    if before is None or after is None:
        node = _node_of(change)
        return f"{_layout(node)}  {node.reason}".strip()
    parts = []
    if _layout(before) != _layout(after):
        parts.append(f"{_layout(before)} -> {_layout(after)}")
    if before.target != after.target:
        parts.append(f"operator {before.target} -> {after.target}")
    if before.inputs != after.inputs:
        parts.append(f"inputs ({', '.join(before.inputs)}) -> ({', '.join(after.inputs)})")
    if before.saved != after.saved:
        parts.append("saved for backward" if after.saved else "no longer saved for backward")
    return "; ".join(parts) or "other attributes"


def _layout(node: NodeRow) -> str:
    """Shape on a rank and placement."""
    shape = shape_text(node.local_shape or node.global_shape, node.dtype)
    return f"{shape} {node.placement}" if node.placement else shape
