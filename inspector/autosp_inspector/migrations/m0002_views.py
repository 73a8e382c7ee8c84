"""Schema 2: views with the texts filled in, for people who write SQL by hand.

The inspector itself never reads them.
"""

from __future__ import annotations

from autosp_inspector.migrations.migration import Migration

_NODES = """
CREATE VIEW nodes AS
    -- All node versions, readable.
    SELECT node.id, graph.compilation, graph.name AS graph, name.value AS name,
           node.born_pass, node.died_pass, node.order_key, op.value AS op,
           target.value AS target, role.value AS role, phase.value AS phase,
           dtype.value AS dtype, global_shape.value AS global_shape,
           local_shape.value AS local_shape, placement.value AS placement,
           node.local_bytes, module.value AS module, module_class.value AS module_class,
           file.value AS file, source.line, line.value AS source_line,
           node.saved, node.recomputed, reason.value AS reason
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
    LEFT JOIN text AS line ON line.id = source.line_text
"""

_EDGES = """
CREATE VIEW edges AS
    -- Who reads whom: one row for each input of each node version.
    SELECT edge.node_id, graph.name AS graph, name.value AS node, edge.slot,
           input.value AS input, node.born_pass, node.died_pass
    FROM edge
    JOIN node ON node.id = edge.node_id
    JOIN graph ON graph.id = node.graph_id
    JOIN text AS name ON name.id = node.name_text
    JOIN text AS input ON input.id = edge.input_text
"""

_COLLECTIVES = """
CREATE VIEW collectives AS
    -- All collective versions, readable.
    SELECT collective.id, graph.compilation, graph.name AS graph, node.value AS node,
           collective.born_pass, collective.died_pass, collective.kind, collective.phase,
           collective.origin, collective.axis, collective.group_size, collective.bytes,
           collective.dtype, module.value AS module, cause.value AS cause,
           reason.value AS reason, collective.source_placement, collective.target_placement
    FROM collective
    JOIN graph ON graph.id = collective.graph_id
    JOIN text AS node ON node.id = collective.node_text
    JOIN text AS module ON module.id = collective.module_text
    JOIN text AS cause ON cause.id = collective.cause_text
    JOIN text AS reason ON reason.id = collective.reason_text
"""

_DECISIONS = """
CREATE VIEW decisions AS
    -- All decisions, readable.
    SELECT decision.id, decision.pass_index, pass.name AS pass, decision.status,
           decision.topic, node.value AS node, module.value AS module, decision.chosen,
           decision.reason, decision.rule
    FROM decision
    LEFT JOIN pass ON pass.pass_index = decision.pass_index
    JOIN text AS node ON node.id = decision.node_text
    JOIN text AS module ON module.id = decision.module_text
"""

VIEWS = Migration(
    number=2, name="readable views", statements=(_NODES, _EDGES, _COLLECTIVES, _DECISIONS)
)
