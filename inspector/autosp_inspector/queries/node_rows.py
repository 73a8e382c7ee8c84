"""Loads node versions by id."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autosp_inspector.queries.interned import Interned, interned
from autosp_inspector.rows import NodeRow
from autosp_inspector.trace import Trace

_NODES = """
SELECT node.id, graph.name, local_bytes, saved, recomputed, born_pass, died_pass, source_id,
       name_text, op_text, target_text, role_text, phase_text, module_text, module_class_text,
       reason_text, dtype_text, placement_text, global_shape_text, local_shape_text
FROM node JOIN graph ON graph.id = node.graph_id
WHERE node.id IN (SELECT value FROM json_each(?))
"""
_SOURCE_COLUMN = 7
_FIRST_TEXT_COLUMN = 8

_INPUTS = """
SELECT node_id, input_text FROM edge
WHERE node_id IN (SELECT value FROM json_each(?)) ORDER BY node_id, slot
"""

_ORIGINS = """
SELECT node_id, program_text FROM origin
WHERE node_id IN (SELECT value FROM json_each(?)) ORDER BY node_id, slot
"""


def load_nodes(
    trace: Trace, node_ids: Sequence[int], position_of: Callable[[int], int]
) -> tuple[NodeRow, ...]:
    """The versions ``node_ids``, in that order; ``position_of`` places them in their graph."""
    if not node_ids:
        return ()
    wanted = (json.dumps(list(node_ids)),)
    rows = {row[0]: row for row in trace.fetch(_NODES, wanted)}
    inputs = trace.fetch(_INPUTS, wanted)
    origins = trace.fetch(_ORIGINS, wanted)
    texts = interned(trace)
    numbers = {number for row in rows.values() for number in row[_FIRST_TEXT_COLUMN:]}
    numbers.update(number for pairs in (inputs, origins) for _, number in pairs)
    texts.load(texts=numbers, sources=(row[_SOURCE_COLUMN] for row in rows.values()))
    inputs_of = _lists(inputs, texts)
    origins_of = _lists(origins, texts)
    return tuple(
        _node_row(rows[number], position_of(number), texts, inputs_of, origins_of)
        for number in node_ids
    )


def _lists(pairs: Sequence[tuple[Any, ...]], texts: Interned) -> dict[int, list[str]]:
    lists: dict[int, list[str]] = {}
    for node_id, number in pairs:
        lists.setdefault(node_id, []).append(texts.text(number))
    return lists


def _node_row(
    row: tuple[Any, ...],
    position: int,
    texts: Interned,
    inputs_of: Mapping[int, list[str]],
    origins_of: Mapping[int, list[str]],
) -> NodeRow:
    text = texts.text
    return NodeRow(
        id=row[0],
        graph=row[1],
        position=position,
        name=text(row[8]),
        op=text(row[9]),
        target=text(row[10]),
        inputs=tuple(inputs_of.get(row[0], ())),
        role=text(row[11]),
        phase=text(row[12]),
        dtype=texts.optional_text(row[16]),
        global_shape=texts.shape(row[18]),
        local_shape=texts.shape(row[19]),
        placement=texts.optional_text(row[17]),
        local_bytes=row[2],
        module=text(row[13]),
        module_class=text(row[14]),
        source=texts.source(row[_SOURCE_COLUMN]),
        origins=tuple(origins_of.get(row[0], ())),
        saved=bool(row[3]),
        recomputed=bool(row[4]),
        reason=text(row[15]),
        born_pass=row[5],
        died_pass=row[6],
    )
