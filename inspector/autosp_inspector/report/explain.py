"""Everything known of one node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autosp_inspector.queries.causes import Cause
from autosp_inspector.report.collectives import collective_record
from autosp_inspector.report.decisions import alternative_text, decision_record
from autosp_inspector.report.nodes import node_record
from autosp_inspector.report.quantities import (
    UNKNOWN,
    bytes_text,
    count_text,
    place_text,
    shape_text,
    source_text,
    time_text,
)
from autosp_inspector.report.report import Block, Facts, Lines, Report, Table, left, right, wrapped
from autosp_inspector.rows import BUFFER_ROLES, CollectiveRow, CostRow, DecisionRow, NodeRow


@dataclass(frozen=True, slots=True)
class NodeKnowledge:
    """What the queries say of one node."""

    node: NodeRow
    history: tuple[NodeRow, ...]
    decisions: tuple[DecisionRow, ...]
    collectives: tuple[CollectiveRow, ...]
    """Inserted for its sake, or itself."""
    derived: tuple[NodeRow, ...]
    users: tuple[NodeRow, ...]
    cost: CostRow | None
    derived_costs: tuple[CostRow, ...]
    """Of the derived nodes that are executed, forward and backward."""
    causes: tuple[Cause, ...] = ()
    """Of its placement, back to where the sequence was cut."""
    partition: DecisionRow | None = None
    """How the joint graph was split, where it was."""


SHOWN_SAVED = 4
"""Saved tensors that the text names."""

SHOWN_DERIVED = 12
"""Derived nodes that the text lists; the other formats have all."""


def explain_report(known: NodeKnowledge) -> Report:
    """What the node is, why it is placed so, what came of it."""
    data = {
        "node": node_record(known.node),
        "history": [node_record(version) for version in known.history],
        "placement_causes": [_cause_record(cause) for cause in known.causes],
        "decisions": [decision_record(row) for row in known.decisions],
        "collectives": [collective_record(row) for row in known.collectives],
        "derived": [node_record(row) for row in known.derived],
        "users": [row.name for row in known.users],
        "cost": _cost_record(known.cost),
        "derived_duration_ns": _durations(known.derived_costs),
    }
    blocks: list[Block] = [Facts(_facts(known))]
    if known.causes:
        blocks.append(Lines(tuple(_cause_lines(known.causes)), "Why it is placed so"))
    if len(known.history) > 1:
        blocks.append(_history_table(known.history))
    if known.decisions:
        blocks.append(_decision_lines(known.decisions))
    if known.collectives:
        blocks.append(_collective_table(known.collectives))
    if known.derived:
        blocks.append(_derived_table(known.derived))
    return Report(tuple(blocks), data, [data["node"]])  # type: ignore[list-item]


def _cost_record(cost: CostRow | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    return {
        "flops": cost.flops,
        "memory_bytes": cost.memory_bytes,
        "duration_ns": cost.duration_ns,
        "source": cost.source,
    }


def _durations(costs: Sequence[CostRow]) -> dict[str, int]:
    """Graph -> sum of the known durations."""
    totals: dict[str, int] = {}
    for cost in costs:
        if cost.duration_ns is not None:
            totals[cost.graph] = totals.get(cost.graph, 0) + cost.duration_ns
    return totals


def _facts(known: NodeKnowledge) -> tuple[tuple[str, str], ...]:
    node = known.node
    facts = [
        ("node", f"{node.name} ({node.graph}, {node.phase})"),
        ("operator", f"{node.target}, {node.role}"),
        ("inputs", ", ".join(node.inputs) or "none"),
        ("used by", ", ".join(user.name for user in known.users) or "nothing"),
        ("global shape", _global_text(node)),
        (
            "on a rank",
            f"{shape_text(node.local_shape, node.dtype)}, {bytes_text(node.local_bytes)}",
        ),
        ("placement", node.placement or UNKNOWN),
    ]
    if node.module:
        facts.append(("module", f"{node.module} ({node.module_class})".replace(" ()", "")))
    if node.source is not None:
        facts.append(("source", f"{place_text(node.source)}  {node.source.text.strip()}".rstrip()))
    if node.origins and node.origins != (node.name,):
        facts.append(("comes from", ", ".join(node.origins)))
    if node.reason and not known.causes:
        facts.append(("why", node.reason))
    facts.extend(_kept_facts(known))
    if known.cost is not None:
        facts.append(("cost (estimate)", _cost_text(known.cost)))
    times = _durations(known.derived_costs)
    if times:
        parts = (f"{graph} {time_text(duration)}" for graph, duration in times.items())
        facts.append(("derived (estimate)", ", ".join(parts)))
    return tuple(facts)


def _global_text(node: NodeRow) -> str:
    if node.global_shape is None and node.role in BUFFER_ROLES:
        return "none: a buffer of this rank on the way between two placements"
    return shape_text(node.global_shape, node.dtype)


def _kept_facts(known: NodeKnowledge) -> Iterator[tuple[str, str]]:
    """What of the node is kept for the backward, and what is computed again."""
    forward = {row.name: row for row in (known.node, *known.derived) if row.graph == "forward"}
    again = [row for row in (known.node, *known.derived) if row.graph == "backward"]
    reason = f"; chosen as {known.partition.reason}" if known.partition is not None else ""
    saved = [row for row in forward.values() if row.saved]
    if saved:
        shown = [f"{row.name} ({bytes_text(row.local_bytes)})" for row in saved[:SHOWN_SAVED]]
        more = f" and {len(saved) - len(shown)} more" if len(saved) > len(shown) else ""
        yield "saved", ", ".join(shown) + more + reason
    recomputed = [row.name for row in again if row.recomputed]
    if recomputed:
        yield "recomputed", ", ".join(recomputed) + reason
    if forward and not saved and not recomputed:
        yield "for backward", "not kept: nothing in the backward reads it"


def _cause_lines(causes: Sequence[Cause]) -> Iterator[str]:
    """One step a line, from the node back to the seed."""
    for cause in causes:
        node = cause.node
        if cause.left_out:
            keep = "keeps" if cause.left_out == 1 else "keep"
            yield f"  <- {count_text(cause.left_out, 'operator')} that {keep} the placement"
        arrow = "  <- " if cause is not causes[0] else ""
        placement = f"{node.placement} " if node.placement else ""
        where = f" ({place_text(node.source)})" if node.source is not None else ""
        yield f"{arrow}{placement}{node.name}{where}"
        if cause.why:
            yield f"     because {cause.why}"
        if cause.rule:
            yield f"     {cause.rule}"


def _cause_record(cause: Cause) -> dict[str, Any]:
    return {
        "node": cause.node.name,
        "placement": cause.node.placement,
        "target": cause.node.target,
        "role": cause.node.role,
        "why": cause.why,
        "rule": cause.rule,
        "left_out": cause.left_out,
        "source": source_text(cause.node.source),
    }


def _cost_text(cost: CostRow) -> str:
    flops = UNKNOWN if cost.flops is None else f"{cost.flops:.3g}"
    moved = bytes_text(cost.memory_bytes)
    return f"{time_text(cost.duration_ns)}, {flops} FLOP, {moved} moved ({cost.source})"


def _history_table(history: Sequence[NodeRow]) -> Table:
    columns = (right("since pass"), left("operator"), left("on a rank"), left("placement"))
    rows = tuple(
        (
            str(version.born_pass),
            version.target,
            shape_text(version.local_shape or version.global_shape, version.dtype),
            version.placement or UNKNOWN,
        )
        for version in history
    )
    return Table(columns, rows, "History")


def _decision_lines(decisions: Sequence[DecisionRow]) -> Lines:
    lines: list[str] = []
    for row in decisions:
        lines.append(f"{row.status} {row.topic}: {row.chosen}")
        lines.append(f"    because {row.reason}" if row.reason else "    no reason recorded")
        lines.extend(f"    not {alternative_text(item)}" for item in row.alternatives)
        if row.rule:
            lines.append(f"    rule {row.rule}, pass {row.pass_index} {row.pass_name}")
    return Lines(tuple(lines), "Decisions")


def _collective_table(collectives: Sequence[CollectiveRow]) -> Table:
    columns = (
        left("collective"),
        left("kind"),
        left("phase"),
        right("bytes"),
        right("time"),
        wrapped("reason"),
    )
    rows = tuple(
        (
            row.name,
            row.kind,
            row.phase,
            bytes_text(row.bytes),
            time_text(row.duration_ns),
            row.reason,
        )
        for row in collectives
    )
    return Table(columns, rows, "Collectives")


def _derived_table(derived: Sequence[NodeRow]) -> Table:
    columns = (left("graph"), left("node"), left("operator"), left("on a rank"))
    rows = tuple(
        (row.graph, row.name, row.target, shape_text(row.local_shape, row.dtype))
        for row in derived[:SHOWN_DERIVED]
    )
    more = f" (the first {len(rows)} of {len(derived)})" if len(rows) < len(derived) else ""
    return Table(columns, rows, f"In the other graphs{more}")
