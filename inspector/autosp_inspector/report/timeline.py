"""The estimated time of a step: totals, and the bars of every stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from autosp_inspector.report.quantities import share_text, time_text
from autosp_inspector.report.report import Facts, Lines, Report, Table, left, right
from autosp_inspector.rows import EstimateRow, TimelineRow

NOT_ESTIMATED = "No time was estimated for this trace: give a GPU with --gpu."


def timeline_report(
    estimate: EstimateRow | None, events: Sequence[TimelineRow], *, not_estimated: str = ""
) -> Report:
    """Totals and events; nothing is invented where no device was chosen.

    ``not_estimated`` says why there is no estimate, where it is not for want of a device.
    """
    streams: dict[str, list[TimelineRow]] = defaultdict(list)
    for event in events:
        streams[event.stream].append(event)
    records = [{"stream": event.stream, **_record(event)} for event in events]
    data = {
        "step_ns": estimate.step_ns if estimate else None,
        "compute_ns": estimate.compute_ns if estimate else None,
        "communication_ns": estimate.communication_ns if estimate else None,
        "exposed_ns": estimate.exposed_ns if estimate else None,
        "hidden_ns": estimate.hidden_ns if estimate else None,
        "streams": [
            {"name": name, "events": [_record(event) for event in rows]}
            for name, rows in streams.items()
        ],
    }
    if estimate is None or estimate.step_ns is None:
        return Report((Lines((not_estimated or NOT_ESTIMATED,)),), data, records)
    facts = Facts(time_facts(estimate), "Estimate of one step")
    return Report((facts, _table(events)), data, records)


def time_facts(estimate: EstimateRow) -> tuple[tuple[str, str], ...]:
    """Step time and its parts."""
    step = estimate.step_ns
    return (
        ("step", time_text(step)),
        ("compute", f"{time_text(estimate.compute_ns)} ({share_text(estimate.compute_ns, step)})"),
        ("communication", time_text(estimate.communication_ns)),
        (
            "exposed",
            f"{time_text(estimate.exposed_ns)} ({share_text(estimate.exposed_ns, step)})",
        ),
        ("hidden", time_text(estimate.hidden_ns)),
    )


def _record(event: TimelineRow) -> dict[str, Any]:
    return {
        "index": event.index,
        "phase": event.phase,
        "node": event.node,
        "label": event.label,
        "module": event.module,
        "start_ns": event.start_ns,
        "duration_ns": event.duration_ns,
        "exposed_ns": event.exposed_ns,
    }


def _table(events: Sequence[TimelineRow]) -> Table:
    columns = (
        right("start"),
        right("time"),
        right("exposed"),
        left("stream", dropped=3),
        left("phase"),
        left("what", dropped=4),
        left("node"),
        left("module", dropped=2),
    )
    rows = tuple(
        (
            time_text(event.start_ns),
            time_text(event.duration_ns),
            time_text(event.exposed_ns) if event.exposed_ns is not None else "",
            event.stream,
            event.phase,
            event.label,
            event.node,
            event.module,
        )
        for event in events
    )
    return Table(columns, rows)
