"""The pane of one attention: its form, and a picture of who computes how much, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from autosp_inspector.report.attention import busiest_of_mean
from autosp_inspector.rows import AttentionRow
from autosp_tui.describe import field
from autosp_tui.present import Line, Span, format_bytes, format_count, line

_SHADES = "▁▂▃▄▅▆▇█"
"""Parts of a block of pairs, in eighths."""
NOTHING = "·"
_STEPS_SHOWN = 32
_BAR = 24
"""Cells of a bar as long as the busiest rank's."""


def describe_attention(row: AttentionRow) -> list[Line]:
    """Why it takes its form, its mask, its bytes, and in a ring the work of every rank."""
    lines = [
        line((row.chosen, "strong"), indent=2),
        field("why", (row.reason, "text")),
        field("module", (row.module or "(root)", "module")),
        field("mask", (row.mask, "text")),
        field(
            "heads",
            (f"{row.heads_per_rank} of {row.num_heads} query heads per rank", "text"),
            (f", {row.num_kv_heads} KV heads in all", "muted"),
        ),
        field(
            "bytes",
            (f"{format_bytes(row.kept_bytes)} kept for the backward", "text"),
            (f", {format_bytes(row.in_flight_bytes)} of blocks in flight", "text")
            if row.num_ring > 1
            else ("", "text"),
        ),
    ]
    if row.num_ring > 1:
        return lines + _ring(row)
    (pairs,) = row.work[0]
    return [*lines, field("work", (f"{format_count(pairs)} pairs per head on every rank", "text"))]


def _ring(row: AttentionRow) -> list[Line]:
    lines = [
        field("work", *_balance(f"{row.order} order", row.work)),
        *(
            [field("", *_balance(f"{row.other_order} order", row.other_work))]
            * bool(row.other_work)
        ),
        field(
            "steps",
            (f"{row.num_ring}, of which this rank skips {row.num_skipped}", "text"),
            (f"   {_SHADES[0]}–{_SHADES[-1]} part of a block, {NOTHING} skipped", "muted"),
        ),
        line(),
    ]
    lines += _picture(row, row.order, row.work, row.tokens)
    if row.other_work:
        lines += [
            line(),
            *_picture(row, f"{row.other_order}, instead", row.other_work, row.other_tokens),
        ]
    return lines


def _balance(name: str, work: Sequence[Sequence[int]]) -> tuple[Span, Span]:
    busiest = busiest_of_mean(work)
    tone = "good" if busiest < 1.05 else "warning"
    return (f"{name}: busiest rank ", "text"), (f"{busiest:.2f} of the mean", tone)


def _picture(
    row: AttentionRow, title: str, work: Sequence[Sequence[int]], tokens: Sequence[int]
) -> list[Line]:
    """One line per ring rank: a cell for each step, and a bar of all its work."""
    most = max(1, *(sum(steps) for steps in work))
    shown = min(row.num_ring, _STEPS_SHOWN)
    width = max(shown, len("steps"))
    more = f"+{row.num_ring - shown}" if row.num_ring > shown else ""
    lines = [
        line((f"rank  {'tokens':>8}  {'steps':<{width}}{more}  pairs per head, {title}", "muted"))
    ]
    for rank, steps in enumerate(work):
        total = sum(steps)
        cells = "".join(_cell(pairs, row.pairs_of_a_block) for pairs in steps[:shown])
        bar = "█" * round(_BAR * total / most)
        own = "strong" if rank == row.ring_rank else "text"
        lines.append(
            line(
                (f"{rank:>4}  {tokens[rank]:>8,}  ", own),
                (f"{cells:<{width}}", "collective"),
                (f"{' ' * len(more)}  ", "text"),
                (f"{bar:<{_BAR}} ", "compute"),
                (format_count(total), own),
            )
        )
    return lines


def _cell(pairs: int, whole: int) -> str:
    if not pairs:
        return NOTHING
    eighths = round(8 * pairs / whole)
    return _SHADES[min(max(eighths, 1), 8) - 1]
