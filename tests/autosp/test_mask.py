"""The mask analysis proves causal masks in every spelling, and nothing that only looks so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from autosp.sharding.mask import (
    Affine,
    Conjunction,
    Inequality,
    MaskAnalysis,
    Never,
    Opaque,
    describe,
    is_causal,
)

LENGTH = 6


def mask_node(build, *inputs):
    """The node of the mask that ``build`` returns, traced with fake-like metadata."""
    program = make_fx(build, tracing_mode="fake", pre_dispatch=True)(*inputs)
    output = next(iter(reversed(program.graph.nodes)))
    return output.args[0]


def q_k(length=LENGTH):
    index = torch.arange(length)
    return index[:, None], index[None, :]


def ones(length):
    return torch.ones(length, length, dtype=torch.bool)


def causal_spellings():
    def transformers_style():
        positions = torch.arange(LENGTH)
        batch = torch.arange(2)
        q = positions[None, None, :, None]
        k = positions[None, None, None, :]
        allowed = torch.ones((), dtype=torch.bool).new_ones((), dtype=torch.bool)
        return (allowed & (k <= q)).expand(batch.shape[0], 1, LENGTH, LENGTH)

    def packed_but_one_document():
        positions = torch.arange(LENGTH)[None]
        starts = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
        document = starts.cumsum(-1)
        rows, columns = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None]
        same = (
            document[torch.zeros(1, 1, dtype=torch.long), rows]
            == document[torch.zeros(1, 1, dtype=torch.long), columns]
        )
        return same & (columns <= rows)

    def compare(function):
        return lambda: function(*q_k())

    return {
        "k <= q": compare(lambda q, k: k <= q),
        "q >= k": compare(lambda q, k: q >= k),
        "k < q + 1": compare(lambda q, k: k < q + 1),
        "q - k >= 0": compare(lambda q, k: q - k >= 0),
        "k - q < 1": compare(lambda q, k: (k - q) < 1),
        "q > k - 1": compare(lambda q, k: q > k - 1),
        "tril of ones": lambda: torch.tril(ones(LENGTH)),
        "tril of full": lambda: torch.full((LENGTH, LENGTH), True).tril(0),
        "cut from a larger one": lambda: ones(9).tril()[:LENGTH, :LENGTH],
        "transposed triu": lambda: ones(LENGTH).triu().transpose(0, 1),
        "with batch dims": lambda: (q_k()[1] <= q_k()[0])[None, None].expand(2, 1, -1, -1),
        "starting at one": lambda: torch.arange(1, 7)[None] <= torch.arange(1, 7)[:, None],
        "anded with always": compare(lambda q, k: (k <= q) & ones(LENGTH)),
        "transformers": transformers_style,
        "one document": packed_but_one_document,
    }  # fmt: skip


@pytest.mark.parametrize("name", causal_spellings())
def test_causal_masks_are_proved(name):
    build = causal_spellings()[name]
    expected = ones(LENGTH).tril()
    assert torch.equal(build().expand(2, 1, LENGTH, LENGTH)[0, 0], expected)
    node = mask_node(build)
    assert is_causal(node), describe(node)


NEAR_MISSES = {
    "strict": lambda: q_k()[1] < q_k()[0],
    "offset by one": lambda: q_k()[1] <= q_k()[0] + 1,
    "diagonal -1": lambda: ones(LENGTH).tril(-1),
    "diagonal 1": lambda: ones(LENGTH).tril(1),
    "anti-causal": lambda: q_k()[1] >= q_k()[0],
    "window": lambda: (q_k()[1] <= q_k()[0]) & (q_k()[0] - q_k()[1] < 3),
    "everything": lambda: ones(LENGTH),
    "every other": lambda: 2 * q_k()[1] <= q_k()[0],
    "step": lambda: torch.arange(0, 2 * LENGTH, 2)[None] <= q_k()[0],
    "lower rows": lambda: ones(9).tril()[3:, :LENGTH],
    "or": lambda: (q_k()[1] <= q_k()[0]) | (q_k()[1] < 2),
    "not": lambda: ~(q_k()[1] > q_k()[0] + 1),
    "not square": lambda: torch.arange(4)[None] <= q_k()[0],
    "float": lambda: (q_k()[1] <= q_k()[0]).float(),
    "wrapped": lambda: q_k()[1] % 3 <= q_k()[0],
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_not_proved(name):
    assert not is_causal(mask_node(NEAR_MISSES[name]))


def test_small_integers_may_wrap():
    def build():
        index = torch.arange(300).to(torch.uint8)
        return index[None] <= index[:, None]

    assert not torch.equal(build(), ones(300).tril())
    assert not is_causal(mask_node(build))


DATA_DEPENDENT = {
    "padding": lambda data: (q_k()[1] <= q_k()[0]) & (data[:, None, None] != 0),
    "positions": lambda data: data[:, None, None] <= data[:, None, :, None],
    "packed": lambda data: (q_k()[1] <= q_k()[0]) & (data[:, None] == data[..., None]),
    "length": lambda data: (q_k()[1] <= q_k()[0]) & (q_k()[1] < data.sum()),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_masks_that_depend_on_data_are_not_proved(name):
    node = mask_node(DATA_DEPENDENT[name], torch.arange(2 * LENGTH).view(2, LENGTH))
    assert not is_causal(node)


def test_the_decision_says_in_words_what_was_found():
    causal = mask_node(causal_spellings()["k <= q"])
    assert describe(causal) == "-q+k <= 0"
    window = mask_node(NEAR_MISSES["window"])
    assert describe(window) == "-q+k <= 0 and q-k-2 <= 0"
    padded = mask_node(DATA_DEPENDENT["padding"], torch.arange(2 * LENGTH).view(2, LENGTH))
    assert describe(padded).startswith("-q+k <= 0 and ")


# ------------------------------------------------------------------ against real evaluation


@dataclass(frozen=True)
class Side:
    """``scale_q * q + scale_k * k + constant``."""

    scale_q: int
    scale_k: int
    constant: int

    def __call__(self, q, k):
        total = torch.zeros((), dtype=torch.long)
        for index, scale in ((q, self.scale_q), (k, self.scale_k)):
            for _ in range(abs(scale)):
                total = total + index if scale > 0 else total - index
        return total + self.constant


sides = st.builds(Side, st.integers(-2, 2), st.integers(-2, 2), st.integers(-3, 3))
comparisons = st.sampled_from([torch.le, torch.lt, torch.ge, torch.gt, torch.eq])
clauses = st.lists(st.tuples(comparisons, sides, sides), min_size=1, max_size=2)


def conjunction(chosen, length):
    q, k = q_k(length)
    result = ones(length)
    for compare, left, right in chosen:
        result = result & compare(left(q, k), right(q, k))
    return result


def meaning_at(meaning, q, k):
    """The truth of an analysed conjunction at one element."""
    assert isinstance(meaning, Conjunction)
    for atom in meaning.atoms:
        match atom:
            case Never():
                return False
            case Opaque():
                raise AssertionError("an affine comparison was not understood")
            case Inequality(Affine(constant, coefficients)):
                value = constant + sum(c * (q, k)[d] for d, c in coefficients)
                if value > 0:
                    return False
    return True


@settings(max_examples=40)
@given(chosen=clauses)
def test_affine_comparisons_mean_what_they_evaluate_to(chosen):
    meaning = MaskAnalysis().meaning(mask_node(lambda: conjunction(chosen, LENGTH)))
    for length in (1, 4, 9):
        actual = conjunction(chosen, length)
        expected = [[meaning_at(meaning, q, k) for k in range(length)] for q in range(length)]
        assert actual.tolist() == expected


@settings(max_examples=40)
@given(chosen=clauses)
def test_what_is_proved_causal_is_causal_at_every_length(chosen):
    if is_causal(mask_node(lambda: conjunction(chosen, LENGTH))):
        for length in (1, 2, 5, 11):
            expected = ones(length).tril()
            assert torch.equal(conjunction(chosen, length), expected)


@settings(max_examples=30)
@given(st.integers(-3, 3), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_triangles_and_slices_mean_what_they_evaluate_to(diagonal, rows, columns, lower):
    def build():
        square = ones(9)
        triangle = square.tril(diagonal) if lower else square.triu(diagonal)
        return triangle[rows : rows + LENGTH, columns : columns + LENGTH]

    meaning = MaskAnalysis().meaning(mask_node(build))
    expected = [[meaning_at(meaning, q, k) for k in range(LENGTH)] for q in range(LENGTH)]
    assert build().tolist() == expected


@settings(max_examples=30)
@given(st.integers(0, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2))
def test_arange_with_start_and_step_means_what_it_evaluates_to(start, step, other, scale):
    def build():
        left = torch.arange(start, start + step * LENGTH, step)
        right = torch.arange(other, other + scale * LENGTH, scale)
        return left[None, :] <= right[:, None]

    meaning = MaskAnalysis().meaning(mask_node(build))
    expected = [[meaning_at(meaning, q, k) for k in range(LENGTH)] for q in range(LENGTH)]
    assert build().tolist() == expected
