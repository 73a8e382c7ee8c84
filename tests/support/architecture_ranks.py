"""Architectures of the table on real processes: one start serves many models."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from autosp.dry_run import rarely_collected
from autosp.loggers import quiet_loggers
from autosp.verification import VerifyRequest, verify_on_this_rank
from autosp.verification_report import VerifyReport
from tests.support.architecture_check import BATCH, LENGTH, OwnLoss
from tests.support.architectures import ARCHITECTURES, Architecture
from tests.support.gloo_cases import Subject

ALL_OF_THEM = bool(os.environ.get("AUTOSP_ALL_RANK_CASES"))
"""Set it to run the whole third on 2 ranks and more on 4: some minutes."""

DROPOUT = Architecture(
    "GPT-2, dropout", "gpt2", dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.1)
)
"""With its default probabilities."""

_ORDER = (
    "Llama",
    "OPT",
    "BLOOM",
    "Falcon, multi-query",
    "Phi-3",
    "Qwen3",
    "BERT",
    "ViT",
    "T5",
    "Mixtral",
    "LLaVA",
    "LFM2",
    "GPT-NeoX",
    "Mistral, sliding window",
    "DeepSeek V3",
    "Whisper",
    "ModernBERT",
    "MPT",
    "StarCoder2",
    "Granite",
    "OLMo 2",
    "GLM-4",
    "GPT-2",
    "GPT-OSS",
)
"""A third of the table, unlike ones first."""
NUM_BY_DEFAULT = 4
ON_TWO_RANKS = _ORDER if ALL_OF_THEM else _ORDER[:NUM_BY_DEFAULT]
ON_FOUR_RANKS = (
    "Falcon, multi-query",
    *(("Llama", "T5", "Mixtral", "LLaVA") if ALL_OF_THEM else ()),
)

ONLY_FLOAT32 = ("Mixtral", "DeepSeek V3", "GPT-OSS")
"""torch's grouped product takes no float64 when it computes."""


def row_of(name: str) -> Architecture:
    return next(row for row in (DROPOUT, *ARCHITECTURES) if row.name == name)


def dtype_of(name: str) -> str:
    return "float32" if name in ONLY_FLOAT32 else "float64"


def subject_of(name: str) -> Subject:
    """The training step of an architecture, as the table's verdict is found."""
    dtype = getattr(torch, dtype_of(name))
    row = replace(row_of(name), dtype=dtype)

    def cast(value: torch.Tensor) -> torch.Tensor:
        return value.to(dtype) if value.is_floating_point() else value

    return Subject(OwnLoss(row.build()), kwargs=tree_map(cast, row.inputs(BATCH, LENGTH)))


@dataclass(frozen=True)
class OnRanks:
    """One architecture on ``ranks`` processes, every one of which calls it."""

    name: str
    ranks: int

    def build(self) -> Subject:
        return subject_of(self.name)

    def __call__(self) -> VerifyReport | None:
        request = VerifyRequest(build=self.build, ranks=self.ranks, dtype=dtype_of(self.name))  # type: ignore[arg-type]
        with quiet_loggers(), rarely_collected():
            return verify_on_this_rank(request)


def run_architectures(names: Sequence[str]) -> tuple[dict[str, VerifyReport | str], float]:
    """The reports of all, an error as its first line, and the seconds that they took."""
    started = time.monotonic()
    found: dict[str, VerifyReport | str] = {}
    for name in names:
        try:
            report = OnRanks(name, dist.get_world_size())()
            found[name] = report or "another rank has the report"
        except Exception as error:  # judged by the test of this architecture
            found[name] = f"{type(error).__name__}: {error}"
        torch._dynamo.reset()
        dist.barrier()
    return found, time.monotonic() - started
