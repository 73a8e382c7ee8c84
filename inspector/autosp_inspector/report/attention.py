"""Every attention: form, mask, and who computes how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from autosp_inspector.report.quantities import bytes_text, count_text
from autosp_inspector.report.report import Block, Lines, Report, Table, left, right, wrapped
from autosp_inspector.rows import AttentionRow

SKIPPED = "skipped"


def busiest_of_mean(work: Sequence[Sequence[int]]) -> float:
    """Work of the busiest rank, in units of the mean; 1 where all do the same."""
    totals = [sum(steps) for steps in work]
    return max(totals) * len(totals) / sum(totals) if sum(totals) else 1.0


def alike(rows: Sequence[AttentionRow]) -> list[tuple[AttentionRow, ...]]:
    """Attentions that differ in nothing but their place, as in repeated layers."""
    groups: dict[AttentionRow, list[AttentionRow]] = {}
    for row in rows:
        groups.setdefault(replace(row, node="", module="", piece=None), []).append(row)
    return [tuple(group) for group in groups.values()]


def attention_report(rows: Sequence[AttentionRow]) -> Report:
    """All attentions, and for rings the work of each rank at each step."""
    records = [attention_record(row) for row in rows]
    data = {"attention": records}
    if not rows:
        text = "The program has no attention whose tokens are sharded, or the trace is an old one."
        return Report((Lines((text,)),), data, records)
    groups = alike(rows)
    blocks: list[Block] = [_sites(groups)]
    blocks += [_steps(group) for group in groups if len(group[0].work) > 1]
    return Report(tuple(blocks), data, records)


def _sites(groups: Sequence[Sequence[AttentionRow]]) -> Table:
    columns = (
        right("count"),
        left("first in"),
        left("form"),
        left("mask"),
        right("heads per rank", dropped=2),
        right("kept", dropped=1),
        right("in flight", dropped=3),
        right("busiest", dropped=4),
        wrapped("reason"),
    )
    rows = tuple(
        (
            str(len(group)),
            group[0].module or group[0].node,
            group[0].form,
            group[0].mask,
            f"{group[0].heads_per_rank} of {group[0].num_heads}",
            bytes_text(group[0].kept_bytes),
            bytes_text(group[0].in_flight_bytes) if group[0].num_ring > 1 else "-",
            f"{busiest_of_mean(group[0].work):.2f} of the mean",
            group[0].reason,
        )
        for group in groups
    )
    num = sum(map(len, groups))
    title = f"{count_text(num, 'attention')} (work and bytes are estimates)"
    return Table(columns, rows, title)


def _steps(group: Sequence[AttentionRow]) -> Table:
    """One line for each ring rank; what of a whole block of pairs each step computes."""
    row = group[0]
    others = [sum(steps) for steps in row.other_work]
    columns = (
        left("ring rank"),
        right("tokens"),
        *(right(f"step {step}") for step in range(row.num_ring)),
        right("pairs per head"),
        *((right(f"in {row.other_order} order"),) if others else ()),
    )
    lines = tuple(
        (
            f"{rank}{' (this trace)' if rank == row.ring_rank else ''}",
            f"{row.tokens[rank]:,}",
            *(_part(pairs, row.pairs_of_a_block) for pairs in steps),
            f"{sum(steps):,}",
            *((f"{others[rank]:,}",) if others else ()),
        )
        for rank, steps in enumerate(row.work)
    )
    balance = f"busiest {busiest_of_mean(row.work):.2f} of the mean"
    if others:
        balance += f", {busiest_of_mean(row.other_work):.2f} in {row.other_order} order"
    where = row.module or row.node
    if len(group) > 1:
        where += f" and {len(group) - 1} more"
    title = f"{where}: {row.order} order, {balance}; parts of a block at each step"
    return Table(columns, lines, title)


def _part(pairs: int, whole: int) -> str:
    return f"{pairs / whole:.0%}" if pairs else SKIPPED


def attention_record(row: AttentionRow) -> dict[str, Any]:
    """One attention, for JSON."""
    return asdict(row) | {
        "skipped_steps": row.num_skipped,
        "busiest_of_mean": round(busiest_of_mean(row.work), 4),
    }
