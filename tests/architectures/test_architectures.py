"""Every architecture of the table is as right, and as sharded, as the table says.

Those that only repeat what others have are left out, and the others take turns to run on two
and on four ranks, so that the suite stays quick; ``AUTOSP_ALL_ARCHITECTURES=1`` judges all on
both.
"""

from __future__ import annotations

import os

import pytest

from tests.support.architecture_check import RANKS, outcome_of
from tests.support.architecture_page import PAGE, verdicts_on
from tests.support.architectures import ARCHITECTURES, Architecture

REPEATED = {
    "Ministral", "Phi-4", "GPT-J", "CodeGen", "MPT", "OLMo", "OLMo 3", "GLM", "StableLM",
    "Nemotron", "Persimmon", "EXAONE 4", "Helium", "Arcee", "ERNIE 4.5", "Seed-OSS", "Apertus",
    "BioGPT", "XGLM", "Granite", "SmolLM3", "Cohere2", "Phi-3", "OLMoE", "RoBERTa",
    "DistilBERT", "ELECTRA", "ALBERT", "DINOv2", "CLIP vision", "SigLIP vision",
}  # fmt: skip
SLOW = {"RecurrentGemma"}
"""Unrolls a scan over the tokens."""
ALL_OF_THEM = bool(os.environ.get("AUTOSP_ALL_ARCHITECTURES"))
JUDGED = [row for row in ARCHITECTURES if ALL_OF_THEM or row.name not in REPEATED | SLOW]


def test_enough_are_judged_to_stand_for_all() -> None:
    assert {row.name for row in ARCHITECTURES} >= REPEATED | SLOW
    assert len(JUDGED) >= 40
    assert sum(row.verdict == "pass" for row in JUDGED) >= 30
    assert sum(row.verdict == "pass" for row in ARCHITECTURES) >= 35


@pytest.mark.parametrize("architecture", JUDGED, ids=lambda row: row.name)
def test_the_verdict_is_the_one_in_the_table(architecture: Architecture) -> None:
    turn = JUDGED.index(architecture) % len(RANKS)
    outcome = outcome_of(architecture.name, RANKS if ALL_OF_THEM else RANKS[turn : turn + 1])

    assert outcome.verdict != "wrong", outcome.detail
    assert outcome.verdict == architecture.verdict, (
        f"update the table in tests/support/architectures.py and write the page again "
        f"(python -m tests.support.architecture_page): {outcome}"
    )
    assert architecture.because in outcome.detail


def test_the_page_says_what_the_table_says() -> None:
    page = verdicts_on(PAGE.read_text(encoding="utf-8"))

    assert page == {row.name: row.verdict for row in ARCHITECTURES}


def test_names_are_unique_and_no_architecture_is_expected_to_be_wrong() -> None:
    names = [row.name for row in ARCHITECTURES]

    assert len(set(names)) == len(names) >= 45
    assert all(row.verdict != "wrong" for row in ARCHITECTURES)
