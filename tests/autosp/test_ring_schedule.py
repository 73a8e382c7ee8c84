"""Which tiles the ranks of a ring compute: every pair that counts once, no other block at all."""

from __future__ import annotations

from itertools import product

import pytest

from autosp.placement import Shard, padding_of
from autosp.ring_schedule import RingSchedule

SIZES = (2, 3, 4, 8)
LENGTHS = (5, 16, 24, 37)


def schedules(size, length, *, is_causal, order):
    pad = padding_of(length, size, order)
    rows = (length + pad) // size
    cut = Shard(2, length, pad=pad, order=order)
    ranks = [RingSchedule(rank, size, rows, rows, length, is_causal, order) for rank in range(size)]
    return ranks, [[p for rows in cut.pieces(r, size) for p in rows] for r in range(size)]


def pairs_of(schedule, held):
    """All pairs of positions that a rank computes, and the tiles without a pair that counts."""
    for step in range(schedule.size):
        tile = schedule.tile(step)
        if tile is None:
            continue
        queries = held[schedule.rank][tile.query_start :]
        keys = held[schedule.source(step)][: tile.key_end]
        assert len(queries) == tile.num_queries
        found = list(product(queries, keys))
        if tile.is_causal:
            found = [
                (q, k) for (i, q), (j, k) in product(enumerate(queries), enumerate(keys)) if j <= i
            ]
        assert len(found) == tile.num_scores
        yield from found


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_every_pair_that_counts_is_computed_once(is_causal, order):
    for size, length in product(SIZES, LENGTHS):
        ranks, held = schedules(size, length, is_causal=is_causal, order=order)
        computed = [pair for rank in ranks for pair in pairs_of(rank, held)]
        wanted = {(q, k) for q, k in product(range(length), repeat=2) if k <= q or not is_causal}
        of_tokens = [(q, k) for q, k in computed if q < length]
        assert sorted(of_tokens) == sorted(wanted), (size, length)
        if is_causal:
            assert all(k <= q for q, k in computed), "a masked pair is computed"


def test_blocks_that_are_masked_or_padding_are_skipped():
    ranks, _ = schedules(4, 16, is_causal=True, order="contiguous")
    skipped = [[rank.tile(step) is None for step in range(4)] for rank in ranks]
    assert skipped == [
        [False, True, True, True],
        [False, False, True, True],
        [False, False, False, True],
        [False, False, False, False],
    ]
    ranks, _ = schedules(4, 5, is_causal=False, order="contiguous")
    assert [
        rank.source(step) for rank in ranks for step in range(4) if rank.tile(step) is None
    ] == [3] * 4


def test_zigzag_gives_all_ranks_the_same_causal_work():
    for size, length in product(SIZES, (64, 640, 1000)):
        (first, *_), _ = schedules(size, length, is_causal=True, order="zigzag")
        work = first.work_of_ranks()
        assert max(work) <= 1.05 * sum(work) / size
        assert len(set(work)) == 1


def test_contiguous_order_gives_the_last_rank_almost_twice_the_mean():
    (first, *_), _ = schedules(8, 640, is_causal=True, order="contiguous")
    work = first.work_of_ranks()
    assert work == sorted(work)
    assert max(work) > 1.7 * sum(work) / 8
    assert sum(work) == sum(first.in_order("zigzag").work_of_ranks())
