"""Estimated and measured figures of a step beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from autosp_inspector.report.quantities import bytes_text, count_text, time_text
from autosp_inspector.report.report import Block, Lines, Table, left, right
from autosp_inspector.rows import EstimateRow, MeasurementRow


def measured_blocks(
    measured: MeasurementRow | None, estimate: EstimateRow | None
) -> tuple[Block, ...]:
    """The table, and what to know of it; nothing where nothing was measured."""
    if measured is None:
        return ()
    columns = (left("figure"), right("estimated"), right("measured"))
    steps = count_text(measured.steps, "step")
    title = f"Estimated | measured (median of {steps} on {measured.device_type}: {measured.device})"
    table = Table(columns, tuple(_rows(measured, estimate)), title)
    notes = tuple(f"  {line}" for line in _notes(measured))
    return (table, Lines(notes)) if notes else (table,)


def _rows(measured: MeasurementRow, estimate: EstimateRow | None) -> Iterator[tuple[str, str, str]]:
    phases = measured.estimated_ns
    step_ns = estimate.step_ns if estimate else None
    yield "step", time_text(step_ns), time_text(measured.step_ns)
    yield "forward", time_text(phases.get("forward")), time_text(measured.forward_ns)
    yield "backward", time_text(phases.get("backward")), time_text(measured.backward_ns)
    yield "optimizer", time_text(phases.get("optimizer")), time_text(measured.optimizer_ns)
    peak = estimate.peak_live_bytes if estimate else None
    yield "peak memory", bytes_text(peak), bytes_text(measured.peak_bytes)


def _notes(measured: MeasurementRow) -> Iterator[str]:
    if measured.incomparable:
        yield measured.incomparable
    for note in measured.notes:
        yield f"Not measured: {note}."


def measured_data(measured: MeasurementRow | None) -> dict[str, Any] | None:
    """The measurement, for JSON."""
    if measured is None:
        return None
    data = asdict(measured)
    del data["estimated_ns"]
    incomparable = data.pop("incomparable")
    return {
        **data,
        "notes": list(measured.notes),
        "comparable": not incomparable,
        "why_not_comparable": incomparable,
    }


def unmatched_lines(
    measured: MeasurementRow | None, matched: Sequence[bool], what: str
) -> tuple[Block, ...]:
    """How many of the shown rows have no measured time; nothing where all have."""
    missing = len(matched) - sum(matched)
    if measured is None or not missing:
        return ()
    return (Lines((f"{missing} of {len(matched)} {what} have no measured time",)),)
