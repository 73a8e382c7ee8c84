"""``findings`` lists what the user should know; ``check`` also says it by its status."""

from __future__ import annotations

from autosp_inspector.cli.source import OpenedSource
from autosp_inspector.cli.view import View, rank_parameter
from autosp_inspector.queries.compare_ranks import rank_differences
from autosp_inspector.queries.estimate import estimate_summary
from autosp_inspector.queries.findings import list_findings
from autosp_inspector.report.findings import findings_report
from autosp_inspector.report.report import Report


def findings_view() -> View:
    return View(
        "findings",
        "What is wrong, suspicious or worth knowing.",
        _report,
        options=(rank_parameter(),),
    )


def check_view() -> View:
    return View(
        "check",
        "Did it shard, is it right, does it fit?\n\n"
        "Prints the findings; the exit status is 1 if any is an error. Of a folder with one trace "
        "per rank it also compares the ranks, and names the first node or collective in which "
        "they differ.",
        _check_report,
        options=(rank_parameter(),),
        fails_on_problems=True,
    )


def _check_report(source: OpenedSource, *, rank: int | None) -> Report:
    trace = source.trace(rank)
    between = rank_differences(source.traces) if rank is None and source.path.is_dir() else ()
    return findings_report((*between, *list_findings(trace)), estimate_summary(trace))


def _report(source: OpenedSource, *, rank: int | None) -> Report:
    trace = source.trace(rank)
    return findings_report(list_findings(trace), estimate_summary(trace))
