"""What was measured in a training, and whether it may be compared with the estimate."""

from __future__ import annotations

import json

from autosp_inspector.rows import MeasurementRow
from autosp_inspector.trace import Trace

_MEASUREMENT = """
SELECT device_type, device, compilation, steps, step_ns, forward_ns, backward_ns, optimizer_ns,
       detail, peak_bytes, base_bytes, peak_source, notes FROM measurement
"""

_NODES = """
SELECT node.value, measured_node.duration_ns
FROM measured_node
JOIN graph ON graph.id = measured_node.graph_id
JOIN text AS node ON node.id = measured_node.node_text
WHERE graph.name = ?1 AND graph.compilation = ?2
"""

_COSTS = """
SELECT node.value, cost.duration_ns
FROM cost
JOIN graph ON graph.id = cost.graph_id
JOIN text AS node ON node.id = cost.node_text
WHERE graph.name = ?1 AND (?2 IS NULL OR graph.compilation = ?2)
"""

_WAITS = """
SELECT started.value, waiting.value
FROM graph
JOIN node ON node.graph_id = graph.id AND node.died_pass IS NULL
JOIN text AS waiting ON waiting.id = node.name_text
JOIN text AS role ON role.id = node.role_text
JOIN edge ON edge.node_id = node.id AND edge.slot = 0
JOIN text AS started ON started.id = edge.input_text
WHERE role.value = 'wait' AND graph.name = ?1 AND graph.compilation = ?2
"""

_PHASES = """
SELECT phase, max(start_ns + duration_ns) - min(start_ns) FROM timeline GROUP BY phase
"""


def measurement(trace: Trace) -> MeasurementRow | None:
    """The figures of the measured steps; None when nothing was measured."""
    rows = trace.fetch(_MEASUREMENT)
    if not rows:
        return None
    row = rows[0]
    notes, phases = tuple(json.loads(row[12])), dict(trace.fetch(_PHASES))
    why = _incomparable(trace, row[0], row[1])
    return MeasurementRow(*(*row[:12], notes, phases, why))


def _incomparable(trace: Trace, device_type: str, device: str) -> str:
    """Why the estimate says nothing about the device that was measured; empty if it does."""
    hardware = trace.run.hardware
    if hardware is None:
        if device_type == "cpu":
            return ""
        return "The estimate is of memory on a CPU (no gpu was given): compare with care."
    name = str(hardware.get("name"))
    kind = name.partition("-")[0].lower()
    if device_type != "cpu" and kind in device.lower():
        return ""
    return f"Not comparable: measured on {device_type} ({device}), estimated for {name}."


def measured_times(trace: Trace, graph: str) -> dict[str, int]:
    """Node -> time of all its runs in the profiled step; empty where none was measured."""
    found = measurement(trace)
    if found is None:
        return {}
    compilation = found.compilation if trace.compilation is None else trace.compilation
    return dict(trace.fetch(_NODES, (graph, compilation)))


def estimated_times(trace: Trace, graph: str) -> dict[str, int | None]:
    """Node -> estimated time of one run; empty where nothing was estimated."""
    return dict(trace.fetch(_COSTS, (graph, trace.compilation)))


def measured_waits(trace: Trace, graph: str) -> dict[str, int]:
    """Collective -> measured time that the rank waited for it: for the other ranks, too."""
    times = measured_times(trace, graph)
    found = measurement(trace)
    if not times or found is None:
        return {}
    compilation = found.compilation if trace.compilation is None else trace.compilation
    waits: dict[str, int] = {}
    for started, waiting in trace.fetch(_WAITS, (graph, compilation)):
        if waiting in times:
            waits[started] = waits.get(started, 0) + times[waiting]
    return waits
