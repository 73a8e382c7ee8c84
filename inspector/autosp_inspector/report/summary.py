"""The first page: does it fit, how long does a step take, what was sharded, what next."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autosp_inspector.queries.pieces import Piece
from autosp_inspector.report.collectives import CollectiveTotal, totals_by_kind, totals_table
from autosp_inspector.report.findings import findings_count, first_of_each_code
from autosp_inspector.report.measured import measured_blocks, measured_data
from autosp_inspector.report.memory import categories_table, peak_facts
from autosp_inspector.report.quantities import (
    bytes_text,
    count_text,
    fraction_text,
    mesh_text,
    share_text,
    source_text,
    time_text,
)
from autosp_inspector.report.report import Block, Facts, Lines, Report
from autosp_inspector.report.timeline import time_facts
from autosp_inspector.rows import (
    CollectiveRow,
    DecisionRow,
    EstimateRow,
    FindingRow,
    MeasurementRow,
    PassRow,
    RunRow,
)

_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class SummaryContent:
    """What the queries say of a run."""

    run: RunRow
    estimate: EstimateRow | None
    collectives: tuple[CollectiveRow, ...]
    attention: tuple[DecisionRow, ...]
    """Decisions about attention sites."""
    num_attention_sites: int
    findings: tuple[FindingRow, ...]
    passes: tuple[PassRow, ...]
    target: str
    """The trace's name in the commands to try next."""
    record_command: str = ""
    """The command that keeps the trace; empty if it is kept."""
    pieces: tuple[Piece, ...] = ()
    """Of a program that was broken."""
    measured: MeasurementRow | None = None
    not_estimated: str = ""
    """Why there is no estimate, where the pieces are why."""


@dataclass(frozen=True, slots=True)
class PerLayer:
    """Collectives inside the repeated layers of the model."""

    layers: int
    counts: dict[str, tuple[int, int]]
    """Phase -> fewest and most collectives in a layer."""
    bytes: dict[str, int]
    """Phase -> most bytes in a layer."""


def summary_report(content: SummaryContent) -> Report:
    """The page, and its figures as data."""
    totals = totals_by_kind(content.collectives)
    layers = per_layer(content.collectives)
    blocks = list(_blocks(content, totals, layers))
    return Report(tuple(blocks), _data(content, totals, layers))


def _blocks(
    content: SummaryContent, totals: Sequence[CollectiveTotal], layers: PerLayer | None
) -> Iterator[Block]:
    yield Facts(tuple(_run_facts(content)))
    if content.run.status != "ok":
        yield Lines((_status_line(content.run),))
    if content.pieces:
        yield Lines((content.not_estimated,))
    yield from _memory_blocks(content.estimate)
    if content.estimate is not None and content.estimate.step_ns is not None:
        yield Facts(time_facts(content.estimate), "Time of one step (estimate)")
    yield from measured_blocks(content.measured, content.estimate)
    if totals:
        yield totals_table(totals, title="Communication of one step, per rank")
        if layers is not None:
            yield Lines(tuple(_layer_lines(layers)))
    yield Facts(tuple(_sharding_facts(content)), "Sequence parallelism")
    if content.findings:
        title = f"Findings: {findings_count(content.findings)}"
        yield first_of_each_code(content.findings, title=title)
    if content.estimate is not None and content.estimate.not_modelled:
        items = tuple(f"  {item}" for item in content.estimate.not_modelled)
        yield Lines(items, "Not modelled")
    yield Lines(tuple(f"  {line}" for line in _next_commands(content)), "Next")


def _run_facts(content: SummaryContent) -> Iterator[tuple[str, str]]:
    run = content.run
    yield "model", run.model
    yield "mesh", f"{mesh_text(run.mesh)}  ({count_text(run.world_size, 'rank')})"
    config = run.config
    batch = [
        f"{label} {config[key]}"
        for key, label in (("seq", "sequence"), ("batch", "batch"), ("dtype", ""))
        if config.get(key) is not None
    ]
    if batch:
        yield "input", ", ".join(part.strip() for part in batch)
    training = [
        f"{label} {config[key]}".strip()
        for key, label in (("zero", "ZeRO"), ("optimizer", ""), ("partitioner", ""))
        if config.get(key) is not None
    ]
    if training:
        yield "training", ", ".join(training)
    if run.hardware is not None:
        yield "GPU", str(run.hardware.get("title") or run.hardware.get("name"))
    if content.pieces:
        yield "pieces", _pieces_text(content.pieces)
    passes = content.passes
    in_passes = count_text(len(passes), "pass", "passes")
    yield "compiled", f"{time_text(_compile_ns(passes))} in {in_passes}"


def _compile_ns(passes: Sequence[PassRow]) -> int | None:
    """Time of all passes; a training run itself lasts as long as it trains."""
    times = [row.duration_ns for row in passes if row.duration_ns is not None]
    return sum(times) if times else None


def _pieces_text(pieces: Sequence[Piece]) -> str:
    """``2; piece 2 runs 3 times in a step``."""
    repeated = [f"piece {p.number} runs {p.runs} times in a step" for p in pieces if p.runs != 1]
    return "; ".join([str(len(pieces)), *repeated])


def _status_line(run: RunRow) -> str:
    if run.status == "failed":
        return f"THE COMPILATION FAILED: {run.message}"
    return "THE RECORDING IS UNFINISHED: what follows is up to its last finished pass."


