"""What a compilation reports to the user."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autosp.dry_run import dry_run
from autosp.hardware import Device, find_device
from autosp_inspector.queries import compare_ranks
from tests.support.dry_runs import request_for

ROOT = Path(__file__).resolve().parents[2]


class OneLayer(torch.nn.Module):
    """Embedding, attention over ``heads`` with a mask or without, projection, loss."""

    def __init__(self, *, biased: bool = False, checkpointed: bool = False) -> None:
        super().__init__()
        self.biased = biased
        self.checkpointed = checkpointed
        self.table = torch.nn.Embedding(16, 32)
        self.out = torch.nn.Linear(32, 16)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = x.view(batch, length, 4, width // 4).transpose(1, 2)
        mask = None
        if self.biased:
            rows = torch.arange(length)[:, None]
            columns = torch.arange(length)[None, :]
            mask = -(rows - columns).abs().to(x.dtype)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            heads, heads, heads, attn_mask=mask, is_causal=mask is None
        )
        return mixed.transpose(1, 2).reshape(batch, length, width)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids)
        if self.checkpointed:
            x = torch.utils.checkpoint.checkpoint(self.attend, x, use_reentrant=False)
        else:
            x = self.attend(x)
        return torch.nn.functional.cross_entropy(self.out(x).flatten(0, 1), labels.flatten())


def codes(module: torch.nn.Module, **options: object) -> dict[str, str]:
    result = dry_run(request_for(lambda: module, **{"sp": 2, "seq": 64, **options}))  # type: ignore[arg-type]
    return {finding.code: finding.severity for finding in result.findings}


def test_a_plain_causal_model_has_no_findings() -> None:
    assert codes(OneLayer()) == {}


def test_a_bias_for_each_pair_stays_and_is_reported() -> None:
    assert codes(OneLayer(biased=True)) == {}
    assert codes(OneLayer(biased=True), seq=1024)["square-tensor"] == "warning"
    assert codes(OneLayer(biased=True), seq=16_384)["square-tensor"] == "error"


@pytest.mark.parametrize("sp", [1, 2])
@pytest.mark.parametrize("vocabulary", [1024, 3000])
def test_a_vocabulary_longer_than_the_sequence_makes_no_square_tensor(
    sp: int, vocabulary: int
) -> None:
    class Wordy(OneLayer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.out = torch.nn.Linear(32, vocabulary)

    assert codes(Wordy(), seq=1024, sp=sp) == {}
    assert codes(Wordy(biased=True), seq=1024, sp=sp) == {"square-tensor": "warning"}


def test_weights_as_wide_as_the_sequence_is_long_are_not_square_tensors() -> None:
    class Wide(OneLayer):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(32, 1024)
            self.across = torch.nn.Linear(1024, 1024)
            self.out = torch.nn.Linear(1024, 16)

        def attend(self, x: torch.Tensor) -> torch.Tensor:
            return self.across(self.up(super().attend(x)))

    assert codes(Wide(), seq=1024) == {}


def test_a_frozen_model_has_nothing_to_train() -> None:
    assert codes(OneLayer().requires_grad_(False))["nothing-to-train"] == "error"


def test_constants_of_the_program_are_inputs_of_the_step() -> None:
    class Writes(OneLayer):
        def attend(self, x: torch.Tensor) -> torch.Tensor:
            mixed = super().attend(x)
            mixed[:, 0] = 0.0
            return mixed

    assert codes(Writes()).keys() <= {"gathered-operator", "replicated-work"}


def test_collectives_that_a_checkpoint_runs_again_are_reported() -> None:
    assert codes(OneLayer(checkpointed=True)) == {"recomputed-collective": "info"}


def test_a_step_that_exceeds_the_device_is_reported() -> None:
    device = find_device("a100-80gb")
    found = codes(OneLayer(), seq=64, batch=4_000_000, device=device)
    assert found["does-not-fit"] == "error"


def test_a_step_that_nearly_fills_the_device_is_reported() -> None:
    device = find_device("a100-80gb")
    result = dry_run(request_for(OneLayer, sp=2, seq=64, device=device))
    assert result.estimate is not None
    peak = result.estimate.summary.peak_live_bytes
    assert device.capacity_bytes is not None

    def of_size(size_bytes: int) -> Device:
        return replace(device, capacity_bytes=replace(device.capacity_bytes, value=size_bytes))

    assert codes(OneLayer(), device=of_size(peak * 10 // 9)) == {"close-to-capacity": "warning"}
    assert codes(OneLayer(), device=of_size(peak * 2)) == {}


def documented(page: str) -> set[str]:
    return set(re.findall(r"^(?:\| )?`{1,2}([a-z]+(?:-[a-z]+)+)`{1,2}", page, re.MULTILINE))


def test_every_code_is_documented() -> None:
    sources = [*ROOT.glob("autosp/checks/*.py"), ROOT / "autosp/sharding/gathering.py"]
    text = "".join(source.read_text() for source in (*sources, ROOT / "autosp/findings.py"))
    elsewhere = "".join(
        (ROOT / "autosp" / name).read_text() for name in ("lowering.py", "dry_run_pieces.py")
    )
    used = set(re.findall(r'code="([a-z-]+)"', text + elsewhere))
    used |= set(re.findall(r'^ +"([a-z]+(?:-[a-z]+)+)",$', text, re.MULTILINE))
    assert len(used) == 21
    between_ranks = {compare_ranks.CODE, compare_ranks.MISSING}
    assert documented((ROOT / "docs/findings.md").read_text()) == used | between_ranks
    assert documented((ROOT / "autosp/findings.py").read_text()) == used
