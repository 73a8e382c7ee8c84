"""Estimated cost of a node."""

from __future__ import annotations

from autosp_inspector.rows import CostRow
from autosp_inspector.trace import Trace

_COST = """
SELECT graph.name, node.value, cost.flops, cost.memory_bytes, cost.duration_ns, source.value
FROM text AS node
JOIN cost ON cost.node_text = node.id
JOIN graph ON graph.id = cost.graph_id
JOIN text AS source ON source.id = cost.source_text
WHERE node.value = ?1 AND graph.name = ?2 AND (?3 IS NULL OR graph.compilation = ?3)
ORDER BY graph.compilation DESC LIMIT 1
"""


def node_cost(trace: Trace, name: str, graph: str) -> CostRow | None:
    """The cost of a node in the latest compilation; None when it was not estimated."""
    rows = trace.fetch(_COST, (name, graph, trace.compilation))
    return CostRow(*rows[0]) if rows else None
