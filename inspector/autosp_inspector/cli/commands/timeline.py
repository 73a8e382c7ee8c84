"""``timeline``: the estimated time of a step."""

from __future__ import annotations

from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View, rank_parameter
from autosp_inspector.queries.estimate import estimate_summary
from autosp_inspector.queries.measurement import measured_times, measurement
from autosp_inspector.queries.pieces import not_estimated
from autosp_inspector.queries.timeline import timeline_events
from autosp_inspector.report.report import Report
from autosp_inspector.report.timeline import timeline_report


def view() -> View:
    return View(
        "timeline",
        "Estimated compute and communication of a step.\n\n"
        "Exposed communication is the part that no compute hides. Of a training whose steps were "
        "measured, the measured time is beside the estimated.",
        _report,
        options=(rank_parameter(),),
    )


def _report(source: OpenedSource, *, rank: int | None) -> Report:
    trace = source.trace(rank)
    return timeline_report(
        estimate_summary(trace),
        timeline_events(trace),
        not_estimated=not_estimated(trace),
        measured=measurement(trace),
        times={
            (graph, node): time_ns
            for graph in ("forward", "backward")
            for node, time_ns in measured_times(trace, graph).items()
        },
    )
