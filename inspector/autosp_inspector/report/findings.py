"""What the user should know of a compilation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from autosp_inspector.report.quantities import (
    bytes_text,
    count_text,
    fraction_text,
    place_text,
    source_text,
    time_text,
)
from autosp_inspector.report.report import Block, Facts, Lines, Report
from autosp_inspector.rows import EstimateRow, FindingRow


def findings_report(findings: Sequence[FindingRow], estimate: EstimateRow | None) -> Report:
    """All findings, and how much of the step is sharded."""
    records = [_record(row) for row in findings]
    data = {
        "findings": records,
        "sharded_flops_fraction": estimate.sharded_flops_fraction if estimate else None,
        "sharded_saved_bytes_fraction": estimate.sharded_saved_bytes_fraction if estimate else None,
    }
    facts = Facts(
        (
            ("findings", findings_count(findings)),
            ("sharded FLOPs", fraction_text(data["sharded_flops_fraction"])),  # type: ignore[arg-type]
            ("sharded saved bytes", fraction_text(data["sharded_saved_bytes_fraction"])),  # type: ignore[arg-type]
        )
    )
    blocks: list[Block] = [facts]
    if findings:
        blocks.append(findings_lines(findings))
    errors = sum(row.severity == "error" for row in findings)
    return Report(tuple(blocks), data, records, problems=errors)


def findings_count(findings: Sequence[FindingRow]) -> str:
    """``1 error, 2 warnings``, or ``none``."""
    counts = Counter(row.severity for row in findings)
    names = {"error": "error", "warning": "warning", "info": "note"}
    known = [count_text(counts[key], name) for key, name in names.items() if counts[key]]
    return ", ".join(known) or "none"


def findings_lines(findings: Sequence[FindingRow]) -> Lines:
    """Each finding on its own lines: what, where, what to do."""
    lines: list[str] = []
    for row in findings:
        lines.extend(("", *_finding_lines(row)) if lines else _finding_lines(row))
    return Lines(tuple(lines))


def first_of_each_code(findings: Sequence[FindingRow], *, title: str) -> Lines:
    """One finding of every kind, with the number of others like it."""
    counts = Counter(row.code for row in findings)
    lines: list[str] = []
    for row in findings:
        others = counts.pop(row.code, 0) - 1
        if others >= 0:
            lines.extend(_finding_lines(row))
        if others > 0:
            lines.append(f"    and {others} more of this kind: see `autosp-inspect findings`")
    return Lines(tuple(lines), title)


def _finding_lines(row: FindingRow) -> Iterator[str]:
    yield f"{row.severity} {row.code}: {row.message}"
    where = ", ".join(part for part in (place_text(row.source), row.module, row.node) if part)
    if where:
        yield f"    at {where}"
    cost = cost_text(row)
    if cost:
        yield f"    costs {cost}"
    if row.hint:
        yield f"    {row.hint}"


def cost_text(row: FindingRow) -> str:
    """``64.0 MiB on a rank, 1.2 ms a step``; empty where nothing is known."""
    parts = []
    if row.cost_bytes:
        parts.append(f"{bytes_text(row.cost_bytes)} on a rank")
    if row.cost_ns:
        parts.append(f"{time_text(row.cost_ns)} of a step")
    return ", ".join(parts)


def _record(row: FindingRow) -> dict[str, Any]:
    return {
        "code": row.code,
        "severity": row.severity,
        "message": row.message,
        "node": row.node,
        "module": row.module,
        "source": source_text(row.source),
        "hint": row.hint,
        "cost_bytes": row.cost_bytes,
        "cost_ns": row.cost_ns,
    }
