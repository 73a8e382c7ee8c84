"""The memory of a step: the peak of every rank, by category, and what is alive there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosp_inspector.report.quantities import (
    bytes_text,
    count_text,
    place_text,
    shape_text,
    share_text,
    source_text,
)
from autosp_inspector.report.report import Block, Facts, Lines, Report, Table, left, right
from autosp_inspector.rows import EstimateRow, LiveTensorRow, MemoryRow

NOT_ESTIMATED = "No memory was estimated for this trace."


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What was recorded of the memory of one rank."""

    rank: int
    estimate: EstimateRow | None
    curve: tuple[MemoryRow, ...] | None = None
    live: tuple[LiveTensorRow, ...] | None = None
    not_estimated: str = ""
    """Why there is no estimate, where that is known."""


def memory_report(ranks: Sequence[RankMemory]) -> Report:
    """Peaks of all ranks; with curves and live tensors where they were asked for."""
    records = [_record(rank) for rank in ranks]
    known = [rank.estimate for rank in ranks if rank.estimate is not None]
    worst = max(known, key=lambda estimate: estimate.peak_live_bytes, default=None)
    data = {
        "ranks": records,
        "capacity_bytes": worst.capacity_bytes if worst else None,
        "fits": worst.fits if worst else None,
        "not_modelled": list(worst.not_modelled) if worst else [],
    }
    blocks: list[Block] = []
    for rank in ranks:
        blocks.extend(_rank_blocks(rank, title=f"Rank {rank.rank}"))
    if worst is not None and worst.not_modelled:
        blocks.append(Lines(tuple(f"  {item}" for item in worst.not_modelled), "Not modelled"))
    return Report(tuple(blocks), data, records)


def _record(rank: RankMemory) -> dict[str, Any]:
    estimate = rank.estimate
    record: dict[str, Any] = {"rank": rank.rank, "peak": None, "categories": {}}
    if estimate is not None:
        record["peak"] = {
            "live_bytes": estimate.peak_live_bytes,
            "allocated_bytes": estimate.allocated_bytes,
            "reserved_bytes": estimate.reserved_bytes,
            "device_bytes": estimate.device_bytes,
            "phase": estimate.peak_phase,
            "node": estimate.peak_node,
            "module": estimate.peak_module,
            "source": source_text(estimate.peak_source),
        }
        record["categories"] = dict(estimate.peak_categories)
    if rank.curve is not None:
        record["curve"] = [_point_record(point) for point in rank.curve]
    if rank.live is not None:
        record["live_at_peak"] = [_tensor_record(tensor) for tensor in rank.live]
    return record


def _point_record(point: MemoryRow) -> dict[str, Any]:
    return {
        "index": point.index,
        "phase": point.phase,
        "node": point.node,
        "module": point.module,
        "live_bytes": point.live_bytes,
        "categories": dict(point.categories),
    }


def _tensor_record(tensor: LiveTensorRow) -> dict[str, Any]:
    return {
        "node": tensor.node,
        "phase": tensor.phase,
        "category": tensor.category,
        "bytes": tensor.bytes,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "module": tensor.module,
        "created_by": source_text(tensor.created_by),
        "last_used_by": tensor.last_used_by,
    }


def _rank_blocks(rank: RankMemory, *, title: str) -> list[Block]:
    estimate = rank.estimate
    if estimate is None:
        return [Lines((rank.not_estimated or NOT_ESTIMATED,), title)]
    blocks: list[Block] = [
        Facts(peak_facts(estimate), title),
        categories_table(estimate.peak_categories, estimate.peak_live_bytes),
    ]
    if rank.live is not None:
        blocks.append(_live_table(rank.live))
    if rank.curve is not None:
        blocks.append(_curve_table(rank.curve))
    return blocks


def peak_facts(estimate: EstimateRow) -> tuple[tuple[str, str], ...]:
    """Where the peak is and how large, level by level."""
    facts = [
        ("peak, live tensors", bytes_text(estimate.peak_live_bytes)),
        ("at", f"{estimate.peak_phase}, node {estimate.peak_node}"),
    ]
    if estimate.peak_module:
        facts.append(("module", estimate.peak_module))
    if estimate.peak_source is not None:
        place = place_text(estimate.peak_source)
        facts.append(("source", f"{place}  {estimate.peak_source.text.strip()}".rstrip()))
    for label, value in (
        ("allocated", estimate.allocated_bytes),
        ("reserved", estimate.reserved_bytes),
        ("on the device", estimate.device_bytes),
    ):
        if value is not None:
            facts.append((label, bytes_text(value)))
    facts.append(("capacity", bytes_text(estimate.capacity_bytes)))
    return tuple(facts)


def categories_table(categories: Mapping[str, int], total_bytes: int, *, title: str = "") -> Table:
    """The categories that hold anything, largest first."""
    rows = tuple(
        (name.replace("_", " "), bytes_text(size), share_text(size, total_bytes))
        for name, size in sorted(categories.items(), key=lambda item: -item[1])
        if size
    )
    return Table((left("category"), right("bytes"), right("share")), rows, title)


def _live_table(live: Sequence[LiveTensorRow]) -> Table:
    columns = (
        left("tensor"),
        left("category"),
        right("bytes"),
        left("shape", dropped=3),
        left("module", dropped=2),
        left("source", dropped=1),
        left("last used by", dropped=4),
    )
    rows = tuple(
        (
            tensor.node,
            tensor.category.replace("_", " "),
            bytes_text(tensor.bytes),
            shape_text(tensor.shape, tensor.dtype),
            tensor.module,
            place_text(tensor.created_by),
            tensor.last_used_by,
        )
        for tensor in live
    )
    return Table(columns, rows, f"Alive at the peak: {count_text(len(rows), 'tensor')}")


def _curve_table(curve: Sequence[MemoryRow]) -> Table:
    columns = (right("#"), left("phase"), left("node"), left("module"), right("live bytes"))
    rows = tuple(
        (str(point.index), point.phase, point.node, point.module, bytes_text(point.live_bytes))
        for point in curve
    )
    return Table(columns, rows, "Live bytes while each node runs")
