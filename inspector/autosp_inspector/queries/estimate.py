"""The figures a report starts with."""

from __future__ import annotations

import json

from autosp_inspector.queries.node_rows import source_row
from autosp_inspector.rows import EstimateRow
from autosp_inspector.trace import Trace

_ESTIMATE = """
SELECT estimate.peak_live_bytes, estimate.peak_phase, estimate.peak_node,
       estimate.peak_module, file.value, source.line, function.value, line.value,
       estimate.peak_categories, estimate.peak_index, estimate.allocated_bytes,
       estimate.reserved_bytes, estimate.device_bytes, estimate.capacity_bytes, estimate.fits,
       estimate.step_ns, estimate.compute_ns, estimate.communication_ns, estimate.exposed_ns,
       estimate.hidden_ns, estimate.sharded_flops_fraction,
       estimate.sharded_saved_bytes_fraction, estimate.not_modelled
FROM estimate
LEFT JOIN source ON source.id = estimate.peak_source_id
LEFT JOIN text AS file ON file.id = source.file_text
LEFT JOIN text AS function ON function.id = source.function_text
LEFT JOIN text AS line ON line.id = source.line_text
"""


def estimate_summary(trace: Trace) -> EstimateRow | None:
    """Peak, capacity and times of the step; None when nothing was estimated."""
    rows = trace.fetch(_ESTIMATE)
    if not rows:
        return None
    row = rows[0]
    return EstimateRow(
        *row[:4],
        source_row(*row[4:8]),
        json.loads(row[8]),
        *row[9:14],
        None if row[14] is None else bool(row[14]),
        *row[15:22],
        tuple(json.loads(row[22])),
    )
