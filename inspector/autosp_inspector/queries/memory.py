"""Live bytes over the step, and what is alive at the peak."""

from __future__ import annotations

import json

from autosp_inspector.queries.source_rows import source_row
from autosp_inspector.rows import LiveTensorRow, MemoryRow
from autosp_inspector.trace import Trace

_CURVE = """
SELECT memory.point_index, memory.phase, node.value, module.value, memory.live_bytes,
       memory.categories
FROM memory
JOIN text AS node ON node.id = memory.node_text
JOIN text AS module ON module.id = memory.module_text
ORDER BY memory.point_index
"""

_LIVE = """
SELECT live_tensor.node, live_tensor.phase, live_tensor.category, live_tensor.bytes,
       live_tensor.dtype, live_tensor.shape, live_tensor.module, file.value, source.line,
       function.value, line.value, live_tensor.last_used_by
FROM live_tensor
LEFT JOIN source ON source.id = live_tensor.source_id
LEFT JOIN text AS file ON file.id = source.file_text
LEFT JOIN text AS function ON function.id = source.function_text
LEFT JOIN text AS line ON line.id = source.line_text
ORDER BY live_tensor.bytes DESC, live_tensor.id
"""


def memory_curve(trace: Trace) -> tuple[MemoryRow, ...]:
    """Live bytes by category at every node of the step, in execution order."""
    return tuple(
        MemoryRow(index, phase, node, module, live_bytes, json.loads(categories))
        for index, phase, node, module, live_bytes, categories in trace.fetch(_CURVE)
    )


def live_at_peak(trace: Trace) -> tuple[LiveTensorRow, ...]:
    """The tensors alive at the peak, largest first."""
    return tuple(
        LiveTensorRow(
            node=row[0],
            phase=row[1],
            category=row[2],
            bytes=row[3],
            dtype=row[4],
            shape=tuple(json.loads(row[5])),
            module=row[6],
            created_by=source_row(*row[7:11]),
            last_used_by=row[11],
        )
        for row in trace.fetch(_LIVE)
    )