def _memory_blocks(estimate: EstimateRow | None) -> Iterator[Block]:
    if estimate is None:
        return
    facts = Facts(peak_facts(estimate), f"Memory per rank (estimate): {verdict(estimate)}")
    yield facts
    yield categories_table(estimate.peak_categories, estimate.peak_live_bytes)


def verdict(estimate: EstimateRow) -> str:
    """``FITS, 12.3 GiB of 80 GiB (15.4 %)``."""
    size = bytes_text(estimate.peak_live_bytes)
    if estimate.capacity_bytes is None:
        return f"{size}, no GPU given to compare with"
    word = "FITS" if estimate.fits else "TOO CLOSE TO SAY" if estimate.is_close else "DOES NOT FIT"
    share = share_text(estimate.peak_live_bytes, estimate.capacity_bytes)
    return f"{word}, {size} of {bytes_text(estimate.capacity_bytes)} ({share})"


def per_layer(collectives: Sequence[CollectiveRow]) -> PerLayer | None:
    """Counts by layer: a layer is a numbered module (``layers.3``); None if there is none."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    layers: dict[str, int] = {}
    for row in collectives:
        match = _LAYER.search(row.module)
        if match is not None:
            layer = row.module[: match.end(1)]
            layers[layer] = max(layers.get(layer, 1), row.runs)
            counts[row.phase][layer] += 1
            sizes[row.phase][layer] += row.bytes
    if not layers:
        return None
    return PerLayer(
        sum(layers.values()),
        {
            phase: (min(of[layer] for layer in layers), max(of.values()))
            for phase, of in counts.items()
        },
        {phase: max(of.values()) for phase, of in sizes.items()},
    )


def _layer_lines(layers: PerLayer) -> Iterator[str]:
    parts = []
    for phase, (fewest, most) in layers.counts.items():
        number = str(most) if fewest == most else f"{fewest} to {most}"
        parts.append(f"{number} in {phase} ({bytes_text(layers.bytes[phase])})")
    yield f"per layer, {layers.layers} of them: {', '.join(parts)}"


def _sharding_facts(content: SummaryContent) -> Iterator[tuple[str, str]]:
    applied = [row for row in content.attention if row.status == "applied"]
    yield "attention", f"{len(applied)} of {content.num_attention_sites} sites sharded"
    for chosen, count in Counter(row.chosen for row in applied).most_common(3):
        yield "", f"{count} x {chosen}"
    if content.estimate is not None:
        yield "sharded FLOPs", fraction_text(content.estimate.sharded_flops_fraction)
        fraction = content.estimate.sharded_saved_bytes_fraction
        yield "sharded saved bytes", fraction_text(fraction)
    if not content.findings:
        yield "findings", "none"


def _next_commands(content: SummaryContent) -> Iterator[str]:
    target = content.target
    if content.record_command:
        yield f"{content.record_command}  # keep the trace, then:"
    yield f"autosp-inspect show {target}  # the interactive view"
    if content.collectives:
        yield f"autosp-inspect collectives {target}  # where each is, and why"
        cause = next((row.cause for row in content.collectives if row.cause), "")
        if cause:
            yield f"autosp-inspect explain {target} {cause}  # all about one node"
    if content.estimate is not None:
        yield f"autosp-inspect memory {target} --tensors  # what is alive at the peak"
    yield f"autosp-inspect export {target} --svg graph.svg  # a picture"


def _data(
    content: SummaryContent, totals: Sequence[CollectiveTotal], layers: PerLayer | None
) -> dict[str, Any]:
    run, estimate = content.run, content.estimate
    return {
        "model": run.model,
        "status": run.status,
        "message": run.message,
        "mesh": dict(run.mesh),
        "world_size": run.world_size,
        "config": dict(run.config),
        "gpu": None if run.hardware is None else run.hardware.get("name"),
        "compile_ns": _compile_ns(content.passes),
        "passes": len(content.passes),
        "pieces": [asdict(piece) for piece in content.pieces],
        "peak": _peak_data(estimate),
        "categories": {} if estimate is None else dict(estimate.peak_categories),
        "capacity_bytes": estimate.capacity_bytes if estimate else None,
        "fits": estimate.fits if estimate else None,
        "step_ns": estimate.step_ns if estimate else None,
        "compute_ns": estimate.compute_ns if estimate else None,
        "communication_ns": estimate.communication_ns if estimate else None,
        "exposed_ns": estimate.exposed_ns if estimate else None,
        "hidden_ns": estimate.hidden_ns if estimate else None,
        "measured": measured_data(content.measured),
        "collectives": [asdict(total) for total in totals],
        "collectives_per_layer": None if layers is None else asdict(layers),
        "attention_sites": content.num_attention_sites,
        "attention_sites_sharded": sum(row.status == "applied" for row in content.attention),
        "sharded_flops_fraction": estimate.sharded_flops_fraction if estimate else None,
        "sharded_saved_bytes_fraction": estimate.sharded_saved_bytes_fraction if estimate else None,
        "findings": dict(Counter(row.severity for row in content.findings)),
        "not_modelled": list(estimate.not_modelled) if estimate else [],
    }


def _peak_data(estimate: EstimateRow | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {
        "live_bytes": estimate.peak_live_bytes,
        "allocated_bytes": estimate.allocated_bytes,
        "reserved_bytes": estimate.reserved_bytes,
        "device_bytes": estimate.device_bytes,
        "phase": estimate.peak_phase,
        "node": estimate.peak_node,
        "module": estimate.peak_module,
        "source": source_text(estimate.peak_source),
    }
