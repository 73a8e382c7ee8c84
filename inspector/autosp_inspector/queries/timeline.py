"""The estimated step as bars on streams."""

from __future__ import annotations

from autosp_inspector.rows import TimelineRow
from autosp_inspector.trace import Trace

_EVENTS = """
SELECT timeline.event_index, timeline.stream, timeline.phase, node.value, label.value,
       timeline.start_ns, timeline.duration_ns, timeline.exposed_ns, module.value
FROM timeline
JOIN text AS node ON node.id = timeline.node_text
JOIN text AS label ON label.id = timeline.label_text
JOIN text AS module ON module.id = timeline.module_text
WHERE (?1 IS NULL OR timeline.start_ns + timeline.duration_ns >= ?1)
  AND (?2 IS NULL OR timeline.start_ns <= ?2)
ORDER BY timeline.start_ns, timeline.event_index
"""


def timeline_events(
    trace: Trace, *, start_ns: int | None = None, end_ns: int | None = None
) -> tuple[TimelineRow, ...]:
    """The bars that touch ``start_ns``..``end_ns``, by start time."""
    return tuple(TimelineRow(*row) for row in trace.fetch(_EVENTS, (start_ns, end_ns)))
