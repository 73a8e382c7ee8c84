"""Loads node versions by id."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autosp_inspector.rows import NodeRow, Source
from autosp_inspector.trace import Trace

_NODES = """
SELECT node.id, graph.name, name.value, op.value, target.value, role.value, phase.value,
       dtype.value, global_shape.value, local_shape.value, placement.value,
       node.local_bytes, module.value, module_class.value,
       file.value, source.line, function.value, line.value,
       node.saved, node.recomputed, reason.value, node.born_pass, node.died_pass
FROM node
JOIN graph ON graph.id = node.graph_id
JOIN text AS name ON name.id = node.name_text
JOIN text AS op ON op.id = node.op_text
JOIN text AS target ON target.id = node.target_text
JOIN text AS role ON role.id = node.role_text
JOIN text AS phase ON phase.id = node.phase_text
JOIN text AS module ON module.id = node.module_text
JOIN text AS module_class ON module_class.id = node.module_class_text
JOIN text AS reason ON reason.id = node.reason_text
LEFT JOIN text AS dtype ON dtype.id = node.dtype_text
LEFT JOIN text AS global_shape ON global_shape.id = node.global_shape_text
LEFT JOIN text AS local_shape ON local_shape.id = node.local_shape_text
LEFT JOIN text AS placement ON placement.id = node.placement_text
LEFT JOIN source ON source.id = node.source_id
LEFT JOIN text AS file ON file.id = source.file_text
LEFT JOIN text AS function ON function.id = source.function_text
LEFT JOIN text AS line ON line.id = source.line_text
WHERE node.id IN (SELECT value FROM json_each(?))
"""

_INPUTS = """
SELECT edge.node_id, text.value FROM edge JOIN text ON text.id = edge.input_text
WHERE edge.node_id IN (SELECT value FROM json_each(?)) ORDER BY edge.node_id, edge.slot
"""

_ORIGINS = """
SELECT origin.node_id, text.value FROM origin JOIN text ON text.id = origin.program_text
WHERE origin.node_id IN (SELECT value FROM json_each(?)) ORDER BY origin.node_id, origin.slot
"""


def load_nodes(
    trace: Trace, node_ids: Sequence[int], position_of: Callable[[int], int]
) -> tuple[NodeRow, ...]:
    """The versions ``node_ids``, in that order; ``position_of`` places them in their graph."""
    if not node_ids:
        return ()
    wanted = (json.dumps(list(node_ids)),)
    inputs = _lists(trace.fetch(_INPUTS, wanted))
    origins = _lists(trace.fetch(_ORIGINS, wanted))
    rows = {row[0]: row for row in trace.fetch(_NODES, wanted)}
    return tuple(
        _node_row(rows[number], position_of(number), inputs, origins) for number in node_ids
    )


def _lists(pairs: Sequence[tuple[int, str]]) -> dict[int, list[str]]:
    lists: dict[int, list[str]] = {}
    for node_id, text in pairs:
        lists.setdefault(node_id, []).append(text)
    return lists


def _node_row(
    row: tuple[Any, ...],
    position: int,
    inputs: Mapping[int, list[str]],
    origins: Mapping[int, list[str]],
) -> NodeRow:
    return NodeRow(
        id=row[0],
        graph=row[1],
        position=position,
        name=row[2],
        op=row[3],
        target=row[4],
        inputs=tuple(inputs.get(row[0], ())),
        role=row[5],
        phase=row[6],
        dtype=row[7],
        global_shape=_shape(row[8]),
        local_shape=_shape(row[9]),
        placement=row[10],
        local_bytes=row[11],
        module=row[12],
        module_class=row[13],
        source=source_row(*row[14:18]),
        origins=tuple(origins.get(row[0], ())),
        saved=bool(row[18]),
        recomputed=bool(row[19]),
        reason=row[20],
        born_pass=row[21],
        died_pass=row[22],
    )


def source_row(
    file: str | None, line: int | None, function: str | None, text: str | None
) -> Source | None:
    """A source line from its four columns, all NULL when it is unknown."""
    if file is None or line is None:
        return None
    return Source(file, line, function or "", text or "")


def _shape(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(json.loads(text))
