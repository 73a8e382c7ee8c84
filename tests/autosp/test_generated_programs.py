"""Random small transformers on random layouts: right, or refused by name.

A case is one program on one number of ranks. ``AUTOSP_PROPERTY_CASES=2000`` runs more of the
same series, ``AUTOSP_PROPERTY_SEED=7`` another one.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.support.generated_operators import (
    ALONG,
    OPERATORS,
    POINTWISE,
    PRODUCTS,
    REDUCTIONS,
    VIEWS,
)
from tests.support.generated_program import GeneratedProgram
from tests.support.generated_proof import NotAModel, prove_program
from tests.support.generated_strategies import programs, simplified

NUM_CASES = int(os.environ.get("AUTOSP_PROPERTY_CASES", "320"))
SEED = int(os.environ.get("AUTOSP_PROPERTY_SEED", "0"))

MEAN_RANKS = 1.9
"""Cases that a program gives, but for those that eager PyTorch cannot run."""
MOST_REFUSED = 0.1
"""Share of the cases that may be refused: more would prove too little."""

FAMILIES = {
    "everything": OPERATORS,
    "sums_and_scans": {**REDUCTIONS, **ALONG, **{n: VIEWS[n] for n in ("reshape", "permute")}},
    "shapes": {**VIEWS, **{n: POINTWISE[n] for n in ("sin", "add", "mul")}},
    "products": {**PRODUCTS, **POINTWISE, **{n: VIEWS[n] for n in ("transpose", "reshape")}},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_generated_programs_are_right_on_every_rank_or_refused_by_name(family):
    seen: Counter[str] = Counter()

    @seed(f"{SEED} {family}")
    @settings(
        max_examples=max(1, round(NUM_CASES / MEAN_RANKS / len(FAMILIES))),
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(FAMILIES[family]))
    def every_program(program: GeneratedProgram) -> None:
        try:
            outcomes = prove_program(program)
        except NotAModel:
            seen["not a model"] += 1
            return
        except Exception as error:
            pytest.fail(_report(program, error))
        for outcome in outcomes:
            seen["refused" if outcome.refusal else "right"] += 1

    every_program()
    cases = seen["right"] + seen["refused"]
    assert cases >= NUM_CASES / len(FAMILIES) * 0.9, seen
    assert seen["refused"] <= MOST_REFUSED * cases, seen


def _report(program: GeneratedProgram, error: Exception) -> str:
    """The smallest program that fails in the same way, as one can paste it into a test."""

    def fails(smaller: GeneratedProgram) -> bool:
        try:
            prove_program(smaller)
        except NotAModel:
            return False
        except Exception as other:
            return type(other) is type(error)
        return False

    smallest = simplified(program, fails)
    return f"{type(error).__name__}: {error}\n\n{smallest!r}\n\nmade smaller from\n\n{program!r}"
