"""The figures a report starts with."""

from __future__ import annotations

import json

from autosp_inspector.queries.source_rows import source_row
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
        peak_live_bytes=row[0],
        peak_phase=row[1],
        peak_node=row[2],
        peak_module=row[3],
        peak_source=source_row(*row[4:8]),
        peak_categories=json.loads(row[8]),
        peak_index=row[9],
        allocated_bytes=row[10],
        reserved_bytes=row[11],
        device_bytes=row[12],
        capacity_bytes=row[13],
        fits=None if row[14] is None else bool(row[14]),
        step_ns=row[15],
        compute_ns=row[16],
        communication_ns=row[17],
        exposed_ns=row[18],
        hidden_ns=row[19],
        sharded_flops_fraction=row[20],
        sharded_saved_bytes_fraction=row[21],
        not_modelled=tuple(json.loads(row[22])),
    )
