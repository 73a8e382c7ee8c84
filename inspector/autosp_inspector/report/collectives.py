"""The communication of one step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autosp_inspector.report.measured import unmatched_lines
from autosp_inspector.report.quantities import UNKNOWN, bytes_text, count_text, time_text
from autosp_inspector.report.report import Block, Lines, Report, Table, left, right, wrapped
from autosp_inspector.rows import CollectiveRow, MeasurementRow

MEASURED_MEANS = (
    "measured: what the rank spent to start it and to wait for it, for the other ranks too; "
    "compare it with exposed"
)


@dataclass(frozen=True, slots=True)
class CollectiveTotal:
    """Collectives of one phase and kind together."""

    phase: str
    kind: str
    count: int
    bytes: int
    duration_ns: int | None
    exposed_ns: int | None


def totals_by_kind(collectives: Iterable[CollectiveRow]) -> tuple[CollectiveTotal, ...]:
    """Totals by phase and kind, in order of appearance; a time is None if one is unknown."""
    groups: dict[tuple[str, str], list[CollectiveRow]] = defaultdict(list)
    for row in collectives:
        groups[row.phase, row.kind].append(row)
    return tuple(
        CollectiveTotal(
            phase,
            kind,
            sum(row.runs for row in rows),
            sum(row.step_bytes for row in rows),
            _sum_known([row.duration_ns for row in rows]),
            _sum_known([row.exposed_ns for row in rows]),
        )
        for (phase, kind), rows in groups.items()
    )


def _sum_known(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def totals_table(totals: Sequence[CollectiveTotal], *, title: str = "") -> Table:
    """One line per phase and kind."""
    columns = (
        left("phase"),
        left("kind"),
        right("count"),
        right("bytes per rank"),
        right("time"),
        right("exposed"),
    )
    rows = tuple(
        (
            total.phase,
            total.kind,
            str(total.count),
            bytes_text(total.bytes),
            time_text(total.duration_ns),
            time_text(total.exposed_ns),
        )
        for total in totals
    )
    return Table(columns, rows, title)


def collectives_report(
    collectives: Sequence[CollectiveRow], measured: MeasurementRow | None = None
) -> Report:
    """Every collective, and the totals."""
    records = [collective_record(row) for row in collectives]
    data = {"collectives": records}
    is_measured = any(row.measured_ns is not None for row in collectives)
    in_pieces = any(row.piece is not None for row in collectives)
    if not collectives:
        return Report((Lines(("The program has no collectives.",)),), data, records)
    columns = (
        left("name"),
        *((left("piece"), right("runs")) if in_pieces else ()),
        left("kind"),
        left("phase"),
        left("axis", dropped=4),
        right("bytes"),
        right("time"),
        right("exposed", dropped=3),
        *((right("measured"),) if is_measured else ()),
        left("module", dropped=1),
        left("cause", dropped=2),
        wrapped("reason"),
    )
    rows = tuple(
        (
            row.name,
            *((str(row.piece), str(row.runs)) if in_pieces else ()),
            row.kind,
            row.phase,
            f"{row.axis} ({row.group_size})",
            bytes_text(row.bytes),
            time_text(row.duration_ns),
            time_text(row.exposed_ns),
            *((time_text(row.measured_ns),) if is_measured else ()),
            row.module,
            row.cause,
            _reason(row),
        )
        for row in collectives
    )
    num_runs = sum(row.runs for row in collectives)
    title = f"{count_text(num_runs, 'collective')} (times are estimates)"
    if in_pieces:
        title = f"{count_text(num_runs, 'collective')} of one step, in several pieces"
    blocks: list[Block] = [totals_table(totals_by_kind(collectives)), Table(columns, rows, title)]
    blocks += unmatched_lines(
        measured, [row.measured_ns is not None for row in collectives], "collectives"
    )
    if measured is not None:
        blocks.append(Lines((MEASURED_MEANS, *filter(None, [measured.incomparable]))))
    return Report(tuple(blocks), data, records)


def _reason(row: CollectiveRow) -> str:
    if not row.source_placement and not row.target_placement:
        return row.reason
    change = f"{row.source_placement or UNKNOWN} -> {row.target_placement or UNKNOWN}"
    if change in row.reason:
        return row.reason
    return f"{change}: {row.reason}" if row.reason else change


def collective_record(row: CollectiveRow) -> dict[str, Any]:
    """One collective, for JSON."""
    return {
        "name": row.name,
        "piece": row.piece,
        "runs": row.runs,
        "kind": row.kind,
        "phase": row.phase,
        "module": row.module,
        "origin": row.origin,
        "axis": row.axis,
        "group_size": row.group_size,
        "bytes": row.bytes,
        "start_ns": row.start_ns,
        "duration_ns": row.duration_ns,
        "exposed_ns": row.exposed_ns,
        "measured_ns": row.measured_ns,
        "cause": row.cause,
        "reason": row.reason,
    }
