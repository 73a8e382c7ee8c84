"""A third of the architectures on gloo ranks: loss and gradients are those of one process.

Fewer by default, so that the suite stays quick; ``AUTOSP_ALL_RANK_CASES=1`` runs the whole
third on 2 ranks, and more of them on 4.
"""

from __future__ import annotations

from functools import partial

import pytest

from autosp.verification_processes import run_on_ranks
from autosp.verification_report import COMPILED_REFERENCE
from tests.support.architecture_ranks import (
    DROPOUT,
    ON_FOUR_RANKS,
    ON_TWO_RANKS,
    run_architectures,
)
from tests.support.gloo_cases import assert_gradients_and_loss_equal


def reports(names, num_ranks):
    run = partial(run_architectures, (*names, DROPOUT.name))
    found, seconds = run_on_ranks(run, num_ranks=num_ranks)
    print(f"{len(found)} architectures on {num_ranks} ranks: {seconds:.0f} s")
    return found


@pytest.fixture(scope="module")
def two():
    return reports(ON_TWO_RANKS, 2)


@pytest.fixture(scope="module")
def four():
    return reports(ON_FOUR_RANKS, 4)


@pytest.mark.parametrize("name", ON_TWO_RANKS)
def test_two_ranks_train_like_one_process(two, name):
    assert_gradients_and_loss_equal(two[name], more_than=10)


@pytest.mark.parametrize("name", ON_FOUR_RANKS)
def test_four_ranks_train_like_one_process(four, name):
    assert_gradients_and_loss_equal(four[name], more_than=10)


def test_dropout_is_the_same_on_one_two_and_four_ranks(two, four):
    """GPT-2 with its dropouts of 0.1, one seed."""
    for found in (two, four):
        assert_gradients_and_loss_equal(found[DROPOUT.name], more_than=10)
        assert found[DROPOUT.name].reference == COMPILED_REFERENCE  # on one rank
    losses = [found[DROPOUT.name].loss_compiled for found in (two, four)]
    losses.append(two[DROPOUT.name].loss_reference)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)
