"""What the attention view says of rings and of Ulysses, from real compilations and pure rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autosp_inspector.queries.attention import list_attention
from autosp_inspector.report.attention import alike, busiest_of_mean
from autosp_inspector.rows import AttentionRow
from autosp_inspector.trace import open_trace
from autosp_tui.describe_attention import describe_attention
from tests.support.command_line import CommandLine
from tests.support.dry_runs import record_sample

RANKS, LENGTH = 4, 64


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ring") / "ring.autosp"
    return record_sample("llama", path, sp=RANKS, seq=LENGTH, attention="ring")


def test_a_causal_ring_in_zigzag_order_works_alike_on_all_ranks(ring: Path) -> None:
    with open_trace(ring) as trace:
        first, second = list_attention(trace)
    assert (first.form, first.mask, first.order) == ("ring", "causal", "zigzag")
    assert [sum(steps) for steps in first.work] == [520] * RANKS
    assert [sum(steps) for steps in first.other_work] == [136, 392, 648, 904]
    assert [steps.count(0) for steps in first.other_work] == [3, 2, 1, 0]
    assert sum(map(sum, first.work)) == LENGTH * (LENGTH + 1) // 2
    assert first.num_skipped == 0
    assert first.tokens == (16,) * RANKS
    assert second.module != first.module
    assert alike([first, second]) == [(first, second)]


def test_bytes_are_those_of_the_tensors(ring: Path) -> None:
    with open_trace(ring) as trace:
        row = list_attention(trace)[0]
        (query,) = trace.fetch(
            "SELECT local_shape, local_bytes FROM nodes WHERE graph = 'program' AND "
            "role = 'compute' AND target LIKE '%ring_attention%' AND died_pass IS NULL LIMIT 1"
        )
    size = query[1]  # of the output, as many as the queries have
    block = 2 * size * row.num_kv_heads // row.num_heads
    lse = 4 * row.num_heads * LENGTH // RANKS
    assert row.kept_bytes == 2 * size + block + lse
    assert row.in_flight_bytes == 2 * block


def test_the_command_shows_steps_and_both_orders(cli: CommandLine, ring: Path) -> None:
    text = cli("attention", ring).out
    assert "2 attentions" in text
    assert "zigzag order, busiest 1.00 of the mean, 1.74 in contiguous order" in text
    assert "0 (this trace)" in text
    assert "904" in text
    found = cli("attention", ring, "--json").json["attention"]
    assert [row["skipped_steps"] for row in found] == [0, 0]


def row_of(ring: Path) -> AttentionRow:
    with open_trace(ring) as trace:
        return list_attention(trace)[0]


def test_a_picture_has_a_line_for_each_rank_and_a_cell_for_each_step(ring: Path) -> None:
    row = row_of(ring)
    lines = [line.text for line in describe_attention(row)]
    titles = [index for index, text in enumerate(lines) if text.startswith("rank ")]
    zigzag, contiguous = (lines[at + 1 : at + 1 + RANKS] for at in titles)
    assert [text[16:20] for text in zigzag] == ["▄▄▄▄"] * RANKS
    assert ["".join(c for c in text[16:20]) for text in contiguous] == [
        "▄···",
        "▄█··",
        "▄██·",
        "▄███",
    ]
    bars = [text.count("█", 20) for text in contiguous]
    assert bars == sorted(bars) and bars[-1] == 24


def test_a_long_ring_is_cut_where_the_screen_ends(ring: Path) -> None:
    steps = tuple((1,) * 64 for _ in range(64))
    row = replace(row_of(ring), num_ring=64, work=steps, tokens=(1,) * 64, other_work=())
    (title,) = [line.text for line in describe_attention(row) if line.text.startswith("rank ")]
    assert "+32" in title


def test_a_rank_without_any_pair_is_no_division_by_zero() -> None:
    assert busiest_of_mean(((0, 0), (0, 0))) == 1.0
    assert busiest_of_mean(((0, 2), (0, 0))) == 2.0
