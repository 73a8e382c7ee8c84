"""The keyed numbers themselves: uniform, independent, and those of a block those of the whole."""

from __future__ import annotations

import math

import pytest
import torch

from autosp.runtime.keyed_random import (
    NUM_DRAWS,
    NUM_KEYS,
    NUMBERS,
    draw_keys,
    random_words,
)

CPU = torch.device("cpu")
SIZE = [4, 250, 1000]
COUNT = math.prod(SIZE)


def keys_of(seed: int, num_draws: int = 8, dp_rank: int = 0):
    torch.manual_seed(seed)
    return draw_keys(num_draws, dp_rank=dp_rank, device=CPU)


def positions_of(size):
    return [torch.arange(rows) for rows in size]


def words(seed: int, draw: int = 0, size=SIZE):
    return random_words(keys_of(seed), draw, positions_of(size), size)


def numbers(distribution, *parameters, dtype=torch.float32, seed=0, size=SIZE):
    assert NUM_DRAWS[distribution] <= 8
    given = [float(p) for p in parameters]
    return NUMBERS(keys_of(seed), 0, positions_of(size), size, distribution, given, dtype)


def correlation(left, right):
    """Of two sets of words, in standard deviations of what chance gives."""
    pair = torch.stack([left.flatten().double(), right.flatten().double()])
    return float(torch.corrcoef(pair)[0, 1]) * math.sqrt(left.numel())


def is_chance(deviations: float) -> bool:
    return abs(deviations) < 5


@pytest.mark.parametrize("seed", range(5))
def test_words_are_uniform(seed):
    counts = torch.bincount((words(seed) >> 22).flatten(), minlength=1024).double()
    expected = COUNT / 1024
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert is_chance((chi_squared - 1023) / math.sqrt(2 * 1023))


@pytest.mark.parametrize("bit", range(8, 32))
def test_every_bit_that_counts_is_fair(bit):
    ones = int(((words(1) >> bit) & 1).sum())
    assert is_chance((ones - COUNT / 2) / math.sqrt(COUNT / 4))


@pytest.mark.parametrize("dim", range(3))
@pytest.mark.parametrize("distance", [1, 2, 64])
def test_neighbours_are_independent(dim, distance):
    whole = words(2, size=[128, 100, 128])
    rows = whole.shape[dim] - distance
    near, far = whole.narrow(dim, 0, rows), whole.narrow(dim, distance, rows)
    assert is_chance(correlation(near, far))
    assert is_chance(correlation(near & 0xFFFF, far & 0xFFFF))
    assert is_chance(correlation(kept(near), kept(far)))


def kept(word):
    return word >= round(0.1 * 2**32)


def test_corners_of_rectangles_are_independent():
    """Three corners say nothing of the fourth, although rows and columns are hashed apart."""
    word = (words(3, size=[1, 1000, 1000])[0] >> 31) & 1
    sign = 2 * word.double() - 1
    product = sign[:-1, :-1] * sign[:-1, 1:] * sign[1:, :-1] * sign[1:, 1:]
    assert is_chance(float(product.sum()) / math.sqrt(product.numel()))
    far = sign[:500, :500] * sign[:500, 500:] * sign[500:, :500] * sign[500:, 500:]
    assert is_chance(float(far.sum()) / math.sqrt(far.numel()))


def test_sites_steps_and_groups_are_independent():
    first = words(4)
    assert is_chance(correlation(kept(first), kept(words(4, draw=1))))
    assert is_chance(correlation(kept(first), kept(words(5))))
    other = random_words(keys_of(4, dp_rank=1), 0, positions_of(SIZE), SIZE)
    assert is_chance(correlation(kept(first), kept(other)))


def test_rows_and_columns_keep_their_share():
    """No row and no column drops noticeably more than its share."""
    dropped = (~kept(words(6)[0])).double()
    for dim in (0, 1):
        share, number = dropped.mean(dim), dropped.shape[dim]
        deviations = (share - 0.1) / math.sqrt(0.1 * 0.9 / number)
        assert float(deviations.abs().max()) < 5
        assert 0.8 < float(deviations.var()) < 1.2


def test_a_block_draws_the_numbers_of_the_whole():
    whole = words(7)
    positions = positions_of(SIZE)
    positions[1] = torch.arange(100, 140)
    block = random_words(keys_of(7), 0, positions, SIZE)
    assert torch.equal(block, whole[:, 100:140])


def test_keys_are_different_in_every_place():
    keys = keys_of(8, 100)
    assert keys.shape == (100, NUM_KEYS)
    assert len(keys.unique()) == keys.numel()
    assert 0 <= int(keys.min()) and int(keys.max()) < 2**32


def test_no_step_of_the_hash_overflows():
    """Compilers may assume that signed integers do not overflow."""
    from autosp.runtime import keyed_random

    largest = 2**32 - 1
    assert abs(largest * keyed_random._FIRST_FACTOR) < 2**63
    assert abs(largest * keyed_random._SECOND_FACTOR) < 2**63


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_uniform_numbers_are_below_one_in_every_precision(dtype):
    drawn = numbers("uniform", 0, 1, dtype=dtype)
    assert drawn.dtype == dtype
    assert 0 <= float(drawn.min()) and float(drawn.max()) < 1
    shortfall = 2.0**-9 if dtype == torch.bfloat16 else 0.0  # the grid begins at 0
    assert float(drawn.double().mean()) == pytest.approx(0.5 - shortfall, abs=2e-3)


def test_moments_of_the_other_distributions():
    normal = numbers("normal", 1, 2, dtype=torch.float64)
    standard = (normal - 1) / 2
    assert [float((standard**k).mean()) for k in (1, 2, 3, 4)] == pytest.approx(
        [0, 1, 0, 3], abs=0.03
    )
    exponential = numbers("exponential", 2)
    assert float(exponential.min()) > 0
    assert float(exponential.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(numbers("bernoulli", 0.3).mean()) == pytest.approx(0.3, abs=0.003)
    integers = numbers("integers", -2, 3, dtype=torch.int64)
    shares = torch.bincount((integers + 2).flatten(), minlength=5).double() / COUNT
    assert shares.tolist() == pytest.approx([0.2] * 5, abs=0.003)
