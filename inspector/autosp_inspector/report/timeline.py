"""The estimated time of a step: totals, and the bars of every stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from autosp_inspector.report.measured import measured_blocks, measured_data, unmatched_lines
from autosp_inspector.report.quantities import share_text, time_text
from autosp_inspector.report.report import Facts, Lines, Report, Table, left, right
from autosp_inspector.rows import EstimateRow, MeasurementRow, TimelineRow

Times = Mapping[tuple[str, str], int]
"""(phase, node) -> measured time."""

NOT_ESTIMATED = "No time was estimated for this trace: give a GPU with --gpu."


def timeline_report(
    estimate: EstimateRow | None,
    events: Sequence[TimelineRow],
    *,
    not_estimated: str = "",
    measured: MeasurementRow | None = None,
    times: Times | None = None,
) -> Report:
    """Totals and events; nothing is invented where no device was chosen.

    ``times`` are those of the nodes in the profiled step.
    ``not_estimated`` says why there is no estimate, where it is not for want of a device.
    """
    times = times or {}
    beside = measured_blocks(measured, estimate)
    streams: dict[str, list[TimelineRow]] = defaultdict(list)
    for event in events:
        streams[event.stream].append(event)
    records = [{"stream": event.stream, **_record(event, times)} for event in events]
    data = {
        "step_ns": estimate.step_ns if estimate else None,
        "compute_ns": estimate.compute_ns if estimate else None,
        "communication_ns": estimate.communication_ns if estimate else None,
        "exposed_ns": estimate.exposed_ns if estimate else None,
        "hidden_ns": estimate.hidden_ns if estimate else None,
        "measured": measured_data(measured),
        "streams": [
            {"name": name, "events": [_record(event, times) for event in rows]}
            for name, rows in streams.items()
        ],
    }
    if estimate is None or estimate.step_ns is None:
        return Report((Lines((not_estimated or NOT_ESTIMATED,)), *beside), data, records)
    facts = Facts(time_facts(estimate), "Estimate of one step")
    matched = [(event.phase, event.node) in times for event in events]
    unmatched = unmatched_lines(measured, matched, "bars")
    return Report((facts, *beside, _table(events, times), *unmatched), data, records)


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


def _record(event: TimelineRow, times: Times) -> dict[str, Any]:
    return {
        "index": event.index,
        "phase": event.phase,
        "node": event.node,
        "label": event.label,
        "module": event.module,
        "start_ns": event.start_ns,
        "duration_ns": event.duration_ns,
        "exposed_ns": event.exposed_ns,
        "measured_ns": times.get((event.phase, event.node)),
    }


def _table(events: Sequence[TimelineRow], times: Times) -> Table:
    columns = (
        right("start"),
        right("time"),
        *((right("measured"),) if times else ()),
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
            *((time_text(times.get((event.phase, event.node))),) if times else ()),
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
