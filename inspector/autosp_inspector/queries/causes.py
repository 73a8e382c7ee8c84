"""Why a node lies as it does: back over what it reads, to where the sequence was cut.

Most operators keep the placement of their input; the chain is the shortest way back, with
runs of such operators left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from autosp_inspector.queries.decisions import list_decisions
from autosp_inspector.queries.nodes import list_nodes, program_names
from autosp_inspector.rows import DecisionRow, NodeRow
from autosp_inspector.trace import Trace

WHOLE = "R"


@dataclass(frozen=True, slots=True)
class Cause:
    """One step of the chain, from the node back to its seed."""

    node: NodeRow
    why: str
    rule: str
    """Where the choice was made; empty where no choice was."""
    left_out: int = 0
    """Operators between this step and the one before that keep the placement."""


def placement_causes(trace: Trace, node: NodeRow) -> tuple[Cause, ...]:
    """From the node (or the user's node that it comes from) back to a seed or an input.

    Empty before sharding, and for a node without a placement.
    """
    rows = {row.name: row for row in list_nodes(trace, graph="program")}
    start = _value_of(node, rows)
    if start is None:
        return ()
    decisions: dict[str, list[DecisionRow]] = {}
    for decision in list_decisions(trace):
        decisions.setdefault(decision.node, []).append(decision)
    seeds = {name for name, rows in decisions.items() if any(d.topic == "seed" for d in rows)}
    path = _way_back(start, rows, seeds)
    return _shortened([_explained(row, decisions) for row in path])


def _value_of(node: NodeRow, rows: Mapping[str, NodeRow]) -> NodeRow | None:
    """The node of the per-rank program that holds a value: ``node``, or what it comes from.

    A pack, a wait or a part of a formula holds none: the value that it helps to make.
    """
    own = node.name if node.graph == "program" else next(reversed(node.origins), "")
    start = rows.get(own)
    if start is not None:
        made = _made_of(start, rows)
        if made is not None:
            return made
    names = {*program_names(node)}
    values = [r for r in rows.values() if r.placement is not None and names & {*r.origins}]
    return max(values, key=lambda row: row.position, default=None)


def _made_of(start: NodeRow, rows: Mapping[str, NodeRow]) -> NodeRow | None:
    """The first value after ``start`` that exists for the sake of the same user's node."""
    reached = {start.name}
    for row in sorted(rows.values(), key=lambda row: row.position):
        if row.name == start.name or (row.origins == start.origins and reached & {*row.inputs}):
            if row.placement is not None:
                return row
            reached.add(row.name)
    return None


def _way_back(start: NodeRow, rows: Mapping[str, NodeRow], seeds: set[str]) -> list[NodeRow]:
    """To the nearest gather if the node is whole, from there to the nearest seed."""

    def is_seed(row: NodeRow) -> bool:
        return not seeds.isdisjoint(row.origins or (row.name,)) and row.role != "input"

    if is_seed(start):
        return [start]
    if start.placement != WHOLE:
        return _shortest(start, rows, is_seed) or _to_an_input(start, rows)
    gathered = _shortest(start, rows, lambda row: row.role == "collective")
    if gathered:
        return gathered + _shortest(gathered[-1], rows, is_seed)[1:]
    return _to_an_input(start, rows)


def _to_an_input(start: NodeRow, rows: Mapping[str, NodeRow]) -> list[NodeRow]:
    """To an integer input if there is one, else to any input or to what the program counts."""
    return (
        _shortest(start, rows, lambda row: row.role == "input" and _is_integer(row))
        or _shortest(start, rows, lambda row: row.role == "input" or not row.inputs)
        or [start]
    )


def _shortest(
    start: NodeRow, rows: Mapping[str, NodeRow], is_goal: Callable[[NodeRow], bool]
) -> list[NodeRow]:
    """The nodes from ``start`` to the nearest goal behind it; empty without one."""
    after: dict[str, NodeRow | None] = {start.name: None}
    queue = deque([start])
    while queue:
        row = queue.popleft()
        if row is not start and is_goal(row):
            return _path(row, after)
        for name in row.inputs:
            if name in rows and name not in after:
                after[name] = row
                queue.append(rows[name])
    return []


def _path(end: NodeRow, after: Mapping[str, NodeRow | None]) -> list[NodeRow]:
    path: list[NodeRow] = []
    row: NodeRow | None = end
    while row is not None:
        path.append(row)
        row = after[row.name]
    return path[::-1]


def _is_integer(row: NodeRow) -> bool:
    return (row.dtype or "").startswith(("i", "u"))


def _explained(row: NodeRow, decisions: Mapping[str, Iterable[DecisionRow]]) -> Cause:
    """The choice made at a node, or what its record says."""
    if row.role == "collective":
        return Cause(row, row.reason, "")
    names = row.origins or (row.name,)
    made = [
        decision
        for name in names
        for decision in decisions.get(name, ())
        if decision.topic != "redistribute" and decision.pass_index >= row.born_pass
    ]
    if made:
        decision = min(made, key=lambda d: (d.topic != "seed", -d.id))
        return Cause(row, f"{decision.chosen}: {decision.reason}", decision.rule)
    if row.role == "input":
        return Cause(row, "inputs are whole on every rank until they meet sharded data", "")
    return Cause(row, row.reason, "")


def _shortened(causes: list[Cause]) -> tuple[Cause, ...]:
    """Without packing and waiting, and without operators in between that choose nothing."""
    visible = [
        c for c in causes if c is causes[0] or c.node.role == "collective" or _holds_a_value(c.node)
    ]
    kept: list[Cause] = []
    left_out = 0
    for index, cause in enumerate(visible):
        is_end = index in (0, len(visible) - 1)
        before = visible[index - 1].node.placement if index else None
        changes = cause.node.placement != before
        if is_end or cause.rule or cause.node.role == "collective" or changes:
            kept.append(Cause(cause.node, cause.why, cause.rule, left_out))
            left_out = 0
        else:
            left_out += 1
    return tuple(kept)


def _holds_a_value(row: NodeRow) -> bool:
    return row.placement is not None and row.role not in ("pack", "unpack", "wait", "slice")
